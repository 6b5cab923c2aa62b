"""`fit` with the real compiler: what it says agrees with hand counts and with itself."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests import contract
from tests.fit_cases import a_session, compiles, write_programs
from tpuctl.compile.estimate import warn_before_create
from tpuctl.compile.fit import Session, fit, fit_types
from tpuctl.compile.models import Comparison, Fit, PallasKernel
from tpuctl.errors import CompilerError
from tpuctl.reporters.fit import render_fit
from tpuctl.units import GIB, MIB

pytestmark = compiles

TYPED = """
def make(dtype="float16"):
    import jax, jax.numpy as jnp

    step = lambda w, x: (x.astype(dtype) @ w.astype(dtype)).astype(dtype)
    shape = jax.ShapeDtypeStruct
    return step, (shape((1024, 1024), "float32"), shape((1024, 1024), "uint8"))
"""


def text_of(shown: Any) -> str:
    paper = Console(file=io.StringIO(), width=100)
    paper.print(shown)
    return paper.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with a_session(tmp_path_factory.mktemp("cache")) as session:
        yield session


@pytest.fixture(scope="module")
def four(programs: Path, session: Session) -> Comparison:
    types = ["v2-8,v5e-4", "v6e-1", "tpu7x-8"]
    found = fit_types(f"{programs}:training", types, batch_size=512, cache=session.cache)
    assert isinstance(found, Comparison)
    return found


def test_every_generation_compiles(four: Comparison) -> None:
    assert [(f.accelerator_type, f.fits) for f in four.types] == [
        ("v2-8", True),
        ("v5litepod-4", True),
        ("v6e-1", True),
        ("tpu7x-8", True),
    ]


def test_the_flops_of_a_dense_training_step_agree_with_a_hand_count(four: Comparison) -> None:
    forward = 2 * 512 * (256 * 512 + 512 * 384)
    backward = forward + 2 * 512 * 512 * 384
    for found in four.types:
        assert found.flops_per_step == pytest.approx(forward + backward, rel=0.05)


def test_the_batch_is_spread_over_the_devices(four: Comparison) -> None:
    assert [f.per_chip_batch for f in four.types] == [128, 128, 512, 128]
    assert [f.devices for f in four.types] == [8, 4, 1, 8]


def test_the_numbers_of_a_fit_hang_together(four: Comparison) -> None:
    for found in four.types:
        step = found.step_ms_estimate
        assert 0 < max(found.compute_ms, found.memory_ms) == step.low <= step.high
        assert 0 < found.hbm_needed_bytes < found.hbm_available_bytes
        assert found.examples_per_s
        assert found.examples_per_s.high == pytest.approx(512 / step.low * 1e3)
        if found.usd_per_hour:
            assert found.usd_per_million_examples
            hours = 1e6 / found.examples_per_s.high / 3600
            assert found.usd_per_million_examples.low == pytest.approx(found.usd_per_hour * hours)


def test_a_donated_state_is_counted_once(four: Comparison) -> None:
    """Weights in and out are the same memory; nothing else here is as large."""
    weights = 4 * (256 * 512 + 512 * 384)
    found = next(f for f in four.types if f.accelerator_type == "v6e-1")
    batch = 4 * 512 * (256 + 384)
    assert found.hbm_needed_bytes < weights + batch + 2 * MIB


def test_the_second_run_is_answered_from_the_cache(
    programs: Path, session: Session, four: Comparison
) -> None:
    again = fit(f"{programs}:training", "v6e-1", batch_size=512, session=session)
    first = next(f for f in four.types if f.accelerator_type == "v6e-1")
    assert (again.from_cache, first.from_cache) == (True, False)
    assert again.hbm_needed_bytes == first.hbm_needed_bytes
    assert again.step_ms_estimate == first.step_ms_estimate


def test_an_edited_program_is_compiled_again(tmp_path: Path, session: Session) -> None:
    place = write_programs(tmp_path)
    before = fit(f"{place}:conv", "v5e-1", session=session)
    place.write_text(place.read_text().replace("(3, 3, 64, 128)", "(3, 3, 64, 256)"))
    after = fit(f"{place}:conv", "v5e-1", session=session)
    assert not after.from_cache
    assert after.flops_per_step == pytest.approx(2 * before.flops_per_step, rel=0.05)


def test_a_damaged_answer_is_asked_for_again(programs: Path, session: Session) -> None:
    place = programs
    fit(f"{place}:odd_sizes", "v5e-1", session=session)
    for kept in session.cache.folder.glob("*.json"):
        kept.write_text(kept.read_text()[:100])
    assert not fit(f"{place}:odd_sizes", "v5e-1", session=session).from_cache


def test_the_flops_of_a_convolution_agree_with_a_hand_count(
    programs: Path, session: Session
) -> None:
    found = fit(f"{programs}:conv", "v6e-1", batch_size=8, session=session)
    assert found.flops_per_step == pytest.approx(2 * 8 * 16 * 16 * 128 * 3 * 3 * 64, rel=0.05)


def test_the_turns_of_a_scan_are_counted(programs: Path, session: Session) -> None:
    found = fit(f"{programs}:scan", "v5e-1", batch_size=64, session=session)
    assert found.flops_per_step == pytest.approx(10 * 2 * 64 * 256 * 256, rel=0.05)


@pytest.mark.parametrize(("name", "unit"), [("v5e-1", 128), ("v6e-1", 256)])
def test_the_waste_of_the_matrix_unit_agrees_with_a_hand_count(
    programs: Path, session: Session, name: str, unit: int
) -> None:
    found = fit(f"{programs}:odd_sizes", name, session=session)
    padded = {128: (384, 256), 256: (512, 256)}[unit]
    filled = 300 / padded[0] * 200 / padded[1]
    assert found.mxu_padding_waste_fraction == pytest.approx(1 - filled, rel=0.01)
    assert {(w.size, w.better_size) for w in found.mxu_padding} == {(300, 256), (200, 256)}


def test_a_layer_that_wastes_is_named_as_the_user_named_it(
    programs: Path, session: Session
) -> None:
    found = fit(f"{programs}:dense", "v6e-1", batch_size=64, session=session)
    assert {waste.layer for waste in found.mxu_padding} == {"second"}


def test_a_program_that_does_not_fit_says_what_takes_the_memory(
    programs: Path, session: Session
) -> None:
    found = fit(f"{programs}:greedy", "v5e-1", batch_size=16384, session=session, verify=True)
    assert (found.fits, found.exit_code, found.status) == (False, 1, "attention")
    assert found.hbm_needed_bytes == pytest.approx(32 * GIB, rel=0.01)
    assert found.hbm_available_bytes == pytest.approx(15.75 * GIB)
    assert found.largest_tensors[0].shapes == "f32[16384,256,1024]"
    tried = {one.code: one for one in found.advice}
    assert tried["smaller-batch"].fits
    assert tried["bf16"].hbm_needed_bytes == pytest.approx(16 * GIB, rel=0.01)
    assert tried["bf16"].fits is False
    assert tried["remat"].fits is None
    assert tried["remat"].why_not == "only you can change your own step"


def test_the_largest_batch_agrees_with_its_neighbours_compiled_one_by_one(
    programs: Path, session: Session
) -> None:
    target = f"{programs}:greedy"
    found = fit(target, "v5e-1", max_batch=True, session=session)
    assert found.max_batch is not None
    assert found.max_batch == found.batch_size
    assert found.fits
    step = max(8, (1 << found.max_batch.bit_length() - 1) // 32)
    # 8,064 examples would fill the memory to the last byte and leave none for the program.
    assert found.max_batch < 15.75 * 1024 / 2 <= found.max_batch + step
    # One by one: no answer of the search is used again.
    for kept in session.cache.folder.glob("*.json"):
        kept.unlink()
    neighbours = {
        size: fit(target, "v5e-1", batch_size=size, session=session).fits
        for size in (found.max_batch - step, found.max_batch, found.max_batch + step)
    }
    assert list(neighbours.values()) == [True, True, False]


def test_a_type_for_which_nothing_is_small_enough_has_no_largest_batch(
    tmp_path: Path, session: Session
) -> None:
    place = write_programs(tmp_path)
    place.write_text(place.read_text().replace("(batch, 256, 1024)", "(batch, 65536, 65536)"))
    found = fit(f"{place}:greedy", "v5e-1", max_batch=True, session=session)
    assert (found.fits, found.max_batch, found.batch_size) == (False, None, 1)


def test_a_program_in_a_file_is_compiled_as_it_is(
    programs: Path, session: Session, tmp_path: Path
) -> None:
    jax = pytest.importorskip("jax")
    step = jax.jit(lambda w, x: x @ w)
    shapes = jax.ShapeDtypeStruct((256, 512), "float32"), jax.ShapeDtypeStruct((64, 256), "float32")
    text = step.lower(*shapes).as_text()
    place = tmp_path / "step.mlir"
    place.write_text(text, encoding="utf-8")
    found = fit(str(place), "v5e-4", batch_size=64, session=session)
    assert found.framework == "MLIR"
    assert found.flops_per_step == pytest.approx(2 * 64 * 256 * 512, rel=0.05)
    assert found.per_chip_batch == 16


def test_the_command_keeps_the_contract_and_its_exit_code_tells_the_truth(
    programs: Path, tpuctl
) -> None:
    for batch, code, status in (("8", 0, "ok"), ("16384", 1, "attention")):
        words = ("fit", f"{programs}:greedy", "--type", "v5e-1", "--batch", batch, "--json")
        result = tpuctl(*words)
        assert contract.problems(result.document, "fit", contract.FIT) == []
        assert (result.exit_code, result.document["status"]) == (code, status)
        assert result.data["warnings"] == result.document["warnings"]


def test_create_is_told_what_cannot_fit_until_the_program_changes(
    programs: Path, session: Session
) -> None:
    target = f"{programs}:greedy"

    def warnings(accelerator_type: str) -> list[str]:
        found = warn_before_create(accelerator_type, session.cache)
        return [warning for warning in found if warning.startswith(target)]

    fit(target, "v5e-1", batch_size=16384, session=session)
    [warning] = warnings("v5litepod-1")
    assert "each device needs 32 GiB and has 15.8 GiB" in warning
    assert f"tpuctl fit {target} --accelerator-type v5litepod-1" in warning
    assert warnings("v6e-1") == []
    source = programs.read_text()
    programs.write_text(f"{source}\n")
    try:
        assert warnings("v5litepod-1") == []
    finally:
        programs.write_text(source)
    assert warnings("v5litepod-1")
    fit(target, "v5e-1", batch_size=8, session=session)
    assert warnings("v5litepod-1") == []


def test_a_step_of_ones_own_has_no_other_program_for_inference(
    programs: Path, session: Session
) -> None:
    found = fit(f"{programs}:dense", "v6e-1", batch_size=64, training=False, session=session)
    assert any("--inference has no effect" in warning for warning in found.warnings)


def test_a_function_is_told_the_type_of_its_elements_where_it_asks(
    tmp_path: Path, session: Session
) -> None:
    place = tmp_path / "typed.py"
    place.write_text(TYPED)
    wide, narrow = (
        fit(f"{place}:make", "v5e-1", dtype=dtype, session=session) for dtype in ("f32", "bf16")
    )
    assert narrow.hbm_needed_bytes > 4 * 1024 * 1024
    assert wide.hbm_needed_bytes - narrow.hbm_needed_bytes > 1024 * 1024


@pytest.mark.parametrize(
    ("name", "limit_mib", "core_mib"),
    [("v2-8", 16, 16), ("v4-8", 16, 16), ("v5e-1", 16, 128), ("v5p-8", 16, 64), ("v6e-1", 32, 128),
     ("tpu7x-8", 32, 64)],
)  # fmt: skip
def test_a_pallas_kernel_has_its_blocks_twice_in_vector_memory(
    programs: Path, session: Session, name: str, limit_mib: int, core_mib: int
) -> None:
    found = fit(f"{programs}:small_kernel", name, session=session)
    [kernel] = found.pallas_kernels
    assert kernel == PallasKernel("add_one", 4 * MIB, limit_mib * MIB)
    assert found.vmem_bytes == core_mib * MIB


@pytest.mark.parametrize(
    ("name", "core"), [("v4-8", "16 MiB"), ("v5e-1", "128 MiB"), ("v5p-8", "64 MiB")]
)
def test_a_kernel_over_its_limit_is_explained(
    programs: Path, session: Session, name: str, core: str
) -> None:
    with pytest.raises(CompilerError, match="add_one needs 32 MiB of vector memory") as caught:
        fit(f"{programs}:large_kernel", name, session=session)
    assert f"its limit is 16 MiB, and a core has {core}." in str(caught.value)
    hint = str(caught.value.hint)
    # More than a v4's core has cannot be allowed.
    assert ("vmem_limit_bytes" in hint) == (name != "v4-8")
    assert "smaller blocks" in hint


def test_the_limit_that_the_hint_names_is_enough(programs: Path, session: Session) -> None:
    found = fit(f"{programs}:kernel_with_a_limit", "v5e-1", session=session)
    assert found.pallas_kernels == (PallasKernel("add_one", 32 * MIB, 33 * MIB),)
    with pytest.raises(CompilerError) as caught:
        fit(f"{programs}:large_kernel", "v5e-1", session=session)
    assert f"vmem_limit_bytes={33 * MIB})" in str(caught.value.hint)


def test_a_kernel_larger_than_the_memory_gets_no_higher_limit(
    programs: Path, session: Session
) -> None:
    for name, words in (("v6e-1", "needs 128 MiB"), ("v4-8", "needs more than 64 MiB")):
        with pytest.raises(CompilerError, match=words) as caught:
            fit(f"{programs}:huge_kernel", name, session=session)
        assert "vmem_limit_bytes" not in str(caught.value.hint)


def test_a_type_that_rejects_the_program_does_not_end_the_comparison(
    programs: Path, session: Session
) -> None:
    target = f"{programs}:large_kernel"
    found = fit_types(target, ["v4-8,v5e-1,v6e-1"], cache=session.cache)
    assert isinstance(found, Comparison)
    assert [one.accelerator_type for one in found.types] == ["v6e-1"]
    assert [one.accelerator_type for one in found.rejected] == ["v4-8", "v5litepod-1"]
    assert (found.status, found.exit_code) == ("partial", 0)
    shown = text_of(render_fit(found))
    assert "100 %" in shown
    assert "needs 32 MiB of vector memory (VMEM) on a v4-8" in " ".join(shown.split())
    with pytest.raises(CompilerError):
        fit_types(target, ["v4-8,v5e-1"], cache=session.cache)


def test_the_generations_that_libtpu_knows_are_told(four: Comparison) -> None:
    for found in four.types:
        assert found.compiler.generations[-1] == "tpu7x"
        assert any("which knows v2, v3, v4" in reason for reason in found.reasons)


def test_several_types_are_compared_by_price(four: Comparison) -> None:
    priced = {f.accelerator_type: f.usd_per_million_examples for f in four.types}
    assert isinstance(four.types[0], Fit)
    assert priced["v6e-1"]
    assert four.exit_code == 0
