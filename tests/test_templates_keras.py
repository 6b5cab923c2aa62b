"""The Keras templates, trained for real: quality, replicas, interruption, refusals."""

import csv
import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tests.training_runs import (
    different,
    digit_shards,
    refused,
    said,
    train,
    weights,
)
from tpuctl import data

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's 1,797 handwritten digits, the last 360 as the test: .npz and IDX files."""
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_digits()
    x, y = (bunch.images * 15.9).astype(np.uint8), bunch.target
    folder = tmp_path_factory.mktemp("digits")
    arrays = {"x_train": x[:1437], "y_train": y[:1437], "x_test": x[1437:], "y_test": y[1437:]}
    np.savez(folder / "digits.npz", **arrays)
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name, array in zip(names, arrays.values(), strict=True):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        with gzip.open(folder / f"{name}-ubyte.gz", "wb") as file:
            file.write(header + array.astype(np.uint8).tobytes())
    return folder


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 pictures of the digits 0, 1 and 2, presized to 32x32."""
    return digit_shards(tmp_path_factory)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 reviews whose words lean one way or the other; the last 64 are the test."""
    rng = np.random.default_rng(0)
    words = {"positive": ["fine", "warm", "moving"], "negative": ["dull", "weak", "noisy"]}
    plain = ["the", "film", "plot", "and", "actor", "scene", "was", "it", "a", "of"]
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "sentiment"])
        for number in range(320):
            kind = ("positive", "negative")[number % 2]
            rows.writerow([f"{' '.join(rng.choice(plain + words[kind], 14))}<br />End.", kind])
    return path


def test_the_images_template_learns_from_shards_and_records_a_trace(
    tmp_path: Path, shards: Path
) -> None:
    options = ("--data", shards, "--batch-size", 24, "--epochs", 5, "--trace", 2)
    result = train("images", "tensorflow", tmp_path, *options)
    assert (result["task"], len(result["classes"])) == ("classes", 3)
    # A tenth of the 240 is held out.
    assert [epoch["steps"] for epoch in result["epochs"]] == [9] * 5
    assert result["epochs"][-1]["accuracy"] > 0.9
    assert result["test_accuracy"] == result["epochs"][-1]["val_accuracy"] > 0.5
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("template", "backend"),
    [
        pytest.param("images", "tensorflow", marks=pytest.mark.soak),
        ("jax-images", "jax"),
        # imdb-lstm shares all of this with mnist-cnn, word for word: test_templates.py.
        ("mnist-cnn", "tensorflow"),
        pytest.param("mnist-cnn", "jax", marks=pytest.mark.soak),
        pytest.param("imdb-lstm", "jax", marks=pytest.mark.soak),
    ],
)
def test_the_finder_suggests_a_rate_and_leaves_the_run_alone(
    tmp_path: Path, template: str, backend: str
) -> None:
    small = ("--image-size", 16) if "images" in template else ("--examples", 112)
    options = ("--data", "fake", *small, "--batch-size", 16)
    cycle = (*options, "--anneal", "cosine", "--steps")
    result = train(template, backend, tmp_path, *cycle, 20)
    assert result["anneal"] == "cosine"
    told = said(template, backend, tmp_path, *options, "--find-lr")
    found = json.loads((tmp_path / "lr.json").read_text())
    assert 1e-6 < found["suggested"] < max(found["rates"])
    assert f"learning rate: {found['suggested']:.3g}" in told
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")
    # The cycle depends on its length: with another one it is another run.
    assert "cycle of 20 steps" in refused(template, backend, tmp_path, *cycle, 24)
    assert "20 steps are done already" in said(template, backend, tmp_path, *cycle, 20)


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
    assert "--classes" in refused("images", "tensorflow", tmp_path / "out", *options)
    result = train("images", "tensorflow", tmp_path / "out", *options, "--classes", 2)
    assert [epoch["steps"] for epoch in result["epochs"]] == [2] * 6
    assert result["epochs"][-1]["accuracy"] > 0.9


@pytest.mark.soak
def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    options = ("--data", "fake", "--examples", 64, "--batch-size", 32, "--steps", 2)
    one = train("mnist-cnn", "jax", tmp_path / "1", *options)
    two = train("mnist-cnn", "jax", tmp_path / "2", *options, "--seed", 1)
    assert different(weights(Path(one["model"])), weights(Path(two["model"])))


@pytest.mark.soak
def test_fashion_mnist_learns_on_two_replicas_and_both_worked(tmp_path: Path, digits: Path) -> None:
    """What its docstring says of one device: 89 %."""
    result = train("fashion-mnist", "tensorflow", tmp_path, "--data", digits, "--cpu-devices", 2)
    assert result["test_accuracy"] > 0.85
    assert result["replicas"] == 2
    assert [entry["steps"] for entry in result["executed"]] == [10 * 44] * 2
    assert [entry["examples"] for entry in result["executed"]] == [10 * 44 * 16] * 2
    assert len({entry["device"] for entry in result["executed"]}) == 2
    assert [epoch["steps"] for epoch in result["epochs"]] == [44] * 10
    log = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [int(row["epoch"]) for row in log] == list(range(10))


def write_ranks(reviews: Path, path: Path) -> Path:
    """The same reviews as Keras' imdb.npz has them: lists of words by their rank."""
    with reviews.open(newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [row["review"].replace("<br />", " ").lower().split() for row in rows]
    ranks = {word: rank for rank, word in enumerate(dict.fromkeys(itertools.chain(*texts)), 1)}
    x = np.array([[ranks[word] for word in text] for text in texts], dtype=object)
    y = np.array([row["sentiment"] == "positive" for row in rows], np.int64)
    np.savez(path, x_train=x[:256], y_train=y[:256], x_test=x[256:], y_test=y[256:])
    return path


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.soak)])
def test_the_imdb_lstm_tells_good_reviews_from_bad_ones(
    tmp_path: Path, reviews: Path, backend: str
) -> None:
    if backend == "jax":
        reviews = write_ranks(reviews, tmp_path / "imdb.npz")
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
    assert "No such file or directory: 'nowhere.npz'" in says("--data", "nowhere.npz")
    assert "--data fake" in says("--data", tmp_path / "empty")
    uneven = says("--data", digits / "digits.npz", "--batch-size", 63, "--cpu-devices", 2)
    assert "--batch-size must be a multiple of 2 and at most 1437" in uneven
    several = refused("mnist-cnn", "tensorflow", tmp_path, "--cpu-devices", 2,
                      "--steps-per-execution", 2)  # fmt: skip
    assert "--steps-per-execution above 1 fails under --strategy mirrored" in several
    wrong = tmp_path / "wrong.npz"
    pictures = np.zeros((20, 8, 8), np.uint8)
    np.savez(wrong, x_train=pictures, y_train=[0] * 5, x_test=pictures, y_test=[0] * 20)
    assert "images of shape (20, 8, 8) and labels of (5,)" in says("--data", wrong)
    wrong.write_bytes(b"junk")
    assert f"--data {wrong} " in says("--data", wrong)
    assert f"--out {wrong / 'out'}: " in refused("mnist-cnn", "jax", wrong / "out")
    assert "--seed must be at least 0" in says("--seed", -1)
    assert "KERAS_BACKEND=torch is not for" in refused("mnist-cnn", "torch", tmp_path)
    floats = tmp_path / "floats.npz"
    images, labels = np.zeros((4, 2, 2)), np.zeros(4)
    np.savez(floats, x_train=images, x_test=images, y_train=labels, y_test=labels)
    assert "holds float64 images of shape (4, 2, 2)" in says("--data", floats)
