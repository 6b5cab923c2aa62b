"""The Keras templates stopped, resumed, and begun with the weights of others."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.training_runs import (
    different,
    digit_shards,
    interrupt,
    refused,
    said,
    train,
    weights,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 pictures of the digits 0, 1 and 2, presized to 32x32."""
    return digit_shards(tmp_path_factory)


# imdb-lstm shares all of this with mnist-cnn, word for word: test_templates.py.
SMALL = ("--data", "fake", "--examples", 112, "--batch-size", 16)
SHARDS = ("--data", "shards", "--batch-size", 16)


@pytest.mark.parametrize(
    ("template", "backend", "number", "exit_code", "devices", "options"),
    [
        ("mnist-cnn", "jax", signal.SIGTERM, 143, 2, SMALL),
        ("images", "tensorflow", signal.SIGKILL, -9, 1, SHARDS),
        pytest.param(
            "mnist-cnn", "tensorflow", signal.SIGTERM, 143, 2, SMALL, marks=pytest.mark.soak
        ),
        pytest.param("images", "tensorflow", signal.SIGKILL, -9, 2, SHARDS, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(900)  # several trainings, beside whatever else runs
def test_an_interrupted_run_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path,
    shards: Path,
    template: str,
    backend: str,
    number: signal.Signals,
    exit_code: int,
    devices: int,
    options: tuple[object, ...],
) -> None:
    options = tuple(shards if word == "shards" else word for word in options)
    # Every third step is in the middle of nearly every epoch.
    options = (*options, "--cpu-devices", devices, "--save-every", 3)
    out = tmp_path / "parts"
    endless = (*options, "--epochs", 10_000)
    assert interrupt(template, backend, out, number, "Epoch 2", *endless) == exit_code
    with np.load(out / "checkpoint.npz") as saved:
        done = int(saved["step"])
    steps = done + 5
    parts = train(template, backend, out, *options, "--steps", steps)
    assert parts["resumed_after_step"] == done > 0
    whole = train(template, backend, tmp_path / "whole", *options, "--steps", steps)
    assert whole["resumed_after_step"] == 0
    assert different(weights(Path(whole["model"])), weights(Path(parts["model"]))) == []
    assert [entry["steps"] for entry in whole["executed"]] == [steps] * devices
    assert [entry["examples"] for entry in whole["executed"]] == [steps * 16 // devices] * devices
    # A finished run that is asked for more resumes from its end, on any number of devices; the next
    # test asks mnist-cnn, and `make soak` images.
    if (template, devices) == ("images", 2):
        others = (*options, "--cpu-devices", 3 - devices, "--steps", steps + 2)
        more = train(template, backend, out, *others)
        assert (more["resumed_after_step"], more["steps"]) == (steps, steps + 2)
        assert more["replicas"] == 3 - devices


@pytest.mark.parametrize("template", ["mnist-cnn", pytest.param("images", marks=pytest.mark.soak)])
def test_a_run_of_other_mathematics_is_refused_and_nothing_is_removed(
    tmp_path: Path, template: str
) -> None:
    small = ("--image-size", 16) if template == "images" else ("--examples", 64)
    options = ("--data", "fake", "--batch-size", 16, *small)
    first = train(template, "jax", tmp_path, *options, "--steps", 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    told = refused(template, "jax", tmp_path, *options, "--steps", 4, "--learning-rate", 0.5)
    assert "--out has a run with rate 0.001, not rate 0.5: --overwrite?" in told
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "2 steps are done already" in said(template, "jax", tmp_path, *options, "--steps", 2)
    if template == "images":  # as for other images of the same number
        told = refused(template, "jax", tmp_path, *options, "--image-size", 24)
        assert "data fake 16, not data fake 24" in told
    # Two devices instead of one compute the same: the run goes on.
    more = train(template, "jax", tmp_path, *options, "--steps", 3, "--cpu-devices", 2)
    assert (more["resumed_after_step"], more["replicas"]) == (2, 2)
    again = (*options, "--steps", 2, "--learning-rate", 0.5, "--overwrite")
    assert train(template, "jax", tmp_path, *again)["resumed_after_step"] == 0
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
    assert first["learning_rate"] == 1e-3
    (tmp_path / "checkpoint.npz").unlink()
    told = refused(template, "jax", tmp_path, *options, "--steps", 2)
    assert "has a model and no checkpoint: --overwrite?" in told


def test_a_run_is_refused_if_only_the_labels_differ(tmp_path: Path) -> None:
    x, y = np.zeros((32, 8, 8), np.uint8), np.arange(32) % 2
    for name, labels in (("one", y), ("two", 1 - y)):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
        rows = [f"1,2,{label}" for label in labels]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    options = ("--batch-size", 16, "--steps", 2)
    for template, backend, ending in (
        ("mnist-cnn", "jax", "npz"),
        ("custom-loop", "tensorflow", "csv"),
    ):
        out = tmp_path / template
        train(template, backend, out, "--data", tmp_path / f"one.{ending}", *options)
        told = refused(template, backend, out, "--data", tmp_path / f"two.{ending}", *options)
        assert "--out h" in told
        assert "--overwrite" in told


@pytest.mark.parametrize(
    ("template", "backend", "model"),
    [("mnist-cnn", "jax", "model.keras"), ("custom-loop", "tensorflow", "model.npz")],
)
def test_another_run_begins_with_the_weights_that_are_given(
    tmp_path: Path, template: str, backend: str, model: str
) -> None:
    options = (
        "--data",
        "fake",
        "--batch-size",
        8,
        *(("--examples", 64) if model[-1] == "s" else ()),
    )
    first = train(template, backend, tmp_path / "1", *options, "--epochs", 12)
    given = ("--restore", tmp_path / "1" / model, "--learning-rate", 1e-6)
    again = train(template, backend, tmp_path / "2", *options, *given, "--epochs", 1)
    assert again["resumed_after_step"] == 0
    # Its optimizer begins anew, and so does what each device counts.
    assert [count["steps"] for count in again["executed"]] == [again["steps"]]
    assert again["test_accuracy"] == pytest.approx(first["test_accuracy"], abs=0.15)
    assert [set(epoch) >= {"epoch", "val_accuracy"} for epoch in first["epochs"]] == [True] * 12
    assert len((tmp_path / "1" / "log.csv").read_text().splitlines()) >= 12
    missing = refused(template, backend, tmp_path / "3", *options, "--restore", "no.keras")
    assert "--restore no.keras: " in missing
