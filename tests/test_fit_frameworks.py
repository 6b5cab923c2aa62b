"""`fit` on Keras models, TensorFlow functions and templates."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fit_cases import a_session, compiles, write_programs
from tpuctl.compile.fit import Session, fit

pytestmark = [*compiles, pytest.mark.tf, pytest.mark.slow]

HIDDEN, HEAD = 128 * 256, 256 * 10
TYPES = ("v2-8", "v5litepod-4", "v6e-4", "tpu7x-8")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorflow")
    return write_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module", params=["jax", "tensorflow"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """One child for all questions to one backend."""
    with (
        pytest.MonkeyPatch.context() as environment,
        a_session(tmp_path_factory.mktemp("cache")) as session,
    ):
        environment.setenv("KERAS_BACKEND", request.param)
        yield session


def test_a_keras_model_compiles_for_every_generation(
    programs: Path, session: Session, request: pytest.FixtureRequest
) -> None:
    # TensorFlow for all of them: test_a_tensorflow_function_compiles.
    types = TYPES if request.node.callspec.params["session"] == "jax" else TYPES[:1]
    fits = [fit(f"{programs}:keras_model", name, batch_size=64, session=session) for name in types]
    # The gradient of the first layer's input is not needed.
    products = 2 * 64 * (2 * HIDDEN + 3 * HEAD)
    assert [found.accelerator_type for found in fits] == list(types)
    for found in fits:
        assert found.fits
        assert found.mode == "training"
        # Adam and the loss are no products; in a model as small as this one they show.
        assert products < found.flops_per_step < 1.5 * products
        assert {waste.layer for waste in found.mxu_padding} <= {"hidden", "head"}
        assert any(waste.layer == "head" for waste in found.mxu_padding)


def test_inference_is_the_forward_pass(programs: Path, session: Session) -> None:
    target = f"{programs}:keras_model"
    found = fit(target, "v5e-1", batch_size=256, training=False, dtype="bf16", session=session)
    assert found.mode == "inference"
    assert found.flops_per_step == pytest.approx(2 * 256 * (HIDDEN + HEAD), rel=0.05)


# Each backend compiles four programs; test_fit_compile.py has what is not possible, too.
@pytest.mark.parametrize(
    "session", ["jax", pytest.param("tensorflow", marks=pytest.mark.soak)], indirect=True
)
def test_what_could_be_tried_is_compiled_each_by_itself(programs: Path, session: Session) -> None:
    """2 layers keep 2 MiB of activations each, for every example and in float32."""
    target = f"{programs}:wide_keras_model"
    found = fit(target, "v5e-1", batch_size=8192, verify=True, session=session)
    assert not found.fits
    tried = {one.code: one for one in found.advice}
    assert set(tried) == {"smaller-batch", "bf16", "remat"}
    needed = {code: one.hbm_needed_bytes or 0 for code, one in tried.items()}
    assert tried["smaller-batch"].fits
    assert 0 < needed["bf16"] < 0.8 * found.hbm_needed_bytes
    if found.framework == "keras on jax":
        # In float32 again: the policy of the question before is forgotten.
        assert needed["bf16"] < needed["remat"] < found.hbm_needed_bytes
    else:
        # tf.recompute_grad and Keras 3 do not agree on keywords.
        assert "custom_gradient" in str(tried["remat"].why_not)


@pytest.mark.parametrize("session", ["tensorflow"], indirect=True)
def test_a_tensorflow_function_compiles_and_its_variable_stays_in_place(
    programs: Path, session: Session
) -> None:
    target = f"{programs}:tensorflow_step"
    for name in TYPES:
        found = fit(target, name, batch_size=256, session=session)
        assert (found.fits, found.framework, found.batch_size) == (True, "tensorflow", 256)
        assert found.flops_per_step == pytest.approx(2 * 2 * 256 * 256 * 512, rel=0.05)
        weights = 4 * 256 * 512
        # The variable, its gradient and the program: no second copy of the result.
        assert found.hbm_needed_bytes < 6 * weights


@pytest.mark.parametrize(
    ("session", "name", "framework", "layer"),
    [
        # Keras on JAX is compiled above.
        pytest.param("jax", "images", "keras on jax", "conv2d", marks=pytest.mark.soak),
        ("jax", "jax-images", "jax", "stem"),
        ("tensorflow", "custom-loop", "tensorflow", "matmul"),
    ],
    indirect=["session"],
)
def test_a_template_compiles_by_its_name(
    session: Session, name: str, framework: str, layer: str
) -> None:
    found = fit(name, "v5e-1", batch_size=8, image_size=32, session=session)
    assert (found.fits, found.framework, found.batch_size) == (True, framework, 8)
    assert layer in {waste.layer for waste in found.mxu_padding}
