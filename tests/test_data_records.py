import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures import fill
from tpuctl.datasets.formats._tfrecord import RecordWriter, digest_file, frame, read_frames
from tpuctl.datasets.formats.records import (
    DamagedRecordError,
    decode_example,
    decode_leading_features,
    encode_example,
)
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.errors import InvalidInputError, NotFoundError

INT64 = st.integers(-(2**63), 2**63 - 1)
FEATURES = st.dictionaries(st.text(max_size=20), st.binary(max_size=300) | INT64, max_size=8)


@given(FEATURES)
def test_an_example_comes_back_as_it_went(features: dict[str, int | bytes]) -> None:
    assert decode_example(encode_example(features)) == features


@given(st.binary(max_size=200))
def test_random_bytes_are_an_example_or_one_clear_error(data: bytes) -> None:
    try:
        decode_example(data)
    except InvalidInputError as error:
        assert "tf.train.Example" in str(error)  # noqa: PT017 (both outcomes are right)


def test_the_features_before_the_picture_can_be_read_from_the_beginning_alone() -> None:
    whole = encode_example({"key": b"a.jpg", "label": -1, "image": b"x" * 100_000})
    assert decode_leading_features(whole[:200]) == {"key": b"a.jpg", "label": -1}
    assert decode_leading_features(whole)["image"] == b"x" * 100_000
    assert decode_leading_features(b"") == {}


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_records_come_back_in_order(records: list[bytes]) -> None:
    with tempfile.TemporaryFile() as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record[:9], record[9:])
        assert file.read() == b""
        file.seek(0)
        assert [record for _, record in read_frames(file)] == records
        assert writer.digest().bytes == file.tell()


def test_the_digest_while_writing_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for index in range(50):
            writer.write(bytes([index]) * 100_000)
    assert writer.digest() == digest_file(path)


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    whole = frame(b"first") + frame(b"second")
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(DamagedRecordError):
            list(read_frames(io.BytesIO(bytes(damaged))))
    for length in set(range(1, len(whole))) - {len(frame(b"first"))}:
        with pytest.raises(DamagedRecordError):
            list(read_frames(io.BytesIO(whole[:length])))


def test_what_is_no_data_set_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no manifest\.json"):
        list(read_records(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="damaged or not from tpuctl"):
        list(read_records(tmp_path))


@pytest.mark.tf
@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_tensorflow_reads_the_shards(tmp_path: Path, encode: str) -> None:
    import tensorflow as tf

    photos = fill(tmp_path / "photos", 9, classes=3)
    (photos / "class-0" / "é\n.jpg").write_bytes((photos / "class-0" / "000.jpg").read_bytes())
    options = PresizeOptions(size=(48, 64), encode=encode, workers=1)  # type: ignore[arg-type]
    presize(photos, tmp_path / "out", options)
    numbers = ("label", "height", "width", "orig_height", "orig_width", "flags")
    spec = {name: tf.io.FixedLenFeature([], tf.int64) for name in numbers}
    spec |= {name: tf.io.FixedLenFeature([], tf.string) for name in ("image", "key")}
    files = [str(path) for path in sorted((tmp_path / "out").glob("*.tfrecord"))]
    batch = next(iter(tf.data.TFRecordDataset(files).batch(100)))
    parsed = tf.io.parse_example(batch, spec)
    records = list(read_records(tmp_path / "out"))
    assert len(records) == 10
    for index, record in enumerate(records):
        assert parsed["key"][index].numpy() == os.fsencode(record.key)
        assert parsed["image"][index].numpy() == record.image
        for name in numbers:
            assert int(parsed[name][index]) == getattr(record, name)
    image = parsed["image"][0]
    pixels = (
        tf.reshape(tf.io.decode_raw(image, tf.uint8), (48, 64, 3))
        if encode == "raw"
        else tf.io.decode_jpeg(image, dct_method="INTEGER_ACCURATE")
    )
    assert abs(pixels.numpy().astype(int) - records[0].array()).max() <= 2


@pytest.mark.tf
def test_tensorflow_writes_the_same_bytes_and_examples_we_can_read(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "theirs"
    example = tf.train.Example()
    example.features.feature["label"].int64_list.value.append(-1)
    example.features.feature["image"].bytes_list.value.append(b"\xff\xd8")
    example.features.feature["weights"].float_list.value.append(0.5)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(example.SerializeToString())
        writer.write(b"second")
    assert path.read_bytes() == frame(example.SerializeToString()) + frame(b"second")
    assert decode_example(example.SerializeToString()) == {"label": -1, "image": b"\xff\xd8"}
    ours = tf.train.Example.FromString(encode_example({"label": -1, "image": b"\xff\xd8"}))
    assert ours.features.feature["label"].int64_list.value[:] == [-1]
    assert ours.features.feature["image"].bytes_list.value[:] == [b"\xff\xd8"]
