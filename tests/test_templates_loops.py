"""The templates that write their own loop: TensorFlow's strategy.run, and JAX on a mesh."""

import argparse
import ast
import contextlib
import csv
import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training_runs import (
    digit_shards,
    interrupt,
    refused,
    told_to_stop_while_speaking,
    train,
)
from tpuctl.training.catalog import find_template

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.fixture(scope="session")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fisher's 150 flowers as a CSV file with a header."""
    bunch = pytest.importorskip("sklearn.datasets").load_iris()
    path = tmp_path_factory.mktemp("iris") / "iris.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "c", "d", "species"])
        for numbers, target in zip(bunch.data, bunch.target, strict=True):
            rows.writerow([*numbers, bunch.target_names[target]])
    return path


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digit_shards(tmp_path_factory)


def arrays(result: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(result["model"]) as file:
        return {name: file[name] for name in file.files}


def test_gradients_are_reduced_so_that_replicas_train_as_one_device_would(
    tmp_path: Path, iris: Path
) -> None:
    options = ("--data", iris, "--epochs", 10)
    one = train("custom-loop", "tensorflow", tmp_path / "1", *options)
    four = train("custom-loop", "tensorflow", tmp_path / "4", *options, "--cpu-devices", 4)
    assert one["test_accuracy"] > 0.8
    assert (one["replicas"], four["replicas"]) == (1, 4)
    assert four["difference_between_replicas"] == 0
    assert [(e["steps"], e["examples"]) for e in four["executed"]] == [(150, 300)] * 4
    assert len({entry["device"] for entry in four["executed"]}) == 4
    for name, array in arrays(one).items():
        np.testing.assert_allclose(arrays(four)[name], array, atol=1e-4)


# That SIGTERM saves the step it comes in, a test below shows.
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_an_interrupted_loop_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path, iris: Path, number: signal.Signals
) -> None:
    options = ("--data", iris, "--save-every", 1)
    out = tmp_path / "parts"
    interrupt("custom-loop", "tensorflow", out, number, "step 1", *options, "--epochs", 10**6)
    with np.load(out / "checkpoint.npz") as saved:
        steps = int(saved["step"]) + 20
    parts = train("custom-loop", "tensorflow", out, *options, "--steps", steps)
    whole = train("custom-loop", "tensorflow", tmp_path / "whole", *options, "--steps", steps)
    assert (parts["resumed_after_step"], whole["resumed_after_step"]) == (steps - 20, 0)
    for name, array in arrays(whole).items():
        assert np.array_equal(arrays(parts)[name], array)


def test_jax_learns_from_shards_on_a_mesh_and_every_device_worked(
    tmp_path: Path, shards: Path
) -> None:
    manifest = json.loads((shards / "manifest.json").read_text())
    assert len(manifest["shards"]) > 1
    options = ("--data", shards, "--batch-size", 24, "--epochs", 5, "--cpu-devices", 4)
    result = train("jax-images", "jax", tmp_path, *options)
    assert result["epochs"][-1]["accuracy"] > 0.9
    # A tenth of the 240 is held out.
    assert [(e["steps"], e["examples"]) for e in result["executed"]] == [(45, 270)] * 4
    assert [epoch["step"] for epoch in result["epochs"]] == [9, 18, 27, 36, 45]
    assert result["test_accuracy"] == result["epochs"][-1]["val_accuracy"] > 0.8
    assert 0 <= result["input_wait_fraction"] < 1


def test_an_interrupted_mesh_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path, shards: Path
) -> None:
    options = ("--data", shards, "--batch-size", 24, "--cpu-devices", 2, "--save-every", 7)
    out = tmp_path / "parts"
    endless = (*options, "--epochs", 10**6)
    code = interrupt("jax-images", "jax", out, signal.SIGTERM, "step ", *endless)
    assert code == 128 + signal.SIGTERM
    with np.load(out / "checkpoint.npz") as saved:
        steps = int(saved["['step']"]) + 13
    parts = train("jax-images", "jax", out, *options, "--steps", steps)
    whole = train("jax-images", "jax", tmp_path / "whole", *options, "--steps", steps)
    assert (parts["resumed_after_step"], whole["resumed_after_step"]) == (steps - 13, 0)
    for name, array in arrays(whole).items():
        assert np.array_equal(arrays(parts)[name], array)
    given = ("--restore", whole["model"], "--learning-rate", 1e-9, "--steps", 1)
    again = train("jax-images", "jax", tmp_path / "again", *options, *given)
    assert again["test_accuracy"] == pytest.approx(whole["test_accuracy"], abs=0.05)
    missing = refused("jax-images", "jax", tmp_path / "no", *options, "--restore", "no.npz")
    assert "--restore no.npz: " in missing


@pytest.mark.parametrize(
    ("template", "backend"), [("custom-loop", "tensorflow"), ("jax-images", "jax")]
)
def test_a_signal_between_saving_and_leaving_loses_no_step(
    tmp_path: Path, template: str, backend: str
) -> None:
    # Longer than a fast machine needs until it says how a step went for the first time.
    endless = ("--save-every", 10**6, "--epochs", 10**5, "--overwrite")
    told = told_to_stop_while_speaking(template, backend, tmp_path / "out", *endless)
    with np.load(tmp_path / "out" / "checkpoint.npz") as saved:
        [step] = (int(saved[name]) for name in ("step", "['step']") if name in saved.files)
    assert f"stopped after step {step}; the same command without --overwrite resumes" in told


@pytest.mark.parametrize(
    ("losses", "at"),
    [
        ([2.0], 0), ([float("nan")], 0), ([1.0, 2.0, 3.0], 0),
        # It falls fastest in the middle, and is lost right after it was lowest.
        ([3.0, 2.9, 0.1, 0.1, 0.1, float("nan")], 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["images", "jax-images", "torch-xla-images"])
def test_the_finder_suggests_a_rate_whatever_the_losses(
    tmp_path: Path,
    name: str,
    losses: list[float],
    at: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    [suggest] = (
        node
        for node in ast.parse(find_template(name).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "suggest_rate"
    )
    known: dict[str, Any] = {
        each.__name__: each for each in (json, argparse, contextlib, itertools)
    }
    exec(ast.unparse(suggest), known := {**known, "np": np, "Path": Path})
    rates = [1e-6 * 1.15**step for step in range(len(losses))]
    given = (rates, losses) if len(suggest.args.args) == 3 else (losses,)
    known["suggest_rate"](argparse.Namespace(out=tmp_path, batch_size=8), *given)
    rate = json.loads((tmp_path / "lr.json").read_text())["suggested"]
    assert rate == pytest.approx(rates[at])
    assert ("the loss never fell" in capsys.readouterr().out) == (at == 0)


def test_what_cannot_begin_names_the_flag_and_the_way_out(tmp_path: Path, iris: Path) -> None:
    uneven = ("--batch-size", 9, "--cpu-devices", 2)
    assert "--batch-size 8 would" in refused("jax-images", "jax", tmp_path, *uneven)
    assert "--dtype: invalid choice" in refused("jax-images", "jax", tmp_path, "--dtype", "float16")
    assert "--data fake" in refused("jax-images", "jax", tmp_path, "--data", tmp_path)
    assert "--data fake" in refused("custom-loop", "tensorflow", tmp_path, "--data", "no.csv")
    (tmp_path / "manifest.json").write_text("{nope")
    assert "--data: could not read" in refused("jax-images", "jax", tmp_path, "--data", tmp_path)
    np.savez(tmp_path / "checkpoint.npz", settings="batch 32, rate 0.001", step=4)
    kept = (tmp_path / "checkpoint.npz").read_bytes()
    for template, backend in (("jax-images", "jax"), ("custom-loop", "tensorflow")):
        assert "--overwrite" in refused(template, backend, tmp_path, "--data", "fake")
    assert (tmp_path / "checkpoint.npz").read_bytes() == kept
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.npz").write_text("mine")
    for template, backend in (("jax-images", "jax"), ("custom-loop", "tensorflow")):
        told = refused(template, backend, tmp_path / "model", "--data", "fake")
        assert "has a model and no checkpoint: --overwrite?" in told
    assert (tmp_path / "model" / "model.npz").read_text() == "mine"
    words = tmp_path / "words.csv"
    words.write_text("1,x,setosa\n")
    said = refused("custom-loop", "tensorflow", tmp_path, "--data", words)
    assert "words.csv holds a row that is not numbers" in said
