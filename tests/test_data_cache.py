"""`data cache`: whatever a pipeline gives comes back, K times over, killed or not."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpuctl as library
from tests.conftest import Result
from tests.pictures import contents
from tests.test_presize_kill import small_disk
from tests.warm_python import TPUCTL, warm_python
from tpuctl.datasets._elements import flatten, rebuild, structure_of
from tpuctl.datasets.cache import cache, predict_total
from tpuctl.datasets.manifest import WORK
from tpuctl.datasets.models import CacheOptions
from tpuctl.datasets.readers import open_batches, open_cache
from tpuctl.datasets.verify import verify
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    TargetError,
    UsageError,
    WriteError,
)

__all__ = ["small_disk"]

LEAVES = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.booleans(), st.binary(max_size=9),
    st.text(max_size=9), st.lists(st.integers(0, 9), max_size=4).map(np.array),
)  # fmt: skip
ELEMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)

PIPELINE = """
    import numpy as np

    def images(seed=0):
        rng = np.random.default_rng(seed)
        for index in range(40):
            yield {"image": rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), "label": index}

    def breaks(seed=0):
        for index in range(100):
            if seed and index == 70:
                raise RuntimeError("no such image")
            yield np.arange(index)

    def changes():
        yield np.float32(1)
        yield np.float64(1)

    def nothing():
        return []

    def odd():
        return [object()]

    def number():
        return 3

    def large():
        return [np.zeros(20_000, np.uint8)] * 60

    def grows():
        for index in range(200):
            yield np.random.default_rng(index).bytes(100 if index < 64 else 40_000)

    def endless():
        while True:
            yield np.zeros(10_000, np.uint8)

    def needs(path):
        return [path]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline_under_test.py"
    path.write_text(textwrap.dedent(PIPELINE))
    return path


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(equal(one[key], other[str(key)]) for key in one) and len(one) == len(other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


@given(ELEMENTS)
def test_any_nested_element_comes_back(element: Any) -> None:
    structure = json.loads(json.dumps(structure_of(element)))
    assert equal(element, rebuild(flatten(element, structure), structure))


def test_names_that_meet_in_the_middle_stay_apart() -> None:
    element = {"a": {"b": 1, "#shape": 4}, "a/b": 2, "a~1b": 3}
    structure = structure_of(element)
    assert equal(element, rebuild(flatten(element, structure), structure))


def test_every_variant_is_read_in_its_epoch(pipeline: Path, tmp_path: Path) -> None:
    options = CacheOptions(variants=3, shard_bytes=2000)
    result = cache(f"{pipeline}:images", tmp_path / "out", options)
    assert (result.elements, result.variants, result.kept_variants) == (120, 3, 0)
    assert result.warnings == ()
    assert result.shards > 9
    cached = open_cache(tmp_path / "out", seed=4)
    epochs = [list(cached.epoch(epoch)) for epoch in range(4)]
    for epoch in epochs:
        assert sorted(int(element["label"]) for element in epoch) == list(range(40))
    by_label = [{int(e["label"]): e["image"].tobytes() for e in epoch} for epoch in epochs]
    assert by_label[0] == by_label[3]
    assert by_label[0] != by_label[1] != by_label[2]
    expected = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert by_label[1][0] == expected.tobytes()
    again = open_cache(tmp_path / "out", seed=4).epoch(1, skip=30)
    assert [int(e["label"]) for e in again] == [int(e["label"]) for e in epochs[1][30:]]


def test_hosts_share_a_variant(pipeline: Path, tmp_path: Path) -> None:
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(shard_bytes=3000))
    parts = [open_cache(tmp_path / "out", host=host, hosts=2) for host in range(2)]
    read = [[int(e["label"]) for e in part.epoch(0)] for part in parts]
    assert len(read[0]) == len(read[1]) == parts[0].count()
    assert not set(read[0]) & set(read[1])


def test_the_command_predicts_keeps_and_says_how_to_read(
    tpuctl: Callable[..., Result], pipeline: Path, tmp_path: Path
) -> None:
    words = ("data", "cache", f"{pipeline}:images", tmp_path / "out", "--elements", "20")
    plan = tpuctl(*words, "--variants", "2", "--dry-run", "--json")
    assert plan.exit_code == 0
    assert not (tmp_path / "out").exists()
    predicted = plan.data["predicted"]
    assert predicted["elements"] == 40
    result = tpuctl(*words, "--variants", "2", "--json")
    assert result.document["command"] == "data cache"
    assert result.document["status"] == "ok"
    size = result.data["bytes_out"]
    assert predicted["bytes"]["low"] * 0.99 <= size <= predicted["bytes"]["high"] * 1.01
    text = tpuctl(*words, "--variants", "2")
    assert "Nothing to do: 40 elements in 2 variants" in text.words
    assert "open_cache(" in text.words


@given(st.integers(65, 200), st.integers(1, 1000), st.integers(0, 2**32 - 1))
def test_a_prediction_from_a_large_sample_holds_the_truth(
    count: int, largest: int, seed: int
) -> None:
    sizes = np.random.default_rng(seed).integers(1, largest, count, endpoint=True).tolist()
    interval = predict_total(sizes, count)
    assert interval.low == interval.mean == interval.high == sum(sizes)
    partial = predict_total(sizes[:30], count)
    assert partial.low <= partial.mean <= partial.high
    assert partial.low >= sum(sizes[:30])


def test_a_small_sample_is_less_sure_than_a_large_one() -> None:
    def width(count: int) -> float:
        interval = predict_total([1.0, 3.0] * (count // 2), 10_000)
        return interval.high - interval.low

    assert width(2) > width(4) > width(10) > width(20) > width(70)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("nothing", InvalidInputError, "yielded no elements"),
        ("odd", InvalidInputError, "Could not keep element 0 .* is a object"),
        ("changes", InvalidInputError, "Could not keep element 1 .* differ from"),
        ("number", InvalidInputError, "returned a int, which has no elements"),
        ("needs", InvalidInputError, "requires arguments .*: path"),
        ("gone", InvalidInputError, "has no function gone"),
    ],
)
def test_a_pipeline_that_cannot_be_kept_is_one_error(
    pipeline: Path, tmp_path: Path, function: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cache(f"{pipeline}:{function}", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_target_that_is_none_is_told(tmp_path: Path) -> None:
    for target, error in (
        ("nothing", UsageError), (str(tmp_path), UsageError), ("gone.py:f", NotFoundError),
        ("no_such_module_at_all:f", NotFoundError),
    ):  # fmt: skip
        with pytest.raises(error):
            cache(target, tmp_path / "out")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(TargetError, match="ZeroDivisionError"):
        cache(f"{tmp_path}/broken.py:f", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["pipe_beside_helper.py:make", "pipe_beside_helper:make"])
def test_a_pipeline_is_found_as_profile_run_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """With a helper module beside its file; a module also in the current folder."""
    (tmp_path / "helper_of_a_pipeline.py").write_text("COUNT = 5\n")
    (tmp_path / "pipe_beside_helper.py").write_text(
        "from helper_of_a_pipeline import COUNT\ndef make():\n    return list(range(COUNT))\n"
    )
    monkeypatch.chdir(tmp_path)
    if target.endswith(".py:make"):
        monkeypatch.chdir("/")
        target = f"{tmp_path}/{target}"
    kept, profiled = (
        subprocess.run(
            [sys.executable, "-m", "tpuctl", *words, "--json"],
            capture_output=True, text=True, timeout=120,
        )
        for words in (
            ("data", "cache", target, str(tmp_path / "out")),
            ("profile", "run", target, "--steps", "3", "--out", str(tmp_path / "p.tpuprof")),
        )
    )  # fmt: skip
    assert json.loads(kept.stdout)["data"]["elements"] == 5, kept.stderr
    assert json.loads(profiled.stdout)["errors"] == [], profiled.stderr


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("no_such_module_at_all:f", "not_found"), ("gone.py:f", "not_found"),
        ("broken_pipeline.py:f", "target_failed"), ("broken_pipeline:f", "target_failed"),
        ("empty_pipeline.py:f", "invalid"), ("needy_pipeline.py:f", "invalid"),
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_be_loaded_is_the_same_error_as_of_profile_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, code: str
) -> None:
    (tmp_path / "broken_pipeline.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "empty_pipeline.py").write_text("")
    (tmp_path / "needy_pipeline.py").write_text("def f(path): ...\n")
    monkeypatch.chdir(tmp_path)
    for words in (("data", "cache", target, "out"), ("profile", "run", target)):
        ended = warm_python(TPUCTL).run(["-m", "tpuctl", *words, "--json"], os.environ)
        (error,) = json.loads(ended.stdout)["errors"]
        assert (error["code"], ended.returncode) == (code, 1), words


def test_what_was_finished_before_the_pipeline_broke_is_kept(
    pipeline: Path, tmp_path: Path
) -> None:
    target, options = f"{pipeline}:breaks", CacheOptions(variants=2)
    with pytest.raises(TargetError, match="making element 70: RuntimeError: no such image"):
        cache(target, tmp_path / "out", options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert len(list((tmp_path / "out" / WORK).glob("v000-*.shard"))) == 1
    with pytest.raises(NotFoundError, match="not finished"):
        open_cache(tmp_path / "out")


def test_another_pipeline_does_not_replace_it_unasked(pipeline: Path, tmp_path: Path) -> None:
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(shard_bytes=2000))
    before = contents(tmp_path / "out")
    pipeline.write_text(pipeline.read_text().replace("range(40)", "range(41)"))
    with pytest.raises(AlreadyExistsError, match="has changed since"):
        cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(shard_bytes=2000))
    assert contents(tmp_path / "out") == before
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(overwrite=True))
    assert len(contents(tmp_path / "out")) == 2
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_damage_is_found_by_verify_and_while_reading(pipeline: Path, tmp_path: Path) -> None:
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(shard_bytes=2000))
    assert verify(tmp_path / "out", deep=True).damage == ()
    path = next((tmp_path / "out").glob("*.tfrecord"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"x" + whole[101:])
    assert verify(tmp_path / "out").damage
    assert verify(tmp_path / "out", deep=True).damage
    with pytest.raises(InvalidInputError, match="wrong checksum"):
        list(open_cache(tmp_path / "out").epoch(0))
    (failure,) = verify(tmp_path / "out").failures
    assert "tpuctl data cache" in str(failure.hint)
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(shard_bytes=2000))
    assert verify(tmp_path / "out", deep=True).damage == ()
    assert path.read_bytes() == whole


def test_pictures_and_elements_are_not_mistaken_for_one_another(
    pipeline: Path, tmp_path: Path, photos: Path
) -> None:
    from tests.pictures import small
    from tpuctl.datasets.presize import presize

    cache(f"{pipeline}:images", tmp_path / "out")
    with pytest.raises(InvalidInputError, match="not images"):
        open_batches(tmp_path / "out", 2)
    presize(photos, tmp_path / "pictures", small())
    with pytest.raises(InvalidInputError, match="not the elements of a pipeline"):
        open_cache(tmp_path / "pictures")


def test_too_little_space_is_said_before_the_first_byte_of_a_cache(
    small_disk: Path, pipeline: Path
) -> None:
    with pytest.raises(WriteError, match=r"has .* free; 1 variants need .* from a sample of 60"):
        cache(f"{pipeline}:large", small_disk / "out")
    assert not list((small_disk / "out").iterdir())


def written_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.part"))


def test_a_pipeline_that_never_ends_leaves_space_and_nothing_else(
    small_disk: Path, pipeline: Path
) -> None:
    options = CacheOptions(shard_bytes=100_000)
    with pytest.raises(WriteError, match=r"it is unknown how many .*:endless yields") as told:
        cache(f"{pipeline}:endless", small_disk / "out", options)
    assert "--elements" in (told.value.hint or "")
    assert not written_bytes(small_disk)
    kept = cache(f"{pipeline}:endless", small_disk / "out", replace(options, elements=12))
    assert kept.elements == 12


def test_a_disk_that_fills_up_during_a_cache_is_one_error_and_more_space_finishes(
    small_disk: Path, pipeline: Path
) -> None:
    with pytest.raises(WriteError, match="no space left"):
        cache(f"{pipeline}:grows", small_disk / "out")
    assert not (small_disk / "out" / "manifest.json").exists()
    assert not written_bytes(small_disk)
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    cache(f"{pipeline}:grows", small_disk / "out")
    assert verify(small_disk / "out", deep=True).damage == ()


@pytest.mark.tf
def test_a_tf_data_pipeline_with_random_augmentation_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tf_pipeline_under_test.py"
    path.write_text(
        textwrap.dedent("""
        import tensorflow as tf

        def augmented():
            data = tf.data.Dataset.range(10)
            noisy = data.map(lambda x: (tf.random.uniform((4,)), tf.cast(x, tf.bfloat16)))
            return noisy.batch(4)

        def endless():
            return tf.data.Dataset.range(3).repeat()
        """)
    )
    result = cache(f"{path}:augmented", tmp_path / "out", CacheOptions(variants=2))
    assert "takes no argument `seed`" in result.warnings[0]
    cached = open_cache(tmp_path / "out", shuffle=False)
    one, two = (list(cached.epoch(epoch)) for epoch in range(2))
    assert [numbers.shape for numbers, _ in one] == [(4, 4), (4, 4), (2, 4)]
    assert not np.array_equal(one[0][0], two[0][0])
    assert [float(x) for _, xs in one for x in xs] == list(range(10))
    with pytest.raises(UsageError, match="never ends"):
        cache(f"{path}:endless", tmp_path / "endless")
    assert cache(f"{path}:endless", tmp_path / "cut", CacheOptions(elements=7)).elements == 7


def test_show_describes_a_cache_and_draws_its_images(
    tmp_path: Path, tpuctl: Callable[..., Any]
) -> None:
    pytest.importorskip("PIL")
    pipeline = tmp_path / "pictures.py"
    pipeline.write_text(
        "import numpy as np\n"
        "def images(seed=0):\n"
        "    for number in range(5):\n"
        "        pixels = np.full((8, 6 + number % 2, 3), 40 * seed, np.uint8)\n"
        "        yield {'image': pixels, 'label': number}\n"
        "def numbers():\n"
        "    return [(1.5, number) for number in range(5)]\n"
    )
    cache(f"{pipeline}:images", tmp_path / "out", CacheOptions(variants=2))
    sheet = tmp_path / "sheet.png"
    result = tpuctl("data", "show", tmp_path / "out", "--sheet", sheet)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "10 elements of" in words
    assert "in 2 variants, another one in each epoch" in words
    assert "An element: {image: uint8[8, ?, 3], label: int64}." in words
    assert sheet.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sheet.read_bytes() in library.data.contact_sheet(tmp_path / "out")
    cache(f"{pipeline}:numbers", tmp_path / "plain")
    assert "(float64, int64)" in tpuctl("data", "show", tmp_path / "plain").stdout
    refused = tpuctl("data", "show", tmp_path / "plain", "--sheet", sheet)
    assert "have no image" in refused.stderr
