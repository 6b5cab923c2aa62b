"""Cloud Storage of the emulator, with requests as clients other than Google's own send them."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.emulator_world import SMALL

BUCKETS = {**SMALL, "buckets": {"photos": {"location": "us-central1"}}}
UPLOAD = "/upload/storage/v1/b/photos/o"
OBJECTS = "/storage/v1/b/photos/o"
MIB = 1 << 20

pytestmark = pytest.mark.slow

Ask = Callable[..., tuple[int, Any, dict[str, str]]]


@pytest.fixture
def ask(practice: Any) -> Ask:
    world = practice(BUCKETS)
    ask: Ask = world.http
    ask("POST", f"{UPLOAD}?uploadType=media&name=a/b", "abc", Content_Type="text/plain")
    return ask


def names(ask: Ask, query: str = "") -> list[str]:
    return [item["name"] for item in ask("GET", f"{OBJECTS}?{query}")[1].get("items", [])]


def content(ask: Ask, name: str) -> Any:
    return ask("GET", f"{OBJECTS}/{name.replace('/', '%2F')}?alt=media")[1]


def multipart(line_end: str, data: str = "x\r") -> str:
    head = f'--==0=={line_end}Content-Type: application/json{line_end * 2}{{"name": "new"}}'
    return line_end.join([head, "--==0==", "content-type: text/plain", "", data, "--==0==--", ""])


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("boundary", ["==0==", '"==0=="', "'==0=='", '"==0=="; charset=utf-8'])
def test_a_multipart_upload_may_be_written_in_any_style(
    ask: Ask, line_end: str, boundary: str
) -> None:
    path, kind = f"{UPLOAD}?uploadType=multipart", f"multipart/related; boundary={boundary}"
    assert ask("POST", path, multipart(line_end), Content_Type=kind)[0] == 200
    assert content(ask, "new") == "x\r"


def test_a_multipart_upload_may_come_in_many_chunks(ask: Ask) -> None:
    """As googleapis for Node sends it; the name of the object is in one of the first."""
    lines = multipart("\r\n").splitlines(keepends=True)
    body = "".join(f"{len(line):x}\r\n{line}\r\n" for line in lines) + "0\r\n\r\n"
    kind = {"Content_Type": "multipart/related; boundary===0==", "Transfer_Encoding": "chunked"}
    assert ask("POST", f"{UPLOAD}?uploadType=multipart", body, **kind)[0] == 200
    assert content(ask, "new") == "x\r"


@pytest.mark.parametrize(
    "body", ["", "--==0==", "nonsense", multipart("\n")[:-12], multipart("\n").replace("\n\n", "")]
)
def test_a_multipart_upload_that_is_damaged_is_refused(ask: Ask, body: str) -> None:
    kind = "multipart/related; boundary='==0=='"
    assert ask("POST", f"{UPLOAD}?uploadType=multipart", body, Content_Type=kind)[0] == 400


@pytest.mark.parametrize("verb", ["PUT", "POST"])
@pytest.mark.parametrize("start", ["", "/resumable"])
def test_the_chunks_of_an_upload_may_come_by_put_and_by_post(
    ask: Ask, verb: str, start: str
) -> None:
    _, _, headers = ask("POST", f"{start}{UPLOAD}?uploadType=resumable&name=big", "null")
    path = "/" + headers["Location"].split("/", 4)[4]
    half = "a" * (256 << 10)
    first = {"Content_Range": f"bytes 0-{len(half) - 1}/*", "X_GUploader_No_308": "yes"}
    status, _, headers = ask(verb, path, half, **first)
    assert (status, headers["X-HTTP-Status-Code-Override"]) == (200, "308")
    del first["X_GUploader_No_308"]
    assert ask(verb, path, half, **first)[0] == 308
    last = f"bytes {len(half)}-{len(half) + 1}/{len(half) + 2}"
    assert ask(verb, path, "bb", Content_Range=last)[0] == 200
    assert content(ask, "big") == f"{half}bb"


def test_an_upload_of_unknown_size_ends_with_its_only_request(ask: Ask) -> None:
    """As Google's client for Node sends every resumable upload without a chunk size."""
    for name, range_, data, status in (
        ("streamed", "0-*/*", "abc", 200),
        ("sized", "0-*/3", "abc", 200),
        ("short", "0-*/4", "abc", 400),
        ("empty", "0-*/0", "", 200),
        ("gap", "1-*/*", "bc", 400),
    ):
        _, _, headers = ask("POST", f"{UPLOAD}?uploadType=resumable&name={name}", "{}")
        path = "/" + headers["Location"].split("/", 4)[4]
        assert ask("PUT", path, data, Content_Range=f"bytes {range_}")[0] == status, name
    assert names(ask) == ["a/b", "empty", "sized", "streamed"]
    assert content(ask, "streamed") == "abc"


def test_objects_are_copied_rewritten_and_moved_with_their_metadata(ask: Ask) -> None:
    status, answer, _ = ask("POST", f"{OBJECTS}/a%2Fb/rewriteTo/b/photos/o/c%2Fd", "")
    assert (status, answer["done"], answer["resource"]["name"]) == (200, True, "c/d")
    assert answer["resource"]["contentType"] == "text/plain"
    changed = {"contentType": "image/png"}
    assert ask("POST", f"{OBJECTS}/c%2Fd/copyTo/b/photos/o/e", changed)[1]["contentType"] == (
        "image/png"
    )
    assert ask("POST", f"{OBJECTS}/e/moveTo/o/f")[0] == 200
    assert (names(ask), content(ask, "f")) == (["a/b", "c/d", "f"], "abc")
    refused = {
        f"{OBJECTS}/nothing/copyTo/b/photos/o/e": 404,
        f"{OBJECTS}/f/copyTo/b/others/o/e": 404,
        f"{OBJECTS}/f/copyTo/b/photos/o/c%2Fd?ifGenerationMatch=0": 412,
        f"{OBJECTS}/f/copyTo/b/photos/o/e?ifSourceGenerationMatch=1": 412,
        f"{OBJECTS}/f/copyTo/b/photos/o/e?sourceGeneration=1": 404,
        f"{OBJECTS}/f/moveTo/o/f": 400,
    }
    assert {path: ask("POST", path)[0] for path in refused} == refused
    assert names(ask) == ["a/b", "c/d", "f"]


def test_a_moved_object_stays_moved_after_a_restart(practice: Any, tmp_path: Any) -> None:
    world = practice(BUCKETS, folder=tmp_path)
    world.http("POST", f"{UPLOAD}?uploadType=media&name=a", "abc")
    world.http("POST", f"{OBJECTS}/a/moveTo/o/b")
    world.http("PATCH", "/storage/v1/b/photos", {"labels": {"team": "a"}})
    again = practice(BUCKETS, folder=tmp_path)
    assert (names(again.http), content(again.http, "b")) == (["b"], "abc")
    assert again.http("GET", "/storage/v1/b/photos")[1]["labels"] == {"team": "a"}


def test_the_links_of_an_object_lead_to_it(ask: Ask) -> None:
    found = ask("GET", f"{OBJECTS}/a%2Fb")[1]
    media, own = (re.sub("http://[^/]*/[^/]*", "", found[key]) for key in ("mediaLink", "selfLink"))
    assert ask("GET", media)[1] == "abc"
    assert ask("GET", own)[1] == found


def test_metadata_is_patched_and_replaced(ask: Ask) -> None:
    path = f"{OBJECTS}/a%2Fb"
    ask("PATCH", path, {"metadata": {"x": "1", "y": "2"}, "cacheControl": "none"})
    patched = ask("PATCH", path, {"metadata": {"x": None, "z": "3"}})[1]
    assert (patched["metadata"], patched["cacheControl"]) == ({"y": "2", "z": "3"}, "none")
    replaced = ask("PUT", path, {"metadata": {"w": "4"}})[1]
    assert replaced["metadata"] == {"w": "4"}
    assert {"cacheControl", "contentType"}.isdisjoint(replaced)


def test_a_bucket_remembers_its_labels_and_refuses_what_it_cannot_do(ask: Ask) -> None:
    bucket = "/storage/v1/b/photos"
    assert ask("PATCH", bucket, {"labels": {"team": "a"}})[1]["metageneration"] == "2"
    assert ask("PUT", bucket, {})[1].get("labels") is None
    assert ask("PATCH", bucket, {"versioning": {"enabled": True}})[0] == 400
    layout = ask("GET", f"{bucket}/storageLayout")[1]
    assert (layout["locationType"], layout["hierarchicalNamespace"]) == (
        "region",
        {"enabled": False},
    )
    assert names(ask) == ["a/b"]


def test_an_object_without_bytes_is_made_from_metadata_alone(ask: Ask) -> None:
    made = {"name": "empty", "contentType": "text/plain", "metadata": {"x": "1"}}
    status, found, _ = ask("POST", OBJECTS, made)
    assert (status, found["size"]) == (200, "0")
    assert {key: found[key] for key in made} == made
    assert ask("POST", f"{OBJECTS}?ifGenerationMatch=0", made)[0] == 412
    assert ask("POST", OBJECTS, {})[0] == 400


def test_the_preconditions_of_a_bucket_are_checked(ask: Ask) -> None:
    bucket = "/storage/v1/b/photos"
    before = ask("GET", bucket)[1]
    for verb in ("PATCH", "PUT", "DELETE"):
        assert ask(verb, f"{bucket}?ifMetagenerationMatch=7", {"labels": {"a": "b"}})[0] == 412
    assert ask("GET", f"{bucket}?ifMetagenerationNotMatch=1")[0] == 304
    assert ask("GET", bucket)[1] == before
    after = ask("PATCH", f"{bucket}?ifMetagenerationMatch=1", {"billing": {"requesterPays": True}})
    assert after[1]["billing"] == {"requesterPays": True}
    assert before["timeCreated"] == before["updated"] == after[1]["timeCreated"]


def test_all_permissions_that_a_client_asks_for_are_granted(ask: Ask) -> None:
    asked = ["storage.objects.get", "storage.objects.list"]
    query = "&".join(f"permissions={name}" for name in asked)
    path = f"iam/testPermissions?{query}"
    assert ask("GET", f"/storage/v1/b/photos/{path}")[1]["permissions"] == asked
    assert ask("GET", f"/storage/v1/b/nothing/{path}")[0] == 404


def test_buckets_are_listed_in_pages(ask: Ask) -> None:
    made = [ask("POST", "/storage/v1/b?project=p", {"name": f"list-{i}"})[1] for i in range(3)]
    path = "/storage/v1/b?project=p&prefix=list&maxResults=2"
    first = ask("GET", path)[1]
    second = ask("GET", f"{path}&pageToken={first['nextPageToken']}")[1]
    assert (first["items"] + second["items"], "nextPageToken" in second) == (made, False)


def test_paths_may_leave_out_the_version_as_googles_client_for_node_does(ask: Ask) -> None:
    assert [bucket["name"] for bucket in ask("GET", "/b?project=p")[1]["items"]] == ["photos"]
    assert ask("GET", "/b/photos/o/a%2Fb?alt=media")[1] == "abc"


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*", ["c.jpg", "d.png"]),
        ("**", ["a/b", "a/x.jpg", "c.jpg", "d.png"]),
        ("**.jpg", ["a/x.jpg", "c.jpg"]),
        ("*.{jpg,png}", ["c.jpg", "d.png"]),
        ("[!c].*", ["d.png"]),
        ("?/b", ["a/b"]),
        ("a+b", []),
    ],
)
def test_objects_are_listed_by_glob(ask: Ask, glob: str, found: list[str]) -> None:
    for name in ("a/x.jpg", "c.jpg", "d.png"):
        ask("POST", f"{UPLOAD}?uploadType=media&name={name}", "")
    assert names(ask, f"matchGlob={glob.replace('+', '%2B')}") == found


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_batch_answers_each_of_its_requests(ask: Ask, line_end: str) -> None:
    calls = [f"GET {OBJECTS}/a%2Fb?fields=name,size", f"DELETE {OBJECTS}/no", "GET /v2/nonsense"]
    calls += [f"GET {OBJECTS}/a%2Fb?alt=media"]
    parts = [
        f"--x\nContent-Type: application/http\nContent-ID: <id+{index}>\n\n{call} HTTP/1.1\n\n"
        for index, call in enumerate(calls)
    ]
    body = "".join([*parts, "\n--x--"]).replace("\n", line_end)
    kind = 'multipart/mixed; boundary="x"'
    status, text, headers = ask("POST", "/batch/storage/v1", body, Content_Type=kind)
    assert (status, headers["Content-Type"]) == (200, "multipart/mixed; boundary=batch_of_answers")
    assert re.findall(r"HTTP/1\.1 (\d+)", text) == ["200", "404", "400", "400"]
    assert "<response-id+1>" in text
    assert json.dumps({"name": "a/b", "size": "3"}) in text


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ("name", {"name": "a/b"}),
        ("bucket,owner/entity,name", {"bucket": "photos", "name": "a/b"}),
        ("*", None),
        ("", None),
    ],
)
def test_a_client_selects_the_fields_of_a_reply(ask: Ask, fields: str, wanted: Any) -> None:
    whole = ask("GET", f"{OBJECTS}/a%2Fb")[1]
    assert ask("GET", f"{OBJECTS}/a%2Fb?fields={fields}")[1] == (wanted or whole)
    listed = ask("GET", f"{OBJECTS}?fields=items(name,size),nextPageToken&prettyPrint=false")[1]
    assert listed == {"items": [{"name": "a/b", "size": "3"}]}


@pytest.mark.parametrize("fields", ["items(name", ")", "a,,b", "a/", "(a)", "items(name)x"])
def test_a_selection_that_is_not_valid_is_refused(ask: Ask, fields: str) -> None:
    assert ask("GET", f"{OBJECTS}?fields={fields}")[0] == 400


def test_a_request_too_long_for_an_address_comes_as_a_form(ask: Ask) -> None:
    headers = {"X_HTTP_Method_Override": "GET", "Content_Type": "application/x-www-form-urlencoded"}
    assert ask("POST", OBJECTS, "prefix=a%2F&fields=items/name", **headers)[1] == {
        "items": [{"name": "a/b"}]
    }


def test_the_xml_api_puts_gets_copies_lists_and_deletes(ask: Ask) -> None:
    status, _, headers = ask("PUT", "/photos/x%2Fy", "hello", x_goog_meta_a="1")
    assert (status, headers["X-Goog-Hash"][:7]) == (200, "crc32c=")
    status, text, headers = ask("GET", "/photos/x/y", Range="bytes=1-2")
    assert (status, text, headers["Content-Range"]) == (206, "el", "bytes 1-2/5")
    tag = headers["ETag"]
    assert ask("GET", "/photos/x/y", If_Match=tag)[0] == 200
    assert ask("GET", "/photos/x/y", If_Match='"other"')[0] == 412
    assert ask("GET", "/photos/x/y", If_None_Match=tag)[0] == 304
    head = ask("HEAD", "/photos/x/y")
    assert (head[0], head[1], head[2]["Content-Length"]) == (200, "", "5")
    assert ask("PUT", "/photos/z", "", x_goog_copy_source="photos/x%2Fy")[0] == 200
    again = {"x_goog_copy_source": "/photos/x/y", "x_goog_if_generation_match": "0"}
    assert ask("PUT", "/photos/z", "", **again)[0] == 412
    listed = ask("GET", "/photos?list-type=2&delimiter=/&max-keys=2")[1]
    assert re.findall("<Prefix>(.*?)</Prefix>", listed) == ["", "a/", "x/"]
    token = re.findall("<NextContinuationToken>(.*?)<", listed)[0]
    rest = ask("GET", f"/photos/?list-type=2&delimiter=/&continuation-token={token}")[1]
    assert re.findall("<Key>(.*?)</Key>", rest) == ["z"]
    assert ask("DELETE", "/photos/z")[0] == 204
    assert ask("GET", f"{OBJECTS}/x%2Fy")[1]["metadata"] == {"a": "1"}


def test_the_xml_api_returns_the_metadata_of_an_object(ask: Ask) -> None:
    more = {"Content_Disposition": "inline", "Content_Language": "de"}
    ask("PUT", "/photos/m", "hello", x_goog_meta_a="1", x_goog_storage_class="NEARLINE", **more)
    ask("PATCH", f"{OBJECTS}/m", {"metadata": {"b": "ä\nX: y"}})
    for verb in ("GET", "HEAD"):
        headers = ask(verb, "/photos/m")[2]
        assert (headers["x-goog-meta-a"], headers["X-Goog-Storage-Class"]) == ("1", "NEARLINE")
        assert headers["x-goog-meta-b"].encode("latin-1").decode() == "ä X: y"
        assert (headers["Content-Disposition"], headers["Content-Language"]) == ("inline", "de")


def test_the_xml_api_compares_times(ask: Ask) -> None:
    changed, before = ask("GET", "/photos/a/b")[2]["Last-Modified"], "Sat, 01 Jan 2000 00:00:00 GMT"
    assert ask("GET", "/photos/a/b", If_Modified_Since=changed)[0] == 304
    assert ask("GET", "/photos/a/b", If_Modified_Since=before)[0] == 200
    assert ask("GET", "/photos/a/b", If_Unmodified_Since=changed)[0] == 200
    assert ask("GET", "/photos/a/b", If_Unmodified_Since=before)[0] == 412
    assert ask("GET", "/photos/a/b", If_Unmodified_Since="nonsense")[0] == 200


def test_a_list_without_tokens_goes_on_after_a_marker(ask: Ask) -> None:
    for name in ("a/c", "d", "e"):
        ask("PUT", f"/photos/{name}", "x")
    marker, found = "", []
    while True:
        page = ask("GET", f"/photos?delimiter=/&max-keys=1&marker={marker}")[1]
        found += re.findall("<(?:Key|Prefix)>([^<]+)<", page)
        if "<IsTruncated>false<" in page:
            break
        (marker,) = re.findall("<NextMarker>(.*?)<", page)
    assert found == ["a/", "d", "e"]


def test_a_client_of_s3_is_understood_by_its_signature(ask: Ask) -> None:
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x"}
    ask("PUT", "/photos/m", "hello", x_amz_meta_a="1", **signed)
    assert ask("PUT", "/photos/c", "", x_amz_copy_source="photos/m", **signed)[0] == 200
    status, text, headers = ask("GET", "/photos/c", **signed)
    assert (status, text, headers["x-amz-meta-a"]) == (200, "hello", "1")
    streamed = {"x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    assert ask("PUT", "/photos/c", "5\r\nother\r\n0\r\n\r\n", **streamed, **signed)[0] == 400
    assert content(ask, "c") == "hello"


def test_the_xml_api_creates_finds_and_deletes_buckets(ask: Ask) -> None:
    place = "<C><LocationConstraint>eu</LocationConstraint></C>"
    assert ask("PUT", "/by-xml", place)[0] == 200
    assert ">EU</LocationConstraint>" in ask("GET", "/by-xml?location")[1]
    assert "<VersioningConfiguration" in ask("GET", "/by-xml?versioning")[1]
    assert ask("DELETE", "/by-xml/")[0] == 204
    assert ask("HEAD", "/by-xml")[0] == 404


@pytest.mark.parametrize(
    ("verb", "path"),
    [("PUT", "a/b?acl"), ("GET", "a/b?acl="), ("GET", "?versions"), ("POST", "?delete"),
     ("PUT", "?versioning"), ("GET", "a/b?location"),
     ("DELETE", "a/b?tagging"), ("GET", "?uploads"), ("PUT", "?lifecycle")],
)  # fmt: skip
def test_a_part_that_is_not_supported_is_not_taken_for_the_whole(
    ask: Ask, verb: str, path: str
) -> None:
    assert ask(verb, f"/photos/{path}", None if verb == "GET" else "<X/>")[0] == 400
    assert content(ask, "a/b") == "abc"


def test_an_upload_in_parts_becomes_one_object(ask: Ask) -> None:
    text = ask("POST", "/photos/big?uploads", "", Content_Type="text/plain")[1]
    upload = re.findall("<UploadId>(.*?)</UploadId>", text)[0]
    place, parts = f"/photos/big?uploadId={upload}", ["a" * 5 * MIB, "b"]
    tags = [
        ask("PUT", f"{place}&partNumber={number}", part)[2]["ETag"]
        for number, part in enumerate(parts, 1)
    ]
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    assert ask("PUT", f"{place}&partNumber=x", "a")[0] == 400
    wrong = listed.replace(tags[1], '"other"')
    assert ask("POST", place, wrong)[0] == 400
    assert ask("POST", place, f"<C>{listed}</C>")[0] == 200
    assert content(ask, "big") == "".join(parts)
    assert ask("GET", f"{OBJECTS}/big")[1]["contentType"] == "text/plain"
    assert ask("POST", place, listed)[0] == 404


@pytest.mark.parametrize(
    ("verb", "path", "status", "code"),
    [
        ("GET", "/photos/nothing", 404, "NoSuchKey"),
        ("GET", "/nothing", 404, "NoSuchBucket"),
        ("PUT", "/nothing/a", 404, "NoSuchBucket"),
        ("PUT", "/photos/a?partNumber=1&uploadId=x", 404, "NoSuchKey"),
        ("PUT", "/photos/a?partNumber=x&uploadId=x", 404, "NoSuchKey"),
        ("GET", "/photos?max-keys=x", 400, "InvalidArgument"),
    ],
)
def test_the_xml_api_tells_errors_in_its_own_form(
    ask: Ask, verb: str, path: str, status: int, code: str
) -> None:
    found = ask(verb, path, "" if verb == "PUT" else None)
    assert (found[0], re.findall("<Code>(.*?)</Code>", found[1])) == (status, [code])


def test_the_xml_api_asks_for_the_secret(practice: Any) -> None:
    world = practice(BUCKETS)
    world.http("PUT", "/photos/a", "x")
    world.emulator.http = world.emulator.http.rpartition("/")[0]
    assert world.http("GET", "/photos/a")[0] == 401
    secret = f"Bearer {world.emulator.secret}"
    assert world.http("GET", "/photos/a", Authorization=secret)[1] == "x"


def test_a_planned_fault_finds_a_request_in_every_api(practice: Any) -> None:
    faults = [
        {"on": "storage_insert", "name": "photos/x/*", "error": "unavailable"},
        {"on": "storage_get", "name": "photos/x/*", "error": "rate_limit"},
        {"on": "storage_copy", "name": "photos/copy", "error": "permission"},
        {"on": "storage_move", "name": "photos/moved", "error": "internal"},
    ]
    world = practice({**BUCKETS, "faults": faults})
    assert world.http("PUT", "/photos/x/a", '{"name": "other"}')[0] == 503
    assert world.http("PUT", "/photos/x/a", '{"name": "other"}')[0] == 200
    assert world.http("GET", "/photos/x/a")[0] == 429
    assert world.http("POST", f"{OBJECTS}/x%2Fa/copyTo/b/photos/o/copy")[0] == 403
    assert world.http("POST", f"{OBJECTS}/x%2Fa/moveTo/o/moved")[0] == 500
    assert names(world.http) == ["x/a"]
