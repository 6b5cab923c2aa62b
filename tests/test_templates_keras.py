"""The Keras templates, trained for real: quality, replicas, interruption, refusals."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.training_runs import different, interrupt, refused, train, weights, write_digits
from tpuctl import data

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, the last 360 as the test."""
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_digits()
    x, y = (bunch.images * 15.9).astype(np.uint8), bunch.target
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x_train=x[:1437], y_train=y[:1437], x_test=x[1437:], y_test=y[1437:])
    return path


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 pictures of the digits 0, 1 and 2, presized to 32x32."""
    return write_digits(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews in the layout of aclImdb, whose words lean one way or the other."""
    rng = np.random.default_rng(0)
    words = {"pos": ["fine", "warm", "moving"], "neg": ["dull", "weak", "noisy"]}
    plain = ["the", "film", "plot", "and", "actor", "scene", "was", "it", "a", "of"]
    folder = tmp_path_factory.mktemp("aclImdb")
    for split, count in (("train", 128), ("test", 32)):
        for kind in ("pos", "neg"):
            (folder / split / kind).mkdir(parents=True)
            for number in range(count):
                text = " ".join(rng.choice(plain + words[kind], 14))
                (folder / split / kind / f"{number}.txt").write_text(f"{text}<br />End.")
    return folder


DIGITS = ("--batch-size", 64, "--learning-rate", 12e-3)


def test_the_mnist_cnn_learns(tmp_path: Path, digits: Path) -> None:
    result = train("mnist-cnn", "tensorflow", tmp_path, "--data", digits, *DIGITS, "--epochs", 8)
    assert result["test_accuracy"] > 0.8
    assert [epoch["steps"] for epoch in result["epochs"]] == [22] * 8


SMALL = ("--data", "fake", "--examples", 112, "--batch-size", 16)


@pytest.mark.parametrize(
    ("template", "backend", "number", "exit_code", "options"),
    [
        ("mnist-cnn", "tensorflow", signal.SIGTERM, 143, SMALL),
        ("fashion-mnist", "jax", signal.SIGKILL, -9, SMALL),
        ("imdb-lstm", "jax", signal.SIGTERM, 143, (*SMALL, "--length", 8)),
        ("images", "tensorflow", signal.SIGKILL, -9, ("--data", "shards", "--batch-size", 16)),
    ],
)
def test_an_interrupted_run_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path,
    shards: Path,
    template: str,
    backend: str,
    number: signal.Signals,
    exit_code: int,
    options: tuple[object, ...],
) -> None:
    options = tuple(shards if word == "shards" else word for word in options)
    # Every third step is in the middle of nearly every epoch.
    options = (*options, "--cpu-devices", 2, "--save-every", 3)
    out = tmp_path / "parts"
    endless = (*options, "--epochs", 10_000)
    assert interrupt(template, backend, out, number, "epoch 1:", *endless) == exit_code
    done = int(next(out.glob("step-*")).stem.partition("-")[2])
    steps = done + 5
    parts = train(template, backend, out, *options, "--steps", steps)
    assert parts["resumed_after_step"] == done > 0
    whole = train(template, backend, tmp_path / "whole", *options, "--steps", steps)
    assert whole["resumed_after_step"] == 0
    assert different(weights(Path(whole["model"])), weights(Path(parts["model"]))) == []
    assert [entry["steps"] for entry in whole["executed"]] == [steps, steps]
    assert [entry["examples"] for entry in whole["executed"]] == [steps * 8] * 2
    assert not list(out.glob("step-*"))


def test_the_images_template_learns_from_shards(tmp_path: Path, shards: Path) -> None:
    options = ("--data", shards, "--batch-size", 24, "--epochs", 5)
    result = train("images", "tensorflow", tmp_path, *options)
    assert (result["task"], len(result["classes"])) == ("classes", 3)
    assert [epoch["steps"] for epoch in result["epochs"]] == [10] * 5
    assert result["epochs"][-1]["accuracy"] > 0.9


PIPELINE = """
import numpy as np

def pictures(seed=0):
    rng = np.random.default_rng(seed)
    for number in range(48):
        noise = rng.integers(0, 60, (16, 16, 3))
        yield (noise + 150 * (number % 2)).astype(np.uint8), number % 2
"""


def test_the_images_template_reads_what_data_cache_kept_another_variant_in_each_epoch(
    tmp_path: Path,
) -> None:
    (tmp_path / "input.py").write_text(PIPELINE)
    kept = tmp_path / "kept"
    data.cache(f"{tmp_path}/input.py:pictures", kept, data.CacheOptions(variants=2))
    options = ("--data", kept, "--batch-size", 16, "--epochs", 6, "--learning-rate", 0.01)
    assert "--classes" in refused("images", "jax", tmp_path / "out", *options)
    result = train("images", "jax", tmp_path / "out", *options, "--classes", 2)
    assert [epoch["steps"] for epoch in result["epochs"]] == [3] * 6
    assert result["epochs"][-1]["accuracy"] > 0.9


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    options = ("--data", "fake", "--examples", 64, "--batch-size", 32, "--steps", 2)
    one = train("fashion-mnist", "jax", tmp_path / "1", *options)
    two = train("fashion-mnist", "jax", tmp_path / "2", *options, "--seed", 1)
    assert different(weights(Path(one["model"])), weights(Path(two["model"])))


def test_fashion_mnist_learns_on_two_replicas_and_both_worked(tmp_path: Path, digits: Path) -> None:
    options = ("--data", digits, "--batch-size", 60, "--learning-rate", 0.05, "--epochs", 6)
    more = ("--cpu-devices", 2, "--trace", 2)
    result = train("fashion-mnist", "tensorflow", tmp_path, *options, *more)
    assert result["test_accuracy"] > 0.85
    assert result["replicas"] == 2
    assert [entry["steps"] for entry in result["executed"]] == [6 * 23] * 2
    assert [entry["examples"] for entry in result["executed"]] == [6 * 23 * 30] * 2
    assert len({entry["device"] for entry in result["executed"]}) == 2
    assert [epoch["steps"] for epoch in result["epochs"]] == [23] * 6
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_imdb_lstm_tells_good_reviews_from_bad_ones(
    tmp_path: Path, reviews: Path, backend: str
) -> None:
    options = ("--data", reviews, "--length", 16, "--vocabulary", 32, "--batch-size", 32)
    more = ("--steps-per-execution", 3, "--learning-rate", 0.02, "--epochs", 6)
    result = train("imdb-lstm", backend, tmp_path, *options, *more)
    assert result["test_accuracy"] > 0.8
    assert result["framework"] == f"keras-{backend}"
    assert [epoch["steps"] for epoch in result["epochs"]] == [8] * 6


def test_what_cannot_begin_names_the_flag_and_the_way_out(tmp_path: Path, digits: Path) -> None:
    def says(*options: object) -> str:
        return refused("mnist-cnn", "jax", tmp_path, *options)

    assert "--dtype: invalid choice: 'float16'" in says("--dtype", "float16")
    assert "unrecognized arguments: --stepps" in says("--stepps", 2)
    assert "there is no file nowhere.npz" in says("--data", "nowhere.npz")
    assert "--data fake" in says("--data", tmp_path / "empty")
    uneven = says("--data", digits, "--batch-size", 63, "--cpu-devices", 2)
    assert "--batch-size 63 does not divide over 2 replicas; --batch-size 64 would" in uneven
    several = refused("mnist-cnn", "tensorflow", tmp_path, "--cpu-devices", 2,
                      "--steps-per-execution", 2)  # fmt: skip
    assert "--steps-per-execution above 1 fails under --strategy mirrored" in several
    wrong = tmp_path / "wrong.npz"
    pictures = np.zeros((20, 8, 8), np.uint8)
    np.savez(wrong, x_train=pictures, y_train=[0] * 5, x_test=pictures, y_test=[0] * 20)
    assert "images of shape (20, 8, 8) and labels of (5,)" in says("--data", wrong)
    wrong.write_bytes(b"junk")
    assert f"--data: could not read {wrong}" in says("--data", wrong)
    assert "--out: " in refused("mnist-cnn", "jax", wrong / "out")
    assert "--seed must be at least 0" in says("--seed", -1)
    assert "KERAS_BACKEND=torch is not for" in refused("mnist-cnn", "torch", tmp_path)
    floats = tmp_path / "floats.npz"
    images, labels = np.zeros((4, 2, 2)), np.zeros(4)
    np.savez(floats, x_train=images, x_test=images, y_train=labels, y_test=labels)
    assert "holds float64 images, not uint8" in says("--data", floats)
