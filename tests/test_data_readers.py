"""Readers: every record once per epoch, the same again by seed, the rest after a step."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures import fill, psnr, small
from tpuctl.datasets.images.geometry import yuv420_to_rgb
from tpuctl.datasets.presize import presize
from tpuctl.datasets.readers import open_batches, open_tf_dataset
from tpuctl.datasets.reading import ReadOrder, read_records
from tpuctl.errors import InvalidInputError, UsageError

pytestmark = pytest.mark.slow

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple)


def places(order: ReadOrder, epoch: int, skip: int = 0) -> list[tuple[int, int]]:
    turns = order.turns(epoch, skip=skip)
    return [(shard, position) for shard, positions in turns for position in positions]


@given(COUNTS, st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_hosts_share_an_epoch_without_overlap_and_in_equal_steps(
    records: tuple[int, ...], hosts: int, batch: int, epoch: int, shuffle: bool
) -> None:
    try:
        orders = [ReadOrder(records, batch, 7, shuffle, host, hosts) for host in range(hosts)]
    except InvalidInputError:
        return
    read = [places(order, epoch) for order in orders]
    everything = [place for part in read for place in part]
    assert len(set(everything)) == len(everything)
    assert set(everything) <= {(s, p) for s, count in enumerate(records) for p in range(count)}
    steps = {order.steps_per_epoch for order in orders}
    assert {len(part) for part in read} == {batch * steps.pop()}
    assert not steps


@given(COUNTS, st.integers(0, 40), st.integers(0, 3))
def test_skipping_leaves_exactly_the_rest(records: tuple[int, ...], skip: int, epoch: int) -> None:
    order = ReadOrder(records, 1, seed=3)
    assert places(order, epoch, skip) == places(order, epoch)[skip:]


def test_epochs_and_seeds_differ_and_no_shuffle_keeps_the_order() -> None:
    records = (6, 6, 6, 6)
    assert places(ReadOrder(records, 2), 0) != places(ReadOrder(records, 2), 1)
    assert places(ReadOrder(records, 2), 0) != places(ReadOrder(records, 2, seed=1), 0)
    plain = places(ReadOrder(records, 2, shuffle=False), 5)
    assert plain == sorted(plain)
    assert len(plain) == 24


def test_hosts_and_batches_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="Host 2 is not one of 0 to 1"):
        ReadOrder((4,), 1, host=2, hosts=2)
    with pytest.raises(UsageError, match="batch size has to be at least 1, not 0"):
        ReadOrder((4,), 0)
    with pytest.raises(InvalidInputError, match="do not fill one batch of 5"):
        ReadOrder((4,), 5)


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    fill(folder / "photos", 18, classes=3)
    for encode in ("jpeg", "raw", "yuv420", "png", "webp"):
        presize(folder / "photos", folder / encode, small(encode=encode))
    presize(folder / "photos", folder / "wds", small(format="wds"))
    return folder


@pytest.mark.parametrize("name", ["jpeg", "raw", "yuv420", "png", "webp", "wds"])
def test_an_epoch_of_batches_holds_every_record_with_its_label(data_sets: Path, name: str) -> None:
    expected = {record.key: record for record in read_records(data_sets / name)}
    batches = list(open_batches(data_sets / name, 6, steps=3))
    assert [batch.step for batch in batches] == [0, 1, 2]
    assert sorted(key for batch in batches for key in batch.keys) == sorted(expected)
    for batch in batches:
        assert batch.images.shape == (6, 48, 64, 3)
        for key, image, label in zip(batch.keys, batch.images, batch.labels, strict=True):
            assert label == expected[key].label
            assert np.array_equal(image, expected[key].array())


def test_training_goes_on_at_the_step_where_it_stopped(data_sets: Path) -> None:
    whole = list(open_batches(data_sets / "jpeg", 4, seed=5, steps=10))
    for start in (0, 1, 3, 4, 7):
        rest = list(open_batches(data_sets / "jpeg", 4, seed=5, start_step=start, steps=10 - start))
        assert [batch.keys for batch in rest] == [batch.keys for batch in whole[start:]]
        assert [batch.step for batch in rest] == list(range(start, 10))


def test_two_hosts_read_different_records(data_sets: Path) -> None:
    parts = [
        {
            key
            for batch in open_batches(data_sets / "raw", 3, host=host, hosts=2, steps=2)
            for key in batch.keys
        }
        for host in range(2)
    ]
    assert not parts[0] & parts[1]


def test_planes_become_the_same_pictures(data_sets: Path) -> None:
    (planes,) = open_batches(data_sets / "yuv420", 6, planes=True, steps=1)
    (pictures,) = open_batches(data_sets / "yuv420", 6, steps=1)
    assert planes.images.shape == (6, 48 * 64 * 3 // 2)
    rgb = yuv420_to_rgb(planes.images, 48, 64, xp=np)
    assert np.abs(rgb - pictures.images).max() <= 2
    with pytest.raises(UsageError, match="jpeg images, not planes"):
        open_batches(data_sets / "jpeg", 6, planes=True)


def test_pictures_of_different_sizes_cannot_be_stacked(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 3)
    presize(tmp_path / "photos", tmp_path / "out", small(size=(48, 48), mode="short"))
    with pytest.raises(InvalidInputError, match="differ in size"):
        open_batches(tmp_path / "out", 2)


def test_files_that_the_manifest_does_not_list_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 4)
    presize(tmp_path / "photos", tmp_path / "out", small())
    shard = next((tmp_path / "out").glob("*.tfrecord"))
    (tmp_path / "out" / "train-99999-of-99999-0.tfrecord").write_bytes(shard.read_bytes())
    (batch,) = open_batches(tmp_path / "out", 4, steps=1)
    assert len(set(batch.keys)) == 4


def test_a_damaged_or_exchanged_shard_is_one_error_while_reading(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 8)
    presize(tmp_path / "photos", tmp_path / "out", small())
    shards = sorted((tmp_path / "out").glob("*.tfrecord"))
    whole = shards[0].read_bytes()
    shards[0].write_bytes(whole[:-9])
    with pytest.raises(InvalidInputError, match="truncated"):
        list(open_batches(tmp_path / "out", 8, steps=1))
    shards[0].write_bytes(b"")
    with pytest.raises(InvalidInputError, match="holds 0 records, the manifest lists"):
        list(open_batches(tmp_path / "out", 8, steps=1))


def arrays(dataset: Any, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(images.numpy(), labels.numpy()) for images, labels in dataset.take(steps)]


@pytest.mark.tf
@pytest.mark.parametrize("name", ["jpeg", "raw", "yuv420", "png"])
def test_tf_data_reads_what_numpy_reads(data_sets: Path, name: str) -> None:
    expected = {record.key: record for record in read_records(data_sets / name)}
    found = arrays(open_tf_dataset(data_sets / name, 6), 3)
    pictures = np.concatenate([images for images, _ in found])
    labels = np.concatenate([labels for _, labels in found])
    assert pictures.dtype == np.uint8
    assert sorted(labels) == sorted(record.label for record in expected.values())
    for record in expected.values():
        best = max(psnr(record.array(), picture) for picture in pictures)
        assert best > 38


@pytest.mark.tf
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_tf_data_goes_on_at_the_step_where_it_stopped(data_sets: Path, hosts: int) -> None:
    for host in range(hosts):
        options: dict[str, Any] = {"seed": 5, "host": host, "hosts": hosts}
        whole = arrays(open_tf_dataset(data_sets / "raw", 2, **options), 12)
        for start in (1, 4, 10):
            rest = arrays(
                open_tf_dataset(data_sets / "raw", 2, start_step=start, **options), 12 - start
            )
            for (one, _), (two, _) in zip(whole[start:], rest, strict=True):
                assert np.array_equal(one, two)


@pytest.mark.tf
def test_the_order_is_ours_whatever_seed_the_program_sets(data_sets: Path) -> None:
    import tensorflow as tf

    def order() -> list[bytes]:
        batches = arrays(open_tf_dataset(data_sets / "raw", 3, seed=4), 12)
        return [images.tobytes() for images, _ in batches]

    expected = order()
    try:
        for seed in (0, 7):
            tf.random.set_seed(seed)
            assert order() == expected
    finally:
        tf.random.set_seed(None)


@pytest.mark.tf
def test_tf_data_hosts_see_every_record_once_between_them(data_sets: Path) -> None:
    for hosts in (2, 3):
        seen = [
            picture.tobytes()
            for host in range(hosts)
            for images, _ in arrays(
                open_tf_dataset(data_sets / "raw", 1, host=host, hosts=hosts), 18 // hosts - 2
            )
            for picture in images
        ]
        assert len(set(seen)) == len(seen)


@pytest.mark.tf
def test_planes_are_converted_inside_a_tensorflow_model(data_sets: Path) -> None:
    import tensorflow as tf

    (planes, _), *_ = open_tf_dataset(data_sets / "yuv420", 6, planes=True).take(1)
    (pictures, _), *_ = open_tf_dataset(data_sets / "yuv420", 6).take(1)
    convert = tf.function(
        lambda flat: yuv420_to_rgb(flat, 48, 64, xp=tf.experimental.numpy), jit_compile=True
    )
    assert np.abs(convert(planes).numpy() - pictures.numpy().astype(float)).max() <= 1


@pytest.mark.tf
def test_what_tf_data_cannot_read_is_told(data_sets: Path) -> None:
    with pytest.raises(InvalidInputError, match="holds wds shards"):
        open_tf_dataset(data_sets / "wds", 2)
    with pytest.raises(InvalidInputError, match="webp images, which tf"):
        open_tf_dataset(data_sets / "webp", 2)


def test_batches_can_be_left_in_the_middle(data_sets: Path) -> None:
    for _ in islice(open_batches(data_sets / "jpeg", 2), 2):
        pass
