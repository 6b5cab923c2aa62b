"""Sweeps: what is measured, what is refused, and what two machines say of each other."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tpuctl as library
from tests import contract
from tests.machines import diagnosed, environment
from tests.training_runs import warm_launch
from tpuctl.errors import InvalidInputError, NotFoundError, UsageError
from tpuctl.progress import Progress, silent
from tpuctl.reporters import training as report
from tpuctl.training.bench import (
    Bench,
    Row,
    compare,
    draw,
    load,
    parse_batches,
    plan_variants,
    run_bench,
)
from tpuctl.training.plan import find_script

CPU = {"env": {}, "packages": {"tensorflow": "2.21.0", "jax": "0.10.2", "keras": "3.15.1"}}
# Seed A: seconds of an epoch of 60,000 images on a GPU and on a TPU, by batch size.
GPU_S, TPU_S = {256: 6.0, 512: 5.0, 1024: 4.0}, {256: 6.0, 512: 3.0, 1024: 2.0}


def sweep(machine: str, epoch_s: dict[int, float], template: str = "mnist-cnn") -> Bench:
    rows = (
        Row("GPU", "tensorflow", "default", size, 1, 3 * seconds, seconds,
            seconds * size / 60, seconds / 0.06, 60_000 / seconds)
        for size, seconds in epoch_s.items()
    )  # fmt: skip
    return Bench(machine, "2026-11-22", template, 60_000, 4, tuple(rows), None)


def written(path: Path, bench: Bench) -> Path:
    data = {**asdict(bench), "errors": None}
    path.write_text(json.dumps({"schema": "tpuctl/1", "data": data}))
    return path


def test_two_machines_give_the_speed_ups_of_every_batch_and_of_their_best() -> None:
    result = compare(sweep("gpu", GPU_S), sweep("tpu", TPU_S))
    assert [(entry.batch_size, entry.speed_up) for entry in result.speed_ups] == [
        (256, 1.0), (512, 1.67), (1024, 2.0), (None, 2.0),
    ]  # fmt: skip


def test_the_table_has_a_line_for_each_row_and_the_first_epoch_apart() -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(report.render_bench(sweep("gpu", {256: 6.0})))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.splitlines()[-1].split() == [
        "GPU", "tensorflow", "default", "256", "18.00", "6.00", "25.60", "100.0", "10,000",
    ]  # fmt: skip
    assert "mnist-cnn on gpu, 2026-11-22: 60,000 examples per epoch" in text
    assert "the first one compiles" in text


def test_a_sweeps_document_names_the_command_whatever_its_options(tpuctl) -> None:
    document = tpuctl("bench", "--template", "fashion-mnist", "--batch", "x", "--json").document
    assert (document["command"], document["status"]) == ("bench", "error")
    other = tpuctl("bench", "--json", "compare", "no.json", "no.json").document
    assert other["command"] == "bench compare"


@pytest.mark.slow
def test_a_sweep_is_drawn_as_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    drawn = draw(sweep("gpu", GPU_S), tmp_path / "sweep.png")
    assert drawn.plot == str(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_sweeps_without_a_common_batch_are_compared_at_their_best() -> None:
    result = compare(sweep("gpu", {256: 6.0}), sweep("tpu", {1024: 2.0}))
    assert [(entry.batch_size, entry.speed_up) for entry in result.speed_ups] == [(None, 3.0)]


def test_sweeps_of_different_templates_are_not_compared() -> None:
    with pytest.raises(InvalidInputError, match="mnist-cnn and imdb-lstm"):
        compare(sweep("gpu", GPU_S), sweep("tpu", TPU_S, template="imdb-lstm"))


def test_a_sweep_is_read_back_as_it_was_printed(tmp_path: Path, tpuctl) -> None:
    one = written(tmp_path / "a.json", sweep("gpu", GPU_S))
    two = written(tmp_path / "b.json", sweep("tpu", TPU_S))
    assert load(one).rows == sweep("gpu", GPU_S).rows
    result = tpuctl("bench", "compare", one, two)
    assert result.exit_code == 0
    assert "2.00 x" in result.stdout
    assert "second: tpu, 2026-11-22\n" in result.stdout
    data = tpuctl("bench", "compare", one, two, "--json").data
    assert data["speed_ups"][2]["speed_up"] == 2.0


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"data": {"rows": []}}', '{"data": {"rows": [{"device": 1}]}}']
)
def test_what_is_no_sweep_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"Could not read|is not a bench result"):
        load(path)
    with pytest.raises(NotFoundError):
        load(tmp_path / "none.json")


def test_a_comparison_names_a_column_for_each_machine_device_and_framework() -> None:
    here, there = sweep("colab", GPU_S), sweep("kaggle", {256: 2.0, 2048: 1.0})
    rows = [replace(row, us_per_example_low=30.0, us_per_example_high=40.0) for row in there.rows]
    rows.append(replace(rows[0], device="CPU", framework="jax", strategy="cpu"))
    result = compare(here, replace(there, rows=tuple(rows)))
    assert [(c.machine, c.device, c.framework, len(c.rows)) for c in result.columns] == [
        ("colab, 2026-11-22", "GPU", "tensorflow", 3),
        ("kaggle, 2026-11-22", "GPU", "tensorflow", 2),
        ("kaggle, 2026-11-22", "CPU", "jax", 1),
    ]
    console = Console(width=120, file=io.StringIO())
    console.print(report.render_bench_comparison(result))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "33.3 (30.0 to 40.0)" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "colab, 2026-11-22 kaggle, 2026-11-22 kaggle, 2026-11-22" in lines
    assert "batch GPU, tensorflow default GPU, tensorflow default CPU, jax cpu" in lines
    assert lines[-1].startswith("2,048 - 16.7")


def test_rows_of_few_steps_are_named() -> None:
    bench = sweep("gpu", GPU_S)
    assert bench.warnings == ()
    few = replace(bench, rows=(*bench.rows[:1], replace(bench.rows[1], steps=9)))
    assert "Fewer than 10 steps with a batch of 512" in few.warnings[0]


@pytest.mark.slow
def test_a_plot_begins_at_zero_and_names_machine_date_and_batches() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    from tpuctl.training._plot import draw_curves, plan_plot

    (axes,) = draw_curves(**plan_plot(sweep("colab", GPU_S))).axes
    assert axes.get_ylim()[0] == 0
    assert axes.get_title("left") == "colab, 2026-11-22"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["256", "512", "1,024"]


def test_a_sweep_with_an_impossible_time_is_refused(tmp_path: Path) -> None:
    bench = sweep("gpu", GPU_S)
    bad = replace(bench, rows=(replace(bench.rows[0], us_per_example=0.0),))
    with pytest.raises(InvalidInputError):
        load(written(tmp_path / "a.json", bad))


def variants(document: dict[str, Any], **options: Any) -> list[tuple[str, str, str]]:
    found = plan_variants(diagnosed(document), find_script("mnist-cnn"), **options)
    return [(variant.device, variant.framework, variant.strategy) for variant in found]


def test_every_kind_of_device_is_measured_with_all_replicas_and_with_one() -> None:
    assert variants(CPU) == [("CPU", "tensorflow", "default")]
    assert variants(CPU, framework="jax", cpu_devices=2) == [
        ("CPU", "jax", "cpu"),
        ("CPU split in 2", "jax", "mesh"),
    ]
    gpus = variants(environment("kaggle_gpu_t4x2"), framework="tensorflow")
    assert [strategy for _, _, strategy in gpus] == ["mirrored", "default", "default"]
    assert [device.split()[-1] for device, _, _ in gpus] == ["x2", "x1", "CPU"]
    tpu = variants(environment("kaggle_tpu_v5e_8"), framework="jax")
    assert tpu[0][2] == "mesh"


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "256,-1"])
def test_a_list_of_batches_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--batch"):
        parse_batches(text)
    assert parse_batches("512,256,512") == (512, 256)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 1}, "--epochs 1 is too few"),
        ({"batch_sizes": (8192,)}, "--batch 8192 is larger than the epoch of 4096"),
        ({"template": "custom-loop"}, "has no flag --examples"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_it_begins(
    options: dict[str, Any], says: str
) -> None:
    given = {"template": "fashion-mnist", "batch_sizes": (64,), "epochs": 2, **options}
    with pytest.raises(UsageError, match=says):
        run_bench(diagnosed(CPU), on_progress=silent, **given)


@pytest.mark.tf
@pytest.mark.slow
def test_a_sweep_trains_and_keeps_the_contract(
    tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_launch(monkeypatch, "jax")
    options = ("--template", "fashion-mnist", "--batch", "32,64", "--epochs", "2")
    result = tpuctl("bench", *options, "--examples", "128", "--framework", "jax", "--json")
    assert contract.problems(result.document, "bench", contract.BENCH) == []
    rows = result.data["rows"]
    assert [row["batch_size"] for row in rows] == [32, 64]
    for row in rows:
        assert row["us_per_example"] == pytest.approx(1e6 / row["examples_per_s"], rel=0.01)
        assert row["first_epoch_s"] > 0
    path = tmp_path / "sweep.json"
    path.write_text(result.stdout)
    assert {entry.speed_up for entry in compare(load(path), load(path)).speed_ups} == {1.0}


@pytest.mark.tf
@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_after_one(progress: Progress) -> None:
        if progress.done == 1:
            raise KeyboardInterrupt

    warm_launch(monkeypatch, "jax")
    result = library.bench(
        batch_sizes="32,64", epochs=2, examples=128, framework="jax", on_progress=stop_after_one
    )
    assert [row.batch_size for row in result.rows] == [32]
    assert (result.status, result.exit_code) == ("partial", 130)
    assert "1 of 2 trainings" in str(result.failures[0])
