"""Everything between the compiler's answer and ours: hand counts, no compiler."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from tests.fit_cases import compilation, product
from tpuctl.compile import batch_search, hlo, matmuls, program, slices
from tpuctl.compile.estimate import build_fit, roofline
from tpuctl.compile.models import (
    Compilation,
    CompileRequest,
    Kernel,
    PallasKernel,
    Program,
    Target,
)
from tpuctl.compile.program import read_out_of_memory, read_report, read_vmem_overflow
from tpuctl.compile.slices import is_tested, known_generations, load_facts
from tpuctl.errors import InvalidInputError
from tpuctl.units import GIB, MIB

# ---- The matrix unit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "unit", "filled"),
    [
        ((8, 128, 128), 128, 1.0),
        ((8, 128, 100), 128, 100 / 128),
        ((8, 128, 100), 256, 128 / 256 * 100 / 256),
        ((8, 3, 64), 128, 3 / 128 * 64 / 128),
        ((9, 128, 128), 128, 9 / 16),
        ((200, 300, 200), 128, 300 / 384 * 200 / 256),
    ],
)
def test_the_waste_of_one_product_agrees_with_a_hand_count(sizes, unit, filled) -> None:
    padding = matmuls.measure_padding([product(*sizes)], unit)
    assert padding.wasted_fraction == pytest.approx(1 - filled)


def test_waste_is_weighed_by_flops_and_by_how_often_a_product_runs() -> None:
    good, bad = product(8, 128, 128), product(8, 64, 128)
    padding = matmuls.measure_padding([good, replace(bad, times=3)], 128)
    useful, spent = 1 + 3 / 2, 1 + 3
    assert padding.wasted_fraction == pytest.approx(1 - useful / spent)


def test_a_wasteful_dimension_is_named_with_its_layer_and_the_nearest_better_size() -> None:
    [waste] = matmuls.measure_padding([product(8, 128, 100, "head")], 128).layers
    assert (waste.layer, waste.dimension, waste.size) == ("head", "output", 100)
    assert waste.better_size == 128
    assert waste.wasted_fraction == pytest.approx(28 / 128)


@pytest.mark.parametrize(("size", "better"), [(3, 128), (100, 128), (130, 128), (200, 256)])
def test_the_better_size_is_the_nearest_multiple_and_never_nothing(size: int, better: int) -> None:
    assert matmuls.nearest(size, 128) == better


def test_a_program_without_products_wastes_nothing_that_is_known() -> None:
    assert matmuls.measure_padding([], 128).wasted_fraction is None


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        ("functional_1_1/conv2d_4_1/convolution", "conv2d_4"),
        ("sequential/encoder/dense_1/MatMul", "encoder/dense_1"),
        ("head_1", "head_1"),
        ("dot_general at train.py:12", "dot_general at train.py:12"),
    ],
)
def test_a_layer_that_is_known_keeps_the_name_that_it_was_given(layer: str, known: str) -> None:
    layers = ("conv2d_4", "encoder", "dense_1", "head", "head_1")
    one = Program((product(8, 128, 100, layer),), (), 0, 0, 0, ())
    assert program.name_layers(one, layers).matmuls[0].layer == known
    assert program.name_layers(one, ()) == one


# ---- The roofline --------------------------------------------------------------------------------


def work(flops: float, kernels: tuple[Kernel, ...], collective_bytes: int = 0) -> Compilation:
    return compilation(flops, Program((), kernels, 0, collective_bytes, 0, ()))


def test_the_fastest_step_is_the_slower_of_arithmetic_and_memory() -> None:
    chip = slices.find_slice("v5e-1")
    one_ms_of_memory = Kernel(cycles=1, bytes=int(chip.hbm_bytes_per_s / 1e3), times=1)
    line = roofline(work(chip.flops_per_s / 1e3 / 2, (one_ms_of_memory,)), chip)
    assert line.compute_ms == pytest.approx(0.5)
    assert line.memory_ms == pytest.approx(1.0)
    assert line.step_ms.low == pytest.approx(1.0)
    assert line.bound == "memory"


def test_the_slowest_step_runs_one_kernel_after_the_other_and_then_exchanges() -> None:
    chip = slices.find_slice("v5e-4")
    slow_core = Kernel(cycles=int(chip.clock_hz / 1e3), bytes=0, times=2)
    slow_memory = Kernel(cycles=1, bytes=int(chip.hbm_bytes_per_s / 1e3), times=3)
    exchanged = int(chip.ici_bytes_per_s / 1e3)
    line = roofline(work(0.0, (slow_core, slow_memory), exchanged), chip)
    assert line.communication_ms == pytest.approx(2 * 3 / 4)
    assert line.step_ms.high == pytest.approx(2 + 3 + 2 * 3 / 4)


def test_without_estimates_of_cycles_nothing_is_taken_to_overlap() -> None:
    chip = slices.find_slice("v5e-1")
    kernel = Kernel(cycles=0, bytes=int(chip.hbm_bytes_per_s / 1e3), times=1)
    line = roofline(work(chip.flops_per_s / 1e3, (kernel,)), chip)
    assert line.step_ms.high == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "tpu7x-8"])
def test_clock_and_peak_of_a_device_agree(name: str) -> None:
    chip = slices.find_slice(name)
    facts = slices.load_facts("chips.json")["chips"][chip.generation]
    cores = 2 if chip.generation in ("v4", "v5p") else 1
    peak = chip.clock_hz * facts["flops_per_cycle_per_core"] * cores
    assert peak == pytest.approx(chip.flops_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("name", "topology", "devices"),
    [
        ("v2-8", "v2:2x2", 8),
        ("v3-32", "v3:4x4", 32),
        ("v4-32", "v4:2x2x4", 16),
        ("v5litepod-256", "v5e:16x16", 256),
        ("v5p-8", "v5p:2x2x1", 4),
        ("v6e-1", "v6e:1x1", 1),
        ("tpu7x-8", "tpu7x:2x2x1", 8),
    ],
)
def test_a_type_has_the_topology_that_libtpu_calls_it(name, topology, devices) -> None:
    found = slices.find_slice(name)
    assert (found.topology, found.devices) == (topology, devices)


def test_a_type_whose_topology_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="v4-1024: its topology is unknown"):
        slices.find_slice("v4-1024")


# ---- The compiler's program ----------------------------------------------------------------------

LOOP = (Path(__file__).parent / "fit" / "loop.hlo").read_text(encoding="utf-8")


def test_the_body_of_a_loop_counts_as_often_as_it_turns() -> None:
    found = program.summarise(hlo.parse(LOOP))
    [matmul] = found.matmuls
    assert (matmul.rows, matmul.contracted, matmul.columns, matmul.times) == (64, 256, 128, 10)
    assert matmul.flops == 2 * 64 * 256 * 128
    assert found.repeated_flops == 9 * matmul.flops
    assert Kernel(500, 256 * 128 * 4, 10) in found.kernels


def test_a_slice_of_an_array_is_read_and_vector_memory_costs_nothing() -> None:
    copied_in, sliced = 64 * 256 * 4, 10 * 256 * 128 * 4
    assert program.summarise(hlo.parse(LOOP)).hbm_bytes == copied_in + sliced


def test_what_is_exchanged_is_no_memory_traffic() -> None:
    assert program.summarise(hlo.parse(LOOP)).collective_bytes == 1024 * 4


def test_a_loop_that_ends_on_a_condition_is_counted_once_and_said() -> None:
    found = program.summarise(hlo.parse(LOOP.replace("direction=LT", "direction=NE")))
    assert found.loops_of_unknown_length == 1
    assert found.matmuls[0].times == 1


def test_a_layer_without_a_name_is_known_by_its_line() -> None:
    assert program.summarise(hlo.parse(LOOP)).matmuls[0].layer == "dot_general at train.py:12"


def test_a_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry"):
        hlo.parse("garbage\n")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("jit(step)/jvp(head)/dot_general", "head"),
        ("jit(step)/transpose(jvp(block/conv))/conv_general_dilated", "block/conv"),
        ("jit(step)/while/body/closed_call/mlp/dot_general", "mlp"),
        ("gradient_tape/head/MatMul/MatMul", "head/MatMul"),
    ],
)
def test_the_name_of_a_layer_is_what_the_user_called_it(name: str, layer: str) -> None:
    assert matmuls.layer_of(f'metadata={{op_name="{name}"}}') == layer


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("f32[2,3]", 24), ("bf16[5]", 10), ("pred[7]", 7), ("s4[3]", 2), ("c64[2]", 16), ("f32[]", 4)],
)
def test_the_size_of_an_array_follows_from_its_type(text: str, size_bytes: int) -> None:
    [array] = hlo.read_arrays(text)
    assert array.bytes == size_bytes


def test_the_compilers_words_about_memory_are_read() -> None:
    words = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (45.72G) exceeds available HBM (15.75G). HLO module: jit_f."
    )
    assert read_out_of_memory(words) == (int(45.72 * GIB), int(15.75 * GIB))
    assert read_out_of_memory("INVALID_ARGUMENT: something else") is None


def test_the_largest_tensors_come_from_the_compilers_report() -> None:
    report = (
        "Memory Space: alternate (color=1)\n"
        "    9.00GiB(100%);    9.00GiB;   0;   1; f32[9]\n"
        "Memory Space: default (color=0)\nTotal bytes: 49096770048 (45.72GiB)\n"
        "  cumulative_size;       size;       offset; used_by_n_values; shapes_list\n"
        "    3.05GiB(  7%);    3.05GiB;   3277144064;   1; f32[200000,4096]\n"
        "    3.10GiB(  8%);  512.00KiB;   6553944064;   2; 2×bf16[8,4096]\n"
    )
    found = read_report(report)
    assert [tensor.shapes for tensor in found] == ["f32[200000,4096]", "2×bf16[8,4096]"]
    assert found[1].size_bytes == 512 * 1024


# ---- The search ----------------------------------------------------------------------------------


def memory(limit: int, base: float, each: float) -> Callable[[int], batch_search.BatchTrial]:
    def attempt(size: int) -> batch_search.BatchTrial:
        needed = int(1e6 * (base + each * size))
        return batch_search.BatchTrial(
            size, size <= limit, needed, int(1e6 * (base + each * limit))
        )

    return attempt


@given(
    limit=st.integers(0, 2**21),
    base=st.floats(0, 100),
    each=st.floats(0.01, 10),
)
def test_the_largest_batch_fits_and_the_next_does_not(limit, base, each) -> None:
    found = batch_search.find_largest(memory(limit, base, each))
    assert len(found.tried) <= 12
    if found.best is None:
        assert limit == 0
    elif found.next_too_large is None:
        assert found.best.per_device == batch_search.LARGEST_SIZE <= limit
    else:
        step = found.next_too_large.per_device - found.best.per_device
        assert found.best.per_device <= limit < found.next_too_large.per_device
        assert step <= max(8, found.best.per_device // 32)
        assert found.best.per_device % 8 == 0 or found.best.per_device < 8


def test_a_search_that_found_no_limit_says_so() -> None:
    tried = batch_search.find_largest(memory(2**21, 1.0, 0.01))
    question = CompileRequest(
        Target("file", "step.mlir"), slices.find_slice("v5e-4"), 8, dtype=None, training=True
    )
    fit = build_fit(question, compilation(), tried, (), 1)
    assert f"not the limit up to a batch size of {4 * batch_search.LARGEST_SIZE:,}" in " ".join(
        fit.notes
    )
    limited = build_fit(question, compilation(), batch_search.find_largest(memory(64, 1, 1)), (), 1)
    assert "not the limit" not in " ".join(limited.notes)


OVER = (
    "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem "
)
VMEM_TEXTS = {
    OVER + 'while allocating on stack for %small.1 = f32[8]{0} custom-call(%x), custom_call_target='
    '"tpu_custom_call", metadata={op_name="jit(step)/small/pallas_call" stack_frame_id=2}. Scoped '
    "allocation with size 32.00M and limit 16.00M exceeded scoped vmem limit by 16.00M.": (
        PallasKernel("small", 32 * MIB, 16 * MIB), True
    ),
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. "
    "Used 128.00M of 63.94M vmem. Exceeded vmem capacity by 64.06M.\n  1. Size: 64.00M\n"
    '     Operator: op_name="jit(wrapped)/pallas_call"': (
        PallasKernel("pallas_call", 128 * MIB, int(63.94 * MIB)), True
    ),
    "RESOURCE_EXHAUSTED: Allocation (size=33554432) would exceed memory (size=16777216) :: "
    "#allocation3 [shape = 'u8[33554432]{0}', space=vmem, scoped] :: add_one.1": (
        PallasKernel("add_one.1", 32 * MIB, 16 * MIB), False
    ),
    "the total memory required for HLO temporaries (45.72G) exceeds available HBM (15.75G)": None,
    "Used 45.72G of 15.75G hbm": None,
    "Allocation (size=33554432) would exceed memory (size=16777216) :: space=smem": None,
}  # fmt: skip


@pytest.mark.parametrize("text", VMEM_TEXTS)
def test_what_libtpu_says_of_vector_memory_is_read_and_nothing_else(text: str) -> None:
    assert read_vmem_overflow(text) == VMEM_TEXTS[text]


def test_every_tested_pair_is_accepted_and_its_neighbours_are_not() -> None:
    tested = load_facts("tested.json")
    for one in tested["adapter"]:
        oldest, newest = one["libtpu"]
        assert is_tested(one["jax"], one["jax"], oldest)
        assert is_tested(one["jax"], one["jax"], newest)
        assert not is_tested(one["jax"], one["jax"], "0.0.1")
        assert not is_tested(one["jax"], one["jax"], "0.0.999")
        assert not is_tested(one["jax"], "0.9.0", newest)
        assert set(known_generations(newest)) == set(load_facts("chips.json")["chips"])
    assert not is_tested("0.9.2", "0.9.2", "0.0.42.1")
    assert known_generations("0.0.999") == ()


def test_the_extra_installs_only_tested_releases() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(r"^aot = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert lines
    requirements = [Requirement(line) for line in re.findall(r'"(.*)"', lines[1])]
    tested = load_facts("tested.json")["adapter"]
    for python in ("3.11", "3.12", "3.13"):
        here = [
            r for r in requirements if r.marker and r.marker.evaluate({"python_version": python})
        ]
        allowed = {r.name: r.specifier for r in here}
        able = [one for one in tested if one["python"] <= [int(n) for n in python.split(".")]]
        # pip takes the newest of each that is allowed.
        newest = able[-1]
        assert newest["jax"] in allowed["jax"]
        assert newest["jax"] in allowed["jaxlib"]
        assert newest["libtpu"][1] in allowed["libtpu"]
        assert newest["libtpu"][1] + ".1" not in allowed["libtpu"]
        for other in (
            "0.9.2",
            "0.10.1",
            "0.12.1",
            "0.13.0",
            *(["0.11.0"] if python == "3.11" else []),
        ):
            assert other not in allowed["jax"]
            assert other not in allowed["jaxlib"]
        assert "0.0.41" not in allowed["libtpu"]
    assert not [
        r for r in requirements if r.marker and r.marker.evaluate({"python_version": "3.10"})
    ]
