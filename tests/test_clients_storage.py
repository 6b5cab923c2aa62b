"""Clients of Cloud Storage, unmodified, with the emulator (make test-clients)."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.clients import Target, emulator_for_clients, need

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

MIB = 1 << 20


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with emulator_for_clients(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(12 * MIB + 1))
    return path


def test_google_cloud_storage(target: Target) -> None:
    storage = pytest.importorskip("google.cloud.storage")
    client = storage.Client.create_anonymous_client()
    bucket = client.create_bucket("gcs", project="p")
    blob = bucket.blob("a/x")
    blob.upload_from_string(b"hello")
    blob.metadata = {"a": "b"}
    blob.patch()
    blob.metadata = {"c": "d"}
    blob.update()
    assert bucket.get_blob("a/x").metadata == {"c": "d"}
    copy = bucket.copy_blob(blob, bucket, "y")
    assert bucket.rename_blob(copy, "z").download_as_bytes() == b"hello"
    bucket.move_blob(bucket.blob("z"), "w")
    bucket.blob("w").update_storage_class("NEARLINE")
    assert [found.name for found in client.list_blobs("gcs", match_glob="**x")] == ["a/x"]
    with client.batch():
        blob.delete()
        bucket.blob("w").delete()
    assert list(client.list_blobs("gcs")) == []
    bucket.labels = {"team": "a"}
    bucket.patch()
    assert client.get_bucket("gcs").labels == {"team": "a"}
    bucket.delete()


def test_the_transfer_manager_of_google_cloud_storage(
    target: Target, big: Path, tmp_path: Path
) -> None:
    storage = pytest.importorskip("google.cloud.storage")
    from google.cloud.storage import transfer_manager

    bucket = storage.Client.create_anonymous_client().bucket("photos")
    threads = {"worker_type": transfer_manager.THREAD}
    blob = bucket.blob("tm/parts")
    transfer_manager.upload_chunks_concurrently(str(big), blob, chunk_size=5 * MIB, **threads)
    back = tmp_path / "back"
    transfer_manager.download_chunks_concurrently(blob, str(back), chunk_size=MIB, **threads)
    assert back.read_bytes() == big.read_bytes()
    sent = transfer_manager.upload_many_from_filenames(
        bucket, ["big"], source_directory=str(tmp_path), blob_name_prefix="tm/", **threads
    )
    got = transfer_manager.download_many_to_path(
        bucket, ["tm/big"], destination_directory=str(tmp_path), create_directories=True, **threads
    )
    assert (sent, got) == ([None], [None])


def test_gcsfs(target: Target, big: Path) -> None:
    gcsfs = pytest.importorskip("gcsfs")
    files = gcsfs.GCSFileSystem(token="anon", skip_instance_cache=True)
    files.pipe("photos/fs/a", b"abc\r")
    assert files.cat("photos/fs/a") == b"abc\r"
    with files.open("photos/fs/big", "wb", block_size=5 * MIB) as file:
        file.write(big.read_bytes())
    assert files.cat("photos/fs/big") == big.read_bytes()
    files.cp("photos/fs/a", "photos/fs/b")
    files.mv("photos/fs/b", "photos/fs/c")
    assert files.find("photos/fs") == ["photos/fs/a", "photos/fs/big", "photos/fs/c"]
    files.rm("photos/fs", recursive=True)
    assert not files.exists("photos/fs/a")


def test_an_orbax_checkpoint_is_saved_to_and_restored_from_a_bucket(target: Target) -> None:
    pytest.importorskip("gcsfs")
    checkpoint = pytest.importorskip("orbax.checkpoint")
    jax = pytest.importorskip("jax")
    tree = {"w": jax.numpy.arange(1000.0).reshape(10, 100), "b": jax.numpy.ones(3)}
    options = checkpoint.CheckpointManagerOptions(max_to_keep=2)
    with checkpoint.CheckpointManager("gs://photos/run", options=options) as manager:
        for step in range(4):
            manager.save(step, args=checkpoint.args.StandardSave(tree))
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [2, 3]
        found = manager.restore(3, args=checkpoint.args.StandardRestore(tree))
    assert (found["w"] == tree["w"]).all()


def test_obstore(target: Target, big: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from obstore.store import GCSStore

    key = {"gcs_base_url": target.http, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    options: Any = {"allow_http": True}
    store = GCSStore("photos", service_account_key=json.dumps(key), client_options=options)
    obstore.put(store, "ob/a b", b"abc")
    assert bytes(obstore.get(store, "ob/a b").bytes()) == b"abc"
    obstore.put(store, "ob/big", big.read_bytes())
    assert bytes(obstore.get_range(store, "ob/big", start=5, length=10)) == big.read_bytes()[5:15]
    obstore.copy(store, "ob/a b", "ob/c")
    obstore.rename(store, "ob/c", "ob/d")
    with pytest.raises(Exception, match="exists"):
        obstore.put(store, "ob/d", b"", mode="create")
    names = sorted(item["path"] for item in obstore.list(store, "ob").collect())
    assert names == ["ob/a b", "ob/big", "ob/d"]
    obstore.delete(store, names)
    assert obstore.list(store, "ob").collect() == []


def test_pyarrow(target: Target) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    place = target.http.removeprefix("http://")
    files = fs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=place)
    files.create_dir("photos/arrow")
    with files.open_output_stream("photos/arrow/a") as file:
        file.write(b"x" * MIB)
    with files.open_input_file("photos/arrow/a") as file:
        assert file.read() == b"x" * MIB
    files.copy_file("photos/arrow/a", "photos/arrow/b")
    files.move("photos/arrow/b", "photos/arrow/c")
    found = files.get_file_info(fs.FileSelector("photos/arrow", recursive=True))
    assert [item.base_name for item in found] == ["a", "c"]
    files.delete_dir("photos/arrow")


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_tensorstore(target: Target, driver: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": driver, "kvstore": f"gs://photos/{driver}/"}
    shape: dict[str, Any] = {"create": True, "dtype": tensorstore.int32, "shape": [100, 100]}
    tensorstore.open(spec, **shape).result()[3, 4] = 304
    assert int(tensorstore.open(spec).result()[3, 4].read().result()) == 304


def test_zarr(target: Target) -> None:
    """Over gcsfs."""
    pytest.importorskip("gcsfs")
    zarr = pytest.importorskip("zarr")
    place = {"storage_options": {"token": "anon", "skip_instance_cache": True}}
    group = zarr.open_group("gs://photos/group.zarr", mode="w", **place)
    array = group.create_array("a", shape=(100, 100), chunks=(30, 100), dtype="int32")
    array[3:60] = 304
    found = zarr.open_group("gs://photos/group.zarr", mode="r", **place)
    assert list(found.array_keys()) == ["a"]
    assert found["a"][:].sum() == 57 * 100 * 304


def test_hugging_face_datasets(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gcsfs."""
    pytest.importorskip("gcsfs")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    place = {"storage_options": {"token": "anon", "skip_instance_cache": True}}
    made = datasets.Dataset.from_dict({"n": list(range(1000))})
    made.save_to_disk("gs://photos/hf", num_shards=2, **place)
    found = datasets.load_from_disk("gs://photos/hf", **place)
    assert sum(found["n"]) == 499_500
    made.to_parquet("gs://photos/hf.parquet", **place)
    files = {"data_files": "gs://photos/hf.parquet", "split": "train", "streaming": True}
    assert len(list(datasets.load_dataset("parquet", **files, **place))) == 1000


def test_smart_open(target: Target, big: Path) -> None:
    storage = pytest.importorskip("google.cloud.storage")
    smart_open = pytest.importorskip("smart_open")
    options = {"client": storage.Client.create_anonymous_client(), "min_part_size": 5 * MIB}
    with smart_open.open("gs://photos/so/big", "wb", transport_params=options) as file:
        file.write(big.read_bytes())
    with smart_open.open("gs://photos/so/big", "rb", transport_params=options) as file:
        file.seek(5)
        assert file.read() == big.read_bytes()[5:]


def test_cloudpathlib(target: Target) -> None:
    cloudpathlib = pytest.importorskip("cloudpathlib")
    storage = pytest.importorskip("google.cloud.storage")
    client = cloudpathlib.GSClient(storage_client=storage.Client.create_anonymous_client())
    folder = client.CloudPath("gs://photos/cp")
    (folder / "d" / "a").write_text("abc")
    (folder / "d" / "a").rename(folder / "e")
    assert [path.name for path in folder.rglob("*")] == ["e"]
    assert (folder / "e").read_text() == "abc"
    folder.rmtree()
    assert not folder.exists()


def test_polars_and_delta_lake(target: Target) -> None:
    """Both use Rust's object_store."""
    polars, deltalake = pytest.importorskip("polars"), pytest.importorskip("deltalake")
    key = {"gcs_base_url": target.http, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    place = {"google_service_account_key": json.dumps(key), "allow_http": "true"}
    frame = polars.DataFrame({"n": range(1000)})
    frame.write_parquet("gs://photos/polars/a.parquet", storage_options=place)
    found = polars.scan_parquet("gs://photos/polars/*.parquet", storage_options=place)
    assert found.filter(polars.col("n") < 10).collect().height == 10
    for _ in range(2):
        deltalake.write_deltalake("gs://photos/delta", frame, mode="append", storage_options=place)
    table = deltalake.DeltaTable("gs://photos/delta", storage_options=place)
    table.delete("n < 10")
    table.create_checkpoint()
    assert (table.version(), table.count()) == (2, 1980)


def test_gcloud_aio(target: Target, big: Path) -> None:
    aio = pytest.importorskip("gcloud.aio.storage")

    async def use() -> None:
        async with aio.Storage() as store:
            data = big.read_bytes()
            await store.upload("photos", "aio/a b", b"abc", metadata={"metadata": {"x": "y"}})
            await store.upload("photos", "aio/big", data, force_resumable_upload=True)
            assert await store.download("photos", "aio/big") == data
            assert (await store.download_metadata("photos", "aio/a b"))["metadata"] == {"x": "y"}
            found = await store.list_objects("photos", params={"prefix": "aio/"})
            for item in found["items"]:
                await store.delete("photos", item["name"])

    asyncio.run(use())


def test_boto3(target: Target, big: Path, tmp_path: Path) -> None:
    """Cloud Storage understands clients of S3."""
    boto3, botocore = pytest.importorskip("boto3"), pytest.importorskip("botocore.config")
    config = botocore.Config(
        request_checksum_calculation="when_required", s3={"addressing_style": "path"}
    )
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "auto"}
    client = boto3.client("s3", endpoint_url=target.http, config=config, **keys)
    client.upload_file(str(big), "photos", "s3/big", ExtraArgs={"Metadata": {"a": "b"}})
    source = {"Bucket": "photos", "Key": "s3/big"}
    client.copy_object(Bucket="photos", Key="s3/copy", CopySource=source)
    assert client.head_object(Bucket="photos", Key="s3/copy")["Metadata"] == {"a": "b"}
    client.download_file("photos", "s3/copy", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    for method in ("list_objects", "list_objects_v2"):
        pages = client.get_paginator(method).paginate(
            Bucket="photos", Prefix="s3/", PaginationConfig={"PageSize": 1}
        )
        assert [item["Key"] for item in pages.search("Contents")] == ["s3/big", "s3/copy"]


def test_beam(target: Target, tmp_path: Path) -> None:
    """`gs://` of Apache Beam: it writes under other names, copies, and deletes in a batch."""
    beam = pytest.importorskip("apache_beam")
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    out = "gs://photos/beam/out"
    options = PipelineOptions(["--runner=DirectRunner", "--no_auth", f"--temp_location={out}-tmp"])
    with beam.Pipeline(options=options) as pipeline:
        lines = pipeline | beam.Create([f"line {number}" for number in range(100)])
        lines | beam.io.WriteToText(out, num_shards=2)
    (match,) = FileSystems.match([f"{out}-*"])
    assert [item.path for item in match.metadata_list] == [
        f"{out}-0000{number}-of-00002" for number in range(2)
    ]
    with beam.Pipeline(options=options) as pipeline:
        lines = pipeline | beam.io.ReadFromText(f"{out}-*")
        count = lines | beam.combiners.Count.Globally()
        count | beam.Map(lambda number: (tmp_path / "count").write_text(str(number)))
    assert (tmp_path / "count").read_text() == "100"


def test_rclone(target: Target, big: Path, tmp_path: Path) -> None:
    need("rclone")
    token = {"access_token": target.token, "token_type": "Bearer", "expiry": "2099-01-01T00:00:00Z"}
    remote = f":gcs,endpoint='{target.place}/storage/v1/',no_check_bucket:photos/rclone"

    def rclone(*arguments: str) -> str:
        setting = f"RCLONE_GCS_TOKEN={json.dumps(token)}"
        fast = ("--retries=1", "--low-level-retries=1", "--config=/dev/null")
        return target.run("env", setting, "rclone", *arguments, *fast)

    folder = str(big.parent)
    rclone("copy", folder, remote)
    rclone("check", folder, remote)
    rclone("copyto", f"{remote}/big", f"{remote}/other")
    rclone("moveto", f"{remote}/other", f"{remote}/third")
    assert {"big", "third"} <= set(rclone("lsf", remote).split())
    rclone("copy", remote, str(tmp_path / "back"))
    assert (tmp_path / "back" / "third").read_bytes() == big.read_bytes()
    rclone("delete", remote)


def test_gcloud_storage(target: Target, big: Path, tmp_path: Path) -> None:
    need("gcloud")

    def gcloud(*arguments: str) -> str:
        return target.run("gcloud", "storage", *arguments)

    gcloud("buckets", "create", "gs://gcloud", "--location=us-central1")
    gcloud("cp", str(big), "gs://gcloud/d/big")
    gcloud("cp", "gs://gcloud/d/big", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    gcloud("cp", "gs://gcloud/d/big", "gs://gcloud/copy")
    gcloud("mv", "gs://gcloud/copy", "gs://gcloud/moved")
    gcloud("objects", "update", "gs://gcloud/moved", "--custom-metadata=a=b")
    assert "a: b" in gcloud("objects", "describe", "gs://gcloud/moved")
    assert "crc32c_hash" in gcloud("hash", "gs://gcloud/moved")
    gcloud("rsync", "--recursive", str(tmp_path), "gs://gcloud/all")
    assert "gs://gcloud/all/back" in gcloud("ls", "gs://gcloud/**")
    gcloud("buckets", "update", "gs://gcloud", "--update-labels=a=b")
    gcloud("rm", "--recursive", "gs://gcloud/**")
    gcloud("buckets", "delete", "gs://gcloud")
