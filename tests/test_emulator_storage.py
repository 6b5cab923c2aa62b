"""Cloud Storage of the emulator, reached by Google's own client, unmodified."""

import base64
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

import google_crc32c
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption

from tests.emulator_world import SMALL, START

pytestmark = pytest.mark.slow

BUCKETS = {**SMALL, "buckets": {"photos": {"location": "us-central1"}}}
MIB = 1 << 20
CHUNK = 256 << 10


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


class Storage:
    """An emulator with a bucket, and Google's client that talks to it."""

    def __init__(self, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
        self.client = storage.Client.create_anonymous_client()
        self.bucket = self.client.bucket("photos")

    def put(self, name: str, data: bytes, **conditions: Any) -> Any:
        blob = self.bucket.blob(name)
        blob.upload_from_string(data, retry=None, **conditions)
        return blob

    def bytes_of(self, name: str, **options: Any) -> bytes:
        data: bytes = self.bucket.blob(name).download_as_bytes(retry=None, **options)
        return data

    def ask(self, verb: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        answer: tuple[int, Any, Any] = self.world.http(verb, path, body, **headers)
        return answer

    def begin(self, name: str, **headers: str) -> str:
        """Start a resumable upload and return the path of its session."""
        path = f"/upload/storage/v1/b/photos/o?uploadType=resumable&name={name}"
        place = str(self.ask("POST", path, "{}", **headers)[2]["Location"])
        return place.removeprefix(self.world.emulator.http)


@pytest.fixture
def start_storage(practice: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Storage]:
    def start(*faults: dict[str, Any], **options: Any) -> Storage:
        scenario = {**BUCKETS, "faults": list(faults)} if faults else BUCKETS
        return Storage(practice(options.pop("scenario", scenario), **options), monkeypatch)

    return start


NAMES = [
    "a",
    "a/b.jpg",
    "../../etc/passwd",
    "a/../b",
    "ein Bär/☃.jpg",
    "%2F?#&=+",
    "x" * 1024,
    "//",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_an_object_of_any_name_comes_back_whole(start_storage: Any, name: str) -> None:
    here = start_storage()
    blob = here.put(name, b"abc")
    assert here.bytes_of(name) == b"abc"
    assert [item.name for item in here.client.list_blobs("photos")] == [name]
    blob.reload()
    assert (blob.size, blob.crc32c, blob.metageneration) == (3, crc32c(b"abc"), 1)
    blob.delete()
    with pytest.raises(exceptions.NotFound, match="No such object: photos/"):
        here.bytes_of(name)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", ".", "..", "x" * 1025, "ß" * 513])
def test_a_name_that_the_service_refuses_is_refused(start_storage: Any, name: str) -> None:
    with pytest.raises(exceptions.BadRequest, match="Disallowed object name"):
        start_storage().put(name, b"abc")


@pytest.mark.parametrize("size", [0, 1, MIB, 9 * MIB, 9 * MIB + 1])
def test_uploads_of_every_size_arrive_whole(start_storage: Any, size: int) -> None:
    here = start_storage()
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    blob = here.bucket.blob("big", chunk_size=4 * CHUNK)
    blob.upload_from_file(io.BytesIO(data), size=size, crc32c_checksum_value=crc32c(data))
    assert here.bytes_of("big") == data
    blob = here.bucket.blob("streamed", chunk_size=4 * CHUNK)
    with blob.open("wb") as file:
        file.write(data)
    assert here.bytes_of("streamed") == data


def test_ranges_are_served_as_requested(start_storage: Any) -> None:
    here = start_storage()
    here.put("digits", b"0123456789")
    path = "/storage/v1/b/photos/o/digits?alt=media"
    wanted = {
        "bytes=2-4": (206, "234", "bytes 2-4/10"),
        "bytes=7-": (206, "789", "bytes 7-9/10"),
        "bytes=-3": (206, "789", "bytes 7-9/10"),
        "bytes=8-99": (206, "89", "bytes 8-9/10"),
        "bytes=-99": (206, "0123456789", "bytes 0-9/10"),
        "bytes=10-": (416, "Request range not satisfiable", "bytes */10"),
        "bytes=-0": (416, "Request range not satisfiable", "bytes */10"),
        "bytes=5-2": (200, "0123456789", None),
        "lines=1-2": (200, "0123456789", None),
    }
    for asked, (status, text, content_range) in wanted.items():
        answer = here.ask("GET", path, Range=asked)
        assert (answer[0], answer[1], answer[2].get("Content-Range")) == (
            status, text, content_range,
        ), asked  # fmt: skip
    assert here.ask("GET", path)[2]["X-Goog-Hash"].startswith(
        f"crc32c={crc32c(b'0123456789')},md5="
    )


def test_a_stored_gzip_is_decompressed_for_clients_without_gzip(
    start_storage: Any,
) -> None:
    here = start_storage()
    blob = here.bucket.blob("packed")
    blob.content_encoding = "gzip"
    packed = gzip.compress(b"hello")
    blob.upload_from_string(packed)
    assert here.bytes_of("packed") == b"hello"
    assert here.bytes_of("packed", raw_download=True) == packed
    answer = here.ask("GET", "/storage/v1/b/photos/o/packed?alt=media")
    assert answer[1] == "hello"
    assert "Content-Encoding" not in answer[2]


def test_generations_guard_every_change(start_storage: Any) -> None:
    here = start_storage()
    first = here.put("guarded", b"1", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed, match="pre-conditions"):
        here.put("guarded", b"2", if_generation_match=0)
    second = here.put("guarded", b"2", if_generation_match=first.generation)
    assert second.generation > first.generation
    for refused in (
        {"if_generation_match": first.generation},
        {"if_generation_not_match": second.generation},
        {"if_metageneration_match": 7},
        {"if_metageneration_not_match": 1},
    ):
        # Google's client 3.17 misspells this one in uploads, where the service then ignores it.
        if "if_metageneration_not_match" not in refused:
            with pytest.raises(exceptions.PreconditionFailed):
                here.put("guarded", b"3", **refused)
        with pytest.raises(exceptions.PreconditionFailed):
            here.bucket.blob("guarded").delete(**refused)
    with pytest.raises(exceptions.PreconditionFailed):
        here.bytes_of("guarded", if_generation_match=first.generation)
    with pytest.raises(exceptions.NotModified):
        here.bucket.blob("guarded").reload(if_generation_not_match=second.generation)
    with pytest.raises(exceptions.NotFound):
        here.bucket.blob("guarded", generation=first.generation).reload()
    with pytest.raises(exceptions.NotFound):
        here.bucket.blob("missing").delete(if_generation_match=5)
    assert here.bytes_of("guarded", if_generation_match=second.generation) == b"2"
    here.bucket.blob("guarded").delete(if_generation_match=second.generation)
    assert list(here.client.list_blobs("photos")) == []


def test_a_resumable_upload_meets_its_condition_at_the_end(start_storage: Any) -> None:
    here = start_storage()
    blob = here.bucket.blob("late", chunk_size=CHUNK)
    session = blob.create_resumable_upload_session(size=3, if_generation_match=0)
    path = session.removeprefix(here.world.emulator.http)
    here.put("late", b"early bird")
    status, answer, _ = here.ask("PUT", path, "abc", Content_Range="bytes 0-2/3")
    assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    assert here.bytes_of("late") == b"early bird"


def test_metadata_changes_with_its_own_generation(start_storage: Any) -> None:
    here = start_storage()
    blob = here.put("tagged", b"1")
    blob.metadata = {"label": "cat"}
    blob.patch(if_metageneration_match=1)
    again = here.bucket.get_blob("tagged")
    assert (again.metadata, again.metageneration) == ({"label": "cat"}, 2)
    assert again.generation == blob.generation
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


def test_bytes_that_are_not_what_was_declared_are_refused(start_storage: Any) -> None:
    here = start_storage()
    size = 9 * MIB
    blob = here.bucket.blob("wrong", chunk_size=4 * CHUNK)
    with pytest.raises(exceptions.BadRequest, match="doesn't match calculated CRC32C"):
        blob.upload_from_file(
            io.BytesIO(bytes(size)),
            size=size,
            checksum=None,
            crc32c_checksum_value=crc32c(b"else"),
        )
    blob.md5_hash = base64.b64encode(bytes(16)).decode()
    for size in (10, 9 * MIB):
        with pytest.raises(exceptions.BadRequest, match="doesn't match calculated MD5"):
            blob.upload_from_file(io.BytesIO(bytes(size)), size=size, checksum=None)
    assert list(here.client.list_blobs("photos")) == []


def test_a_checksum_in_a_header_counts_as_one_in_the_metadata(start_storage: Any) -> None:
    here = start_storage()
    path = "/upload/storage/v1/b/photos/o?uploadType=media&name=a"
    for declared, status in ((crc32c(b"abc"), 200), (crc32c(b"abd"), 400)):
        assert here.ask("POST", path, "abc", X_Goog_Hash=f"crc32c={declared}")[0] == status


def test_compose_concatenates_objects_under_preconditions(start_storage: Any) -> None:
    here = start_storage()
    parts = [here.put(f"part{number}", bytes([number]) * 1000) for number in range(32)]
    whole = here.bucket.blob("whole")
    whole.content_type = "application/x-shard"
    whole.compose(parts, if_generation_match=0)
    assert here.bytes_of("whole") == b"".join(bytes([number]) * 1000 for number in range(32))
    assert (whole.component_count, whole.md5_hash) == (32, None)
    assert whole.content_type == "application/x-shard"
    with pytest.raises(exceptions.PreconditionFailed):
        whole.compose(parts, if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        whole.compose(parts[:1], if_source_generation_match=[1])
    with pytest.raises(exceptions.BadRequest, match=r"\(33\) exceeds the maximum"):
        whole.compose([*parts, parts[0]])
    with pytest.raises(exceptions.BadRequest, match="at least one source"):
        whole.compose([])
    with pytest.raises(exceptions.NotFound):
        whole.compose([here.bucket.blob("missing")])


def test_lists_have_prefixes_delimiters_and_pages(start_storage: Any) -> None:
    here = start_storage()
    names = ["a", "a/", "a/1", "a/2/x", "a/2/y", "b/1", "c", "ü/1", "☃"]
    for name in reversed(names):
        here.put(name, b"")
    listed = here.client.list_blobs

    def found(**options: Any) -> tuple[list[str], list[str]]:
        pages = listed("photos", **options)
        return [blob.name for blob in pages], sorted(pages.prefixes)

    for page_size in (1, 2, 3, 1000):
        options = {"page_size": page_size}
        assert found(**options) == (names, [])
        assert found(prefix="a/", **options) == (names[1:5], [])
        assert found(delimiter="/", **options) == (["a", "c", "☃"], ["a/", "b/", "ü/"])
        assert found(prefix="a/", delimiter="/", **options) == (["a/", "a/1"], ["a/2/"])
        assert found(start_offset="a/2", end_offset="c", **options) == (names[3:6], [])
    assert found(prefix="zzz") == ([], [])
    assert found(max_results=2) == (names[:2], [])
    with pytest.raises(exceptions.NotFound, match="specified bucket does not exist"):
        list(listed("elsewhere"))


def test_a_bucket_keeps_who_may_use_it(start_storage: Any) -> None:
    store = start_storage()
    policy = store.bucket.get_iam_policy(timeout=9)
    late = store.bucket.get_iam_policy(timeout=9)
    assert not policy.bindings
    viewer = {"role": "roles/storage.objectViewer", "members": {"allUsers"}}
    policy.bindings.append(viewer)
    store.bucket.set_iam_policy(policy)
    with pytest.raises(exceptions.PreconditionFailed):
        store.bucket.set_iam_policy(late)
    store.bucket.labels = {"a": "b"}
    store.bucket.update()
    assert store.bucket.get_iam_policy().bindings == [viewer]
    assert "bindings" not in store.bucket._properties
    status, _, _ = store.ask("PUT", "/storage/v1/b/photos/iam", {"bindings": ["x"]})
    assert status == 400
    assert store.ask("GET", "/storage/v1/b/none/iam")[0] == 404


def test_a_bucket_has_no_managed_folders(start_storage: Any) -> None:
    store = start_storage()
    assert "items" not in store.ask("GET", "/storage/v1/b/photos/managedFolders")[1]
    assert store.ask("GET", "/storage/v1/b/none/managedFolders")[0] == 404


def test_buckets_are_created_listed_and_deleted(start_storage: Any) -> None:
    here = start_storage()
    made = here.client.create_bucket("shards", location="europe-west4")
    assert made.location == "EUROPE-WEST4"
    assert [bucket.name for bucket in here.client.list_buckets()] == ["photos", "shards"]
    with pytest.raises(exceptions.Conflict):
        here.client.create_bucket("shards")
    for name in ("UPPER", "ab", "a..b", "my-google-bucket"):
        with pytest.raises(exceptions.BadRequest):
            here.client.create_bucket(name)
    blob = made.blob("x")
    blob.upload_from_string("x")
    with pytest.raises(exceptions.Conflict, match="not empty"):
        made.delete()
    blob.delete()
    made.delete()
    with pytest.raises(exceptions.NotFound):
        here.client.get_bucket("shards")


@pytest.mark.parametrize(
    ("content_range", "size", "status", "says"),
    [
        ("bytes 0-99/*", 100, 400, "equal or greater than 262144"),
        (f"bytes {CHUNK}-{2 * CHUNK - 1}/*", CHUNK, 400, "exceeds already uploaded size of 0"),
        ("bytes 0-9/10", 9, 400, "declares 10"),
        ("bytes 0-9/9", 10, 400, "Content-Range"),
        ("bytes 9-3/20", 10, 400, "Content-Range"),
        ("chunks 1-2", 10, 400, "Content-Range"),
        ("bytes 0-9/10", 10, 200, ""),
        ("bytes */*", 0, 308, ""),
    ],
)
def test_a_chunk_of_an_upload_must_fit(
    start_storage: Any, content_range: str, size: int, status: int, says: str
) -> None:
    here = start_storage()
    answer = here.ask("PUT", here.begin("piece"), "x" * size, Content_Range=content_range)
    assert answer[0] == status
    assert says in str(answer[1])


def test_an_interrupted_upload_resumes(start_storage: Any) -> None:
    here = start_storage()
    path = here.begin("resumed", X_Upload_Content_Length=str(2 * CHUNK + 5))
    status, _, headers = here.ask(
        "PUT", path, "a" * (CHUNK + 7), Content_Range=f"bytes 0-{CHUNK + 6}/*"
    )
    assert (status, headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert here.ask("PUT", path, Content_Range="bytes */*")[2]["Range"] == f"bytes=0-{CHUNK - 1}"
    wrong_total = f"bytes {CHUNK}-{CHUNK + 9}/{CHUNK + 10}"
    assert here.ask("PUT", path, "b" * 10, Content_Range=wrong_total)[0] == 400
    # The first ten bytes of this one are there already, and are skipped.
    rest = "c" * 10 + "b" * (CHUNK + 5)
    last = f"bytes {CHUNK - 10}-{2 * CHUNK + 4}/{2 * CHUNK + 5}"
    status, answer, _ = here.ask("PUT", path, rest, Content_Range=last)
    assert (status, answer["size"]) == (200, str(2 * CHUNK + 5))
    assert here.bytes_of("resumed") == b"a" * CHUNK + b"b" * (CHUNK + 5)
    again = here.ask("PUT", path, Content_Range=f"bytes */{2 * CHUNK + 5}")
    assert (again[0], again[1]["generation"]) == (200, answer["generation"])


def test_a_cancelled_upload_cannot_resume(start_storage: Any) -> None:
    here = start_storage()
    path = here.begin("cancelled")
    assert here.ask("DELETE", path)[0] == 499
    assert here.ask("PUT", path, "abc")[0] == 499
    assert here.ask("PUT", path.replace("upload_id=", "upload_id=x"), "abc")[0] == 404


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("POST", "/upload/storage/v1/b/photos/o?name=a", "x", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=mail&name=a", "x", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=media", "x", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=media&name=%FF", "x", 400),
        ("POST", "/upload/storage/v1/b/others/o?uploadType=media&name=a", "x", 404),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=multipart&name=a", "x", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=resumable", "{", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=resumable", "[]", 400),
        ("POST", "/upload/storage/v1/b/photos/o?uploadType=resumable&name=a", '{"name":"b"}', 400),
        (
            "POST",
            "/upload/storage/v1/b/photos/o?uploadType=media&name=a&ifGenerationMatch=x",
            "",
            400,
        ),
        ("GET", "/storage/v1/b/photos/o?pageToken=%FF", None, 400),
        ("GET", "/storage/v1/b/photos/o?maxResults=-1", None, 400),
        ("GET", "/storage/v1/b/photos/o?matchGlob=}.jpg", None, 400),
        ("GET", "/storage/v1/b/photos/o?filter=contexts", None, 400),
        ("GET", "/storage/v1/b/photos/o/a/b", None, 400),
        ("POST", "/storage/v1/b/photos/o/a/rewriteTo/b/photos/o/c", "{}", 404),
        ("POST", "/storage/v1/b/photos/o/a/compose", "nonsense", 400),
        ("GET", "/storage/v1/b/photos/o/a?alt=media", None, 404),
    ],
)
def test_invalid_and_unsupported_requests_are_refused(
    start_storage: Any, verb: str, path: str, body: Any, status: int
) -> None:
    assert start_storage().ask(verb, path, body)[0] == status


def test_objects_and_uploads_survive_the_emulator(start_storage: Any, tmp_path: Path) -> None:
    here = start_storage(folder=tmp_path)
    here.put("old", b"1")
    kept = here.put("kept", b"2")
    here.put("gone", b"3").delete()
    here.put("old", b"new")
    path = here.begin("begun")
    here.ask("PUT", path, "a" * CHUNK, Content_Range=f"bytes 0-{CHUNK - 1}/*")
    here.client.create_bucket("made")
    with (tmp_path / "storage" / "objects.jsonl").open("ab") as journal:
        journal.write(b'{"no_object": ["photos", "ke')
    (tmp_path / "storage" / "objects" / "orphan").write_bytes(b"torn")
    again = start_storage(scenario={}, folder=tmp_path, start=here.world.clock.now())
    assert [blob.name for blob in again.client.list_blobs("photos")] == ["kept", "old"]
    assert again.bytes_of("old") == b"new"
    assert again.bucket.get_blob("kept").generation == kept.generation
    assert again.client.get_bucket("made").location == "US"
    assert again.put("next", b"").generation > kept.generation
    last = f"bytes {CHUNK}-{CHUNK + 1}/{CHUNK + 2}"
    assert again.ask("PUT", path, "bb", Content_Range=last)[0] == 200
    assert again.bytes_of("begun") == b"a" * CHUNK + b"bb"
    assert not (tmp_path / "storage" / "objects" / "orphan").exists()


REFUSALS = {
    "rate_limit": exceptions.TooManyRequests,
    "unavailable": exceptions.ServiceUnavailable,
    "internal": exceptions.InternalServerError,
    "deadline": exceptions.GatewayTimeout,
    "permission": exceptions.Forbidden,
    "not_found": exceptions.NotFound,
}


@pytest.mark.parametrize("error", REFUSALS)
def test_a_planned_error_comes_once_and_when_it_was_planned(start_storage: Any, error: str) -> None:
    here = start_storage(
        {"on": "storage_insert", "name": "photos/a*", "nth": 2, "error": error},
        {"on": "storage_get", "error": error},
        {"on": "storage_stat", "error": error},
        {"on": "storage_list", "name": "photos/x*", "error": error},
        {"on": "storage_delete", "error": error},
    )
    here.put("a1", b"1")
    here.put("b1", b"1")
    wanted = REFUSALS[error]
    with pytest.raises(wanted):
        here.put("a2", b"2")
    here.put("a2", b"2")
    with pytest.raises(wanted):
        here.bytes_of("a2")
    assert here.bytes_of("a2") == b"2"
    with pytest.raises(wanted):
        here.bucket.blob("a2").reload(retry=None)
    assert len(list(here.client.list_blobs("photos", retry=None))) == 3
    with pytest.raises(wanted):
        list(here.client.list_blobs("photos", prefix="x", retry=None))
    with pytest.raises(wanted):
        here.bucket.blob("a2").delete(retry=None)
    assert ("storage_insert", "", "photos/a1") in here.world.emulator.requests


def test_a_lost_reply_leaves_the_object_there(start_storage: Any) -> None:
    here = start_storage(
        {"on": "storage_insert", "after_accept": True},
        {"on": "storage_delete", "after_accept": True, "error": "cut"},
    )
    with pytest.raises(exceptions.ServiceUnavailable):
        here.put("lost", b"1")
    assert here.bytes_of("lost") == b"1"
    with pytest.raises(Exception, match="Connection aborted"):
        here.bucket.blob("lost").delete(retry=None)
    assert list(here.client.list_blobs("photos")) == []


def test_googles_client_recovers_from_cut_stall_and_unavailable(
    start_storage: Any,
) -> None:
    here = start_storage(
        {"on": "storage_upload_chunk", "nth": 2, "error": "cut", "after_bytes": CHUNK + 10},
        {"on": "storage_upload_chunk", "nth": 5, "error": "unavailable", "after_accept": True},
        {"on": "storage_upload_chunk", "nth": 7, "error": "stall", "for_s": 0.01},
        {"on": "storage_get", "nth": 1, "error": "cut", "after_bytes": MIB},
    )
    data = bytes(range(256)) * (9 * 4096 + 1)
    blob = here.bucket.blob("tough", chunk_size=8 * CHUNK)
    blob.upload_from_file(io.BytesIO(data), size=len(data), if_generation_match=0)
    chunks = [method for method, *_ in here.world.emulator.requests]
    assert chunks.count("storage_upload_chunk") >= 7
    assert blob.download_as_bytes() == data


def test_corrupted_bytes_are_noticed_by_their_checksum(start_storage: Any) -> None:
    here = start_storage(
        {"on": "storage_insert", "error": "corrupt", "after_bytes": 900},
        {"on": "storage_get", "error": "corrupt", "after_bytes": 3},
    )
    blob = here.bucket.blob("noisy")
    with pytest.raises(exceptions.BadRequest, match="CRC32C"):
        blob.upload_from_string(bytes(2000), checksum="crc32c", retry=None)
    blob.upload_from_string(bytes(2000), checksum="crc32c")
    with pytest.raises(DataCorruption):
        here.bytes_of("noisy", checksum="crc32c")
    assert here.bytes_of("noisy", checksum="crc32c") == bytes(2000)


def test_fault_counts_survive_a_restart(start_storage: Any, tmp_path: Path) -> None:
    fault = {"on": "storage_get", "nth": 2, "error": "unavailable"}
    here = start_storage(fault, folder=tmp_path)
    here.put("a", b"1")
    assert here.bytes_of("a") == b"1"
    again = start_storage(scenario={}, folder=tmp_path, start=START)
    with pytest.raises(exceptions.ServiceUnavailable):
        again.bytes_of("a")
