"""`fit` on Keras models and TensorFlow functions."""

from pathlib import Path

import pytest

from tests.fit_cases import compiles, empty_cache, write_programs
from tpuctl.compile import fit

pytestmark = [*compiles, pytest.mark.tf, pytest.mark.slow]

HIDDEN, HEAD = 128 * 256, 256 * 10


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorflow")
    return write_programs(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
@pytest.mark.parametrize("accelerator_type", ["v2-8", "v6e-4"])
def test_a_keras_model_compiles_on_both_backends(
    programs: Path, tmp_path: Path, monkeypatch, backend: str, accelerator_type: str
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    target, cache = f"{programs}:keras_model", empty_cache(tmp_path)
    found = fit(target, accelerator_type, batch_size=64, cache=cache)
    # The gradient of the first layer's input is not needed.
    products = 2 * 64 * (2 * HIDDEN + 3 * HEAD)
    assert found.fits
    assert found.framework == f"keras on {backend}"
    assert found.mode == "training"
    # Adam and the loss are no products; in a model as small as this one they show.
    assert products < found.flops_per_step < 1.5 * products
    assert any("head" in waste.layer for waste in found.mxu_padding)


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_inference_is_the_forward_pass(
    programs: Path, tmp_path: Path, monkeypatch, backend: str
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    target, cache = f"{programs}:keras_model", empty_cache(tmp_path)
    found = fit(target, "v5e-1", batch_size=256, training=False, dtype="bf16", cache=cache)
    assert found.mode == "inference"
    assert found.flops_per_step == pytest.approx(2 * 256 * (HIDDEN + HEAD), rel=0.05)


def test_a_tensorflow_function_compiles_and_its_variable_stays_in_place(
    programs: Path, tmp_path: Path
) -> None:
    target, cache = f"{programs}:tensorflow_step", empty_cache(tmp_path)
    found = fit(target, "v5e-4", batch_size=256, cache=cache)
    assert (found.framework, found.per_chip_batch) == ("tensorflow", 64)
    assert found.flops_per_step == pytest.approx(2 * 2 * 256 * 256 * 512, rel=0.05)
    weights = 4 * 256 * 512
    # The variable, its gradient and the program: no second copy of the result.
    assert found.hbm_needed_bytes < 6 * weights


def test_a_template_compiles_by_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    found = fit("images", "v5e-1", batch_size=8, image_size=32, cache=empty_cache(tmp_path))
    assert found.fits
    assert found.framework == "keras on jax"
