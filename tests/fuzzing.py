"""Every parser of bytes that others wrote, and what it may answer: `make fuzz`, tests/test_fuzz.py.

    python -m tests.fuzzing --seconds 30 [NAME ...]

One target after the other in a process of its own, for so many seconds: guided by coverage where
atheris is installed, by Hypothesis otherwise. What fails is written below build/fuzz.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest

from tpuctl.codec import parse_json
from tpuctl.errors import TpuctlError

SECONDS = 20
MEMORY_MIB = 2048
LONGEST_S = 20
MOST_BYTES = 1 << 18
FAILURES = Path("build/fuzz")
HERE = Path(__file__).parent
NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)

# What comes instead of a value in JSON.
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.5, 1e308,
    float("nan"), float("inf"), "", "x", "..", "../x", "/etc/passwd", "a/b", ".presize",
    "manifest.json", "\ud800", "\0", "\x1b[31m", "[/red]", "x" * 5000, [], {}, [[]], [{}],
    {"": {}}, [0], ["x"], [None], DEEP,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser: `run` returns an answer, or raises one of `refusals` or a TpuctlError."""

    run: Callable[[bytes, Path], object]
    seeds: Callable[[], list[bytes]]
    refusals: tuple[type[BaseException], ...] = ()
    cost: int = 1

    def check(self, data: bytes, folder: Path) -> bool:
        """Whether it was accepted; anything but an answer or a refusal is raised."""
        from tpuctl.errors import TpuctlError

        try:
            self.run(data, folder)
        except self.refusals + (TpuctlError,) as error:  # noqa: RUF005 (mypy)
            if "this is a bug" in str(error).lower():
                raise AssertionError(str(error)) from error
            return False
        return True


def written(data: bytes, folder: Path, name: str = "input") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def shown(renderable: Any) -> str:
    from rich.console import Console

    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


# ---- Data sets -----------------------------------------------------------------------------------


@cache
def data_set() -> dict[str, bytes]:
    """A small data set of JPEGs, file by file."""
    from tests.pictures import contents, fill, small
    from tpuctl.data import presize

    with tempfile.TemporaryDirectory() as folder:
        source = fill(Path(folder, "src"), 4, classes=2)
        (source / "bad.jpg").write_bytes(b"\xff\xd8\xff")
        presize(source, Path(folder, "dst"), small(max_bad="1"))
        return contents(Path(folder, "dst"))


def shard() -> bytes:
    return next(data for name, data in data_set().items() if name.endswith(".tfrecord"))


@cache
def example() -> bytes:
    from tpuctl.datasets.formats._tfrecord import read_frames

    return next(record for _, record in read_frames(io.BytesIO(shard())))


def tar() -> bytes:
    from tpuctl.datasets.formats._tar import Tar
    from tpuctl.datasets.formats.records import Digest

    with tempfile.TemporaryDirectory() as folder:
        part, packed = written(shard(), Path(folder)), Path(folder, "x.tar")
        Tar("jpeg").pack(part, packed, 0, Digest(0, "", ""))
        return packed.read_bytes()


def sparse_tar() -> bytes:
    """A header that promises terabytes of zeros, as GNU tar writes them."""
    info = tarfile.TarInfo("00000-0000000.jpg")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (0, 512)
    block[483:495] = b"\x80" + (1 << 44).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1536)


def array_record() -> bytes:
    from tpuctl.datasets.formats._arrayrecord import ArrayRecord
    from tpuctl.datasets.formats.records import Digest

    with tempfile.TemporaryDirectory() as folder:
        part, packed = written(shard(), Path(folder)), Path(folder, "x.arrayrecord")
        ArrayRecord().pack(part, packed, 0, Digest(0, "", ""))
        return packed.read_bytes()


def read_container(name: str) -> Callable[[bytes, Path], object]:
    def run(data: bytes, folder: Path) -> object:
        from tpuctl.datasets.formats import open_container

        path, container = written(data, folder), open_container(name, "jpeg")
        for _, record in container.read(path):
            read_example(record, folder)
        return [preview.whole() for preview in container.preview(path)]

    return run


def read_example(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.formats.records import decode_example, decode_leading_features

    return decode_leading_features(data), decode_example(data)


def read_elements(data: bytes, folder: Path) -> object:
    from tpuctl.datasets._elements import rebuild
    from tpuctl.datasets.formats.records import decode_example

    leaf = {"kind": "leaf", "name": "image", "dtype": "uint8"}
    text = {"kind": "leaf", "name": "key", "dtype": "str"}
    return rebuild(decode_example(data), {"kind": "dict", "items": {"a": leaf, "b": text}})


def elements() -> list[bytes]:
    import numpy as np

    from tpuctl.datasets._elements import flatten, structure_of
    from tpuctl.datasets.formats.records import encode_example

    element = {"image": np.zeros((2, 3), np.uint8), "key": "a"}
    features = flatten(element, structure_of(element))
    return [encode_example({name.removeprefix("/"): value for name, value in features.items()})]


def use_manifest(data: bytes, folder: Path) -> object:
    """Whoever reads a data set reads its manifest first."""
    from tpuctl.datasets.describe import contact_sheet, describe
    from tpuctl.datasets.verify import verify
    from tpuctl.errors import TpuctlError
    from tpuctl.profiling.inputs import is_shard_folder, read_shards
    from tpuctl.reporters import data as report

    for name, content in data_set().items():
        written(content, folder, name)
    written(data, folder, "manifest.json")
    shown(report.render_verified(verify(folder, deep=True)))
    for use in (describe, contact_sheet, is_shard_folder, read_shards):
        with contextlib.suppress(TpuctlError):
            use(folder)
    return verify(folder)


def read_quarantine(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.quarantine import read_quarantine

    return read_quarantine(data)


def read_work(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.shards.work import Work

    written(data, folder, "journal.jsonl")
    return Work(folder).finished()


def finished() -> list[bytes]:
    from tpuctl.codec import to_plain
    from tpuctl.datasets.manifest import FinishedShard

    shard = FinishedShard("a.tfrecord", 1, 1, "0" * 8, "0" * 64, "a", "b", job="j")
    return [json.dumps(to_plain(shard)).encode()]


def read_labels(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.inputs import ImageFile
    from tpuctl.datasets.plan import assign_labels

    pictures = [ImageFile(name, 1, 1) for name in ("a.jpg", "b/c.jpg")]
    return assign_labels(pictures, str(written(data, folder, "labels.csv")))


# ---- Images --------------------------------------------------------------------------------------


@cache
def images() -> list[bytes]:
    from PIL import Image

    from tests.pictures import encoded, exif, photograph
    from tests.test_image_bounds import overlapping, png, several_scans, tiff

    photo = photograph("flower", 40, 30)
    kinds = [encoded(photo, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    return [
        *kinds,
        encoded(photo, progressive=True, exif=exif(6)),
        encoded(photo.quantize(8), "GIF", save_all=True, append_images=[photo.quantize(4)]),
        encoded(Image.new("CMYK", (20, 20)), "TIFF", compression="tiff_lzw"),
        encoded(photo, "TIFF", big_tiff=True, compression="jpeg"),
        png(6, 4, interlaced=True, width=9, height=9),
        several_scans(16, 16),
        tiff({256: (4, 1, 16)}),
        overlapping(),
    ]


def read_header(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.images import file_type, headers, jpeg

    kind = file_type.sniff(data[: file_type.HEAD_BYTES])
    if kind != "jpeg":
        return headers.memory_for_tensorflow(data, kind) if kind in file_type.DECODABLE else None
    header = jpeg.read_header(data)
    walked = jpeg.ends_properly(data), jpeg.all_scans_present(data, header)
    return header.memory_bytes(8), walked, jpeg.drop_refinements(data, 2)


def decode_image(data: bytes, folder: Path) -> object:
    from tests.pictures import shrink

    return shrink(data, (16, 16), admit=admission(folder))


@cache
def admission(folder: Path) -> Any:
    from tpuctl.datasets.images.memory import Admission

    return Admission(folder, budget_bytes=1 << 30, workers=1, image_bytes=256 << 20)


def decode_record(data: bytes, folder: Path) -> object:
    from tpuctl.datasets.images._pixels import decode_picture

    for encode in ("jpeg", "png", "webp", "raw", "yuv420"):
        with contextlib.suppress(ValueError):
            decode_picture(data, encode, (30, 40, 3))
    return None


# ---- Profiles, programs and machines -------------------------------------------------------------


def trace() -> list[bytes]:
    from tests import xspaces

    planes = [*xspaces.training(4, wait_ms=20.0), xspaces.session(0, 10**9)]
    data = xspaces.space(planes)
    compressor = zlib.compressobj(9, wbits=31)
    return [data, compressor.compress(data) + compressor.flush()]


def read_trace(data: bytes, folder: Path) -> object:
    from tpuctl.profiling.trace.profile import profile_trace
    from tpuctl.reporters import profile as report

    return shown(report.render_profile(profile_trace(written(data, folder, "h.xplane.pb"))))


def read_wire(data: bytes, folder: Path) -> object:
    from tpuctl.protobuf_wire import decode_lanes, fields, varint

    with contextlib.suppress(*damaged()):
        varint(data, 0, len(data))
    decode_lanes(data[: len(data) & ~7])
    return list(fields(data, 0, len(data)))


def damaged() -> tuple[type[BaseException], ...]:
    from tpuctl.datasets.formats.records import DamagedRecordError
    from tpuctl.datasets.quarantine import BadImageError
    from tpuctl.protobuf_wire import Damaged

    return Damaged, DamagedRecordError, BadImageError


def tpuprof() -> list[bytes]:
    from tests.pipeline_cases import measurement, profile, starving
    from tpuctl.codec import to_plain

    made = {"schema": "tpuctl.profile/1", "profile": to_plain(profile(measurement(*starving())))}
    return [json.dumps(made).encode()]


def read_profile(data: bytes, folder: Path) -> object:
    from tpuctl.profiling.tpuprof import load
    from tpuctl.reporters import envelope, profile_html
    from tpuctl.reporters import profile as report

    profile = load(written(data, folder, "a.tpuprof"))
    envelope.success("profile show", profile).encode()
    return shown(report.render_profile(profile)), profile_html.profile_page(profile)


def read_machine(data: bytes, folder: Path) -> object:
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.reporters import envelope
    from tpuctl.reporters import machine as report
    from tpuctl.runtime.replay import open_recorded

    diagnosis = diagnose(open_recorded(written(data, folder, "machine.json")))
    envelope.success("doctor", diagnosis).encode()
    return shown(report.render_diagnosis(diagnosis))


def machine() -> list[bytes]:
    tpu_env = "ACCELERATOR_TYPE: 'v4-16'\nHOST_BOUNDS: '1,1,2'\nWORKER_ID: '0'\n"
    document = {
        "env": {"TPU_NAME": "local", "TPU_WORKER_ID": "1", "JAX_PLATFORMS": "tpu,cpu"},
        "files": {"/etc/tpu/tpu-env": tpu_env, "/dev/accel0": None},
        "pci": [{"addr": "0000:00:05.0", "vendor": "0x1ae0", "device": "0x005e"}],
        "metadata": {"instance/attributes/tpu-env": tpu_env, "instance/preempted": "FALSE"},
        "packages": {"jax": "0.7.2", "libtpu": "0.0.23"},
        "requires": {"jax": ["jaxlib<=0.7.2"]},
        "proc": {"processes": {"7": {"comm": "python", "fds": ["/dev/accel0"]}}},
    }
    return [json.dumps(document).encode()]


def read_program(data: bytes, folder: Path) -> object:
    from tpuctl.compile import program

    text = data.decode("utf-8", "replace")
    found = program.read_out_of_memory(text), program.read_report(text)
    return found, program.read_program(text)


def read_bench(data: bytes, folder: Path) -> object:
    from tpuctl.reporters import training as report
    from tpuctl.training.bench import compare, load

    bench = load(written(data, folder, "bench.json"))
    return shown(report.render_bench(bench)), compare(bench, bench)


def bench() -> list[bytes]:
    from dataclasses import asdict

    from tests.test_bench import GPU_S, sweep

    return [json.dumps({"schema": "tpuctl/1", "data": {**asdict(sweep("gpu", GPU_S))}}).encode()]


def read_reply(data: bytes, folder: Path) -> object:
    from tpuctl.runtime.metadata_server import _parse

    return _parse(data)


# ---- State, settings and words -------------------------------------------------------------------


def read_settings(data: bytes, folder: Path) -> object:
    from tpuctl import settings

    place = written(data, folder, "config.toml")
    return settings._read_trusted(place, [], follow_link=False)


def read_scenario(data: bytes, folder: Path) -> object:
    from tpuctl.emulator.scenario import load_scenario

    return load_scenario(written(data, folder, "scenario.json"))


def scenario() -> list[bytes]:
    zone = {"types": ["v5e-8"], "capacity_chips": 8, "quota_chips": 8}
    fault = {"on": "create_node", "error": "unavailable", "nth": 1}
    document = {
        "time_scale": 60, "zones": {"us-west4-a": zone}, "faults": [fault], "provision_s": 3.5,
        "rate_limits_per_minute": {"get_node": 6}, "buckets": {"bbb": {"location": "EU"}},
        "epoch": "2026-11-20T09:00:00Z", "os_login": {"me": ["ssh-ed25519 A"]},
    }  # fmt: skip
    return [json.dumps(document).encode()]


def read_journal(data: bytes, folder: Path) -> object:
    from tpuctl.cloud.journal import _read

    return _read(written(data, folder, "entry.json"))


def journal() -> list[bytes]:
    from tests.test_journal import entry
    from tpuctl.cloud.journal import _to_json

    return [_to_json(entry(create_id="c-1")).encode()]


def read_watch(data: bytes, folder: Path) -> object:
    from types import SimpleNamespace

    from tpuctl.supervise.state import StateFile

    api: Any = SimpleNamespace(project="p", endpoint="e")
    file = StateFile(api, "t", folder)
    file.path.write_bytes(data)
    return file.load()


def watch() -> list[bytes]:
    from tests.test_watch_parts import STATE
    from tpuctl.codec import to_plain
    from tpuctl.supervise.state import SCHEMA, SavedWatch

    saved = SavedWatch(SCHEMA, "o", "python train.py", False, STATE)
    return [json.dumps(to_plain(saved)).encode()]


def read_storage(data: bytes, folder: Path) -> object:
    from tpuctl.codec import from_plain, parse_json
    from tpuctl.storage._gcs_reading import Bucket, Item, Page

    document = parse_json(data)
    kinds: tuple[type[Any], ...] = (Item, Page, Bucket)
    for kind in kinds:
        with contextlib.suppress(ValueError):
            from_plain(kind, document)
    return None


def storage() -> list[bytes]:
    item = {"name": "a", "size": "3", "generation": "17", "crc32c": "AAAAAA=="}
    place = {"location": "EU", "customPlacementConfig": {"dataLocations": ["EUROPE-WEST4"]}}
    documents = item, {"items": [item], "nextPageToken": "x"}, place
    return [json.dumps(document).encode() for document in documents]


def read_service(data: bytes, folder: Path) -> object:
    from google.cloud import tpu_v2
    from google.longrunning import operations_pb2
    from google.protobuf.message import DecodeError

    from tpuctl.cloud import _google_protos as protos

    with contextlib.suppress(DecodeError):
        protos.node_of(tpu_v2.Node.pb().FromString(data))
    with contextlib.suppress(DecodeError):
        protos.queued_resource_of(tpu_v2.QueuedResource.pb().FromString(data))
    with contextlib.suppress(DecodeError):
        protos.operation_of(operations_pb2.Operation.FromString(data), "p")
    return None


def service() -> list[bytes]:
    from google.cloud import tpu_v2

    name = "projects/p/locations/us-west4-a/nodes/t"
    node = tpu_v2.Node(name=name, accelerator_type="v5e-8", create_time=NOW, labels={"a": "b"})
    queued = tpu_v2.QueuedResource(name=name.replace("nodes", "queuedResources"))
    queued.tpu.node_spec = [tpu_v2.QueuedResource.Tpu.NodeSpec(node=node, node_id="t")]
    messages = [tpu_v2.Node.serialize(node), tpu_v2.QueuedResource.serialize(queued)]
    return [*messages, b"\x22\x07seconds"]


def read_kubeconfig(data: bytes, folder: Path) -> object:
    from tpuctl.providers.gke._kubeconfig import Login, find_context

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", str(written(data, folder, "kubeconfig")))
        context = find_context()
    # The program that asks for a login is the user's own choice, and would be started.
    context.user.pop("exec", None)
    login = Login(context)
    return login.headers(), login.tls()


def kubeconfigs() -> list[bytes]:
    text = """current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1", tls-server-name: x}}]
users: [{name: u, user: {token: t, username: me, client-key-data: eA==}}]
"""
    return [text.encode()]


def all_answers(uses: Sequence[Callable[[], object]]) -> object:
    """Use one reply in every way; a refusal of one use does not end the others."""
    answers: list[object] = []
    for use in uses:
        try:
            answers.append(use())
        except TpuctlError as error:
            refused = error
    if not answers:
        raise refused
    return answers


def object_of(data: bytes) -> Any:
    document = parse_json(data)
    return document if isinstance(document, dict) else {}


def read_kubernetes(data: bytes, folder: Path) -> object:
    from tpuctl.providers.gke._kubeconfig import Context, to_yaml
    from tpuctl.providers.gke.client import Cluster
    from tpuctl.providers.gke.provider import Gke
    from tpuctl.reporters import envelope

    class Answering(Cluster):
        def _call(self, *_: Any, **__: Any) -> Any:
            return reply

    reply = object_of(data)
    gke = Gke(None, lambda text: None)
    gke.__dict__["cluster"] = Answering(Context("c", "n", {"server": "x"}, {}, folder, folder))
    to_yaml(reply)
    return all_answers([
        lambda: envelope.success("list", gke.list(None)).encode(), lambda: gke.get("t1", None),
        lambda: gke.plan_delete(None, None), lambda: gke.stop("t1"),
    ])  # fmt: skip


def kubernetes() -> list[bytes]:
    meta = {
        "name": "t1", "uid": "u", "creationTimestamp": "2026-11-22T00:00:00Z",
        "labels": {"tpuctl.dev/accelerator-type": "v6e-16"}, "annotations": {"a": "b"},
    }  # fmt: skip
    job = {"name": "w", "replicas": 1, "template": {"spec": {"completions": 4}}}
    condition = {"type": "Failed", "status": "True", "reason": "x", "message": "no"}
    ended = {"exitCode": 1, "reason": "Error"}
    status = {
        "phase": "Running", "hostIP": "10.0.0.1", "restarts": 2, "terminalState": "Failed",
        "conditions": [condition],
        "containerStatuses": [{"name": "c", "state": {"terminated": ended}}],
    }  # fmt: skip
    one = {"metadata": meta, "spec": {"replicatedJobs": [job]}, "status": status}
    return [json.dumps({**one, "items": [one]}).encode()]


def read_compute(data: bytes, folder: Path) -> object:
    from tpuctl.clock import ManualClock
    from tpuctl.cloud._google_channel import Connection
    from tpuctl.cloud.endpoint import Endpoint
    from tpuctl.cloud.gce._api import ComputeApi
    from tpuctl.cloud.models import ALL_ZONES
    from tpuctl.cloud.retry import load_request_limits
    from tpuctl.cloud.service_clock import ServiceClock

    reply = object_of(data)
    where = Connection(Endpoint("127.0.0.1:1", True), None, ServiceClock(ManualClock(NOW)))
    api = ComputeApi(where, project="p", limits=load_request_limits())
    api._http._send = lambda *_: reply  # type: ignore[method-assign]
    return all_answers([
        lambda: api.get_node("t1", zone="us-central1-a"), lambda: api.list_nodes(ALL_ZONES),
        lambda: api.list_nodes("us-central1-a", leftovers=True),
        lambda: api.delete_node("t1", zone="us-central1-a"),
        lambda: api.why_gone("t1", zone="us-central1-a"), api.list_zones, api.list_quotas,
        lambda: api.list_accelerator_types("us-central1-a"), lambda: api.bucket_location("b"),
        lambda: api.get_operation("projects/p/zones/us-central1-a/operations/o"),
    ])  # fmt: skip


def compute() -> list[bytes]:
    vm = {
        "name": "t1", "id": "7", "zone": "zones/us-central1-a", "status": "RUNNING",
        "machineType": "zones/us-central1-a/machineTypes/ct6e-standard-8t", "labels": {"a": "b"},
        "creationTimestamp": "2026-11-22T00:00:00.000-08:00",
        "networkInterfaces": [{"networkIP": "10.0.0.1", "accessConfigs": [{"natIP": "1.2.3.4"}]}],
        "metadata": {"items": [{"key": "k", "value": "v"}], "fingerprint": "f"},
        "scheduling": {"provisioningModel": "SPOT", "maxRunDuration": {"seconds": "60"}},
        "disks": [{"source": "disks/d", "deviceName": "d", "mode": "READ_ONLY"}],
    }  # fmt: skip
    failed = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no"}]}
    operation = {"operationType": "compute.instances.preempted", "insertTime": NOW.isoformat()}
    scope = {"instances": [vm], "warning": {"code": "UNREACHABLE"}}
    page = {"items": [vm, operation], "unreachables": ["zones/x"], "managedInstances": [vm]}
    return [
        json.dumps({**vm, **page}).encode(),
        json.dumps({**vm, "items": {"zones/us-central1-a": scope}, "error": failed}).encode(),
    ]


def read_colab(data: bytes, folder: Path) -> object:
    from tpuctl.clock import ManualClock
    from tpuctl.cloud.service_clock import ServiceClock
    from tpuctl.providers.colab._control_planes import PublicApi, TunnelApi

    reply = object_of(data)
    login = SimpleNamespace(tunnel="http://a", public="http://a")
    clock = ServiceClock(ManualClock(NOW))
    http: Any = SimpleNamespace(login=login, clock=clock, call=lambda *_, **__: reply)
    tunnel = TunnelApi(http)
    public = PublicApi(http, tunnel)
    return all_answers([
        use
        for plane in (tunnel, public)
        for use in (
            plane.list, plane.units, plane.eligible, partial(plane.find, "k"),
            partial(plane.create, "k", "V5E1"), partial(plane.delete, "r"),
        )
    ])  # fmt: skip


def colab() -> list[bytes]:
    way = {"url": "https://a", "token": "t", "tokenExpiresInSeconds": "3600", "expireTime": "2026"}
    one = {
        "endpoint": "e", "accelerator": "V5E1", "runtimeProxyInfo": way, "connectionInfo": way,
        "name": "runtimes/a", "runtimeSpec": {"accelerator": "V5E1"}, "outcome": 1, "token": "t",
    }  # fmt: skip
    more = {"done": True, "response": one, "currentBalance": 9.5, "consumptionRateHourly": 2}
    return [json.dumps({**one, **more, "assignments": [one], "runtimes": [one]}).encode()]


def read_kaggle(data: bytes, folder: Path) -> object:
    from tpuctl.providers.kaggle.client import KaggleClient
    from tpuctl.providers.kaggle.login import Endpoint
    from tpuctl.providers.kaggle.provider import Kaggle

    class Answering(KaggleClient):
        def _call(self, *_: Any, **__: Any) -> Any:
            return reply

    reply = object_of(data)
    client = Answering(Endpoint("http://127.0.0.1:1/x", True))
    ours = Kaggle(None, lambda text: None)
    ours.__dict__["client"] = client
    return all_answers([
        lambda: ours.list(None), ours.balance, lambda: ours.find_orphans(None),
        lambda: ours.plan_delete(None, None),
        lambda: client.push({}), lambda: client.version_of("a"), lambda: client.status("a", 1),
        lambda: client.outputs("a", 1), lambda: client.data_status("a"),
    ])  # fmt: skip


def kaggle() -> list[bytes]:
    hours = {"timeUsed": "3600s", "timeReserved": "0s", "totalTimeAllowed": "72000s"}
    file = {"fileName": "a/b", "url": "https://a"}
    kernel = {"ref": "me/tpuctl-a", "title": "a", "lastRunTime": "2026-11-22T00:00:00Z"}
    return [json.dumps({
        "tpuQuota": hours, "quotaRefreshTime": "2026-11-30T00:00:00Z", "versionNumber": 1,
        "metadata": {"currentVersionNumber": 1}, "status": "RUNNING", "failureMessage": "no",
        "files": [file], "kernels": [kernel], "username": "me", "active": True,
    }).encode()]  # fmt: skip


def explain_log(data: bytes, folder: Path) -> object:
    from tpuctl.diagnosis.explain import explain
    from tpuctl.reporters import machine as report
    from tpuctl.usercode.error_summary import last_line, ran_out_of_memory

    text = data.decode("utf-8", "replace")
    last_line(text), ran_out_of_memory(text)
    return shown(report.render_explanation(explain(text)))


def read_words(data: bytes, folder: Path) -> object:
    from tpuctl.cloud.endpoint import parse_endpoint
    from tpuctl.cloud.plan import parse_data_disk
    from tpuctl.datasets.models import allowed_bad, parse_part, parse_sizes
    from tpuctl.emulator.storage.reading import read_range
    from tpuctl.errors import TpuctlError
    from tpuctl.hardware.types import describe, generation_of_type, parse_type
    from tpuctl.profiling.compare import parse_limits
    from tpuctl.remote.hosts import parse_hosts, parse_workers, split_user
    from tpuctl.runtime import versions
    from tpuctl.runtime.machine import parse_count
    from tpuctl.training.bench import parse_batches
    from tpuctl.units import format_bytes, format_duration, parse_bytes, parse_duration_s
    from tpuctl.usercode.function import parse_function

    text = data.decode("utf-8", "surrogateescape")
    readers: tuple[Callable[[str], object], ...] = (
        parse_endpoint, parse_data_disk, parse_part, parse_sizes, describe, parse_type, parse_count,
        generation_of_type, parse_batches, parse_function, lambda text: parse_limits([text]),
        lambda text: format_bytes(parse_bytes(text)), lambda text: allowed_bad(text, 10),
        lambda text: format_duration(parse_duration_s(text)), parse_hosts, parse_workers,
        split_user, versions.parse, lambda text: versions.satisfies("2.1.0", text),
        lambda text: read_range(text, 100),
    )  # fmt: skip
    for read in readers:
        with contextlib.suppress(TpuctlError):
            read(text)
    return None


def words() -> list[bytes]:
    known = ["128MiB", "1.5 GB", "1h30m", "v5litepod-16", "v4-8", "2x4", "224,256x192", "0/4", "1%"]
    more = ["p:f", "a/b.py:make", "64,128", "idle_fraction>0.2", "localhost:8080", "https://x/y"]
    return [
        word.encode()
        for word in (
            *known,
            *more,
            "²",
            "source=d,mode=ro",
            "9" * 400,
            "1e999",
            "me@[::1]:22,b",
            "0,2-3",
            "bytes=0-9",
            ">=2,<3",
        )
    ]


def lint_it(suffix: str) -> Callable[[bytes, Path], object]:
    """Lint a file, in every format, and let it be fixed; it must still be a file after that."""

    def run(data: bytes, folder: Path) -> object:
        from tpuctl.linting.run import lint_paths
        from tpuctl.reporters import envelope
        from tpuctl.reporters import lint as report

        path = written(data, folder, f"input{suffix}")
        found = lint_paths([path])
        envelope.success("lint", found).encode()
        json.loads(report.render_sarif(found)), report.render_github(found)
        lint_paths([path], fixes=True)
        assert path.read_bytes() == data or suffix == ".py" or json.loads(path.read_bytes())
        return report.render_lint(lint_paths([path], diff=True))

    return run


def notebooks() -> list[bytes]:
    from tests.lint_cases import notebook

    old = "import tensorflow as tf\ntpu = tf.contrib.cluster_resolver.TPUClusterResolver()\n"
    return [notebook(old, "# % words", "%pip install x\nmodel.fit(x, steps=3)").encode()]


def explain_notebook(data: bytes, folder: Path) -> object:
    from tpuctl.diagnosis.explain import explain
    from tpuctl.diagnosis.log_text import notebook_errors

    return explain(notebook_errors(io.BytesIO(data), "a.ipynb"))


def failed_notebook() -> list[bytes]:
    output = {"output_type": "error", "ename": "E", "evalue": "no", "traceback": ["F05"]}
    stream = {"output_type": "stream", "name": "stderr", "text": ["libtpu.so already in use"]}
    return [json.dumps({"cells": [{"cell_type": "code", "outputs": [output, stream]}]}).encode()]


def read_known_hosts(data: bytes, folder: Path) -> object:
    from tpuctl.remote._known_hosts import HostKeyRules
    from tpuctl.remote.access import HostKeys
    from tpuctl.remote.hosts import parse_hosts

    path = written(data, folder, "known_hosts")
    (host,) = parse_hosts("me@127.0.0.1:22")
    return HostKeys(path).find(host), HostKeyRules(("127.0.0.1",), (path,), "ask").find("127.0.0.1")


def known_hosts() -> list[bytes]:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    lines = (f"127.0.0.1 {key}", f"@revoked * {key}", f"|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|a= {key}")
    return ["\n".join(lines).encode()]


def read_frames_of_a_worker(data: bytes, folder: Path) -> object:
    from tpuctl.remote.agent import wire
    from tpuctl.remote.agent.tree import read_entries

    found = []
    for kind, payload in wire.split_frames(bytearray(data)):
        with contextlib.suppress(wire.WireError):
            found.append(wire.read_block(kind, payload))
        with contextlib.suppress(wire.WireError, wire.Refusal):
            found += read_entries(wire.read_note(payload).get("rows"))  # type: ignore[arg-type]
    return found


def frames() -> list[bytes]:
    from tpuctl.remote.agent import wire

    rows = [["a", "f", 420, 3, 1, ""], ["b", "l", 511, 0, 1, "a"], ["c", "d", 493, 0, 1, ""]]
    return [wire.note(rows=rows) + wire.block(b"x" * 5000)]


def read_multipart(data: bytes, folder: Path) -> object:
    from tpuctl.emulator.multipart import read_parts

    return read_parts(data, "multipart/mixed; boundary=x")


def multipart() -> list[bytes]:
    part = b"--x\r\nContent-Type: application/json\r\n\r\n{}\r\n"
    return [part + part + b"--x--"]


def read_time_header(data: bytes, folder: Path) -> object:
    from tpuctl.cloud.service_clock import read_time

    return read_time({"Date": data.decode("latin-1"), "tpuctl-emulated-scale": "60"})


def read_records(data: bytes, folder: Path) -> object:
    """What stands in the state folder of what was asked of Colab and Kaggle."""
    from tpuctl.providers.batch import RunStore
    from tpuctl.providers.colab.records import Records

    written(data, folder, "r.json")
    records = Records()
    records.folder = folder
    return RunStore(folder).find("r") or records.find("r")


def records() -> list[bytes]:
    from tpuctl.codec import to_plain
    from tpuctl.providers.batch import Run
    from tpuctl.providers.colab.records import Record

    run = Run("r", "k", "t.py", "https://x", "me", "/out", NOW, 60.0)
    both = {"schema": "tpuctl-kaggle/1", **to_plain(run)}, to_plain(Record("r", "k", "v5e-1", NOW))
    return [json.dumps(each).encode() for each in both]


def lines(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


from tpuctl.remote.agent.wire import WireError  # noqa: E402

BAD: tuple[type[BaseException], ...] = (ValueError, *damaged())
TARGETS: dict[str, Target] = {
    "wire": Target(read_wire, trace, BAD),
    "trace": Target(read_trace, trace),
    "example": Target(read_example, lambda: [example()]),
    "elements": Target(read_elements, elements, (ValueError, KeyError, TypeError)),
    "tfrecord": Target(read_container("tfrecord"), lambda: [shard()], BAD),
    "tar": Target(read_container("wds"), lambda: [tar(), sparse_tar()], BAD),
    "array_record": Target(read_container("arrayrecord"), lambda: [array_record()], BAD),
    "image_header": Target(read_header, images, BAD),
    "image": Target(decode_image, images, BAD),
    "record_image": Target(decode_record, images, BAD),
    "labels": Target(read_labels, lines("path,label\na.jpg,cat\nb/c.jpg,dog\n", '"a\n.jpg",1\n')),
    "program": Target(read_program, lambda: [(HERE / "fit/loop.hlo").read_bytes()]),
    "metadata_reply": Target(
        read_reply, lines("HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\nv4-8")
    ),
    "settings": Target(read_settings, lines('project = "p"\nzone = "us-west4-a"\n')),
    "log": Target(explain_log, lines("RuntimeError: libtpu.so already in use by process 7\nF05")),
    "words": Target(read_words, words),
    "service": Target(read_service, service),
    "script": Target(
        lint_it(".py"),
        lines("import tensorflow as tf\ntf.contrib.tpu.x()\nmodel.fit(x, batch_size=3)\n"),
        cost=4,
    ),
    "known_hosts": Target(read_known_hosts, known_hosts, BAD),
    "frames": Target(read_frames_of_a_worker, frames, (WireError,)),
    "multipart": Target(read_multipart, multipart, BAD),
    "kubeconfig": Target(read_kubeconfig, kubeconfigs, BAD),
    "time": Target(read_time_header, lines("Sun, 22 Nov 2026 21:59:51 GMT")),
}
JSON_TARGETS: dict[str, Target] = {
    "manifest": Target(use_manifest, lambda: [data_set()["manifest.json"]], cost=4),
    "quarantine": Target(read_quarantine, lambda: [data_set()["quarantine.jsonl"]]),
    "work": Target(read_work, finished),
    "tpuprof": Target(read_profile, tpuprof, cost=4),
    "machine": Target(read_machine, machine, cost=2),
    "bench": Target(read_bench, bench),
    "scenario": Target(read_scenario, scenario),
    "journal": Target(read_journal, journal),
    "watch": Target(read_watch, watch),
    "storage": Target(read_storage, storage, BAD),
    "notebook": Target(lint_it(".ipynb"), notebooks, cost=4),
    "failed_notebook": Target(explain_notebook, failed_notebook),
    "records": Target(read_records, records),
    "kubernetes": Target(read_kubernetes, kubernetes, (ValueError,), cost=2),
    "compute": Target(read_compute, compute, (ValueError,), cost=2),
    "colab": Target(read_colab, colab, (ValueError,)),
    "kaggle": Target(read_kaggle, kaggle, (ValueError,)),
}


# ---- Damage --------------------------------------------------------------------------------------


def damage_bytes(seed: bytes, rng: random.Random) -> bytes:
    """Change, insert, repeat, move and cut some bytes."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        number = rng.choice((0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, (1 << 64) - 1, rng.randrange(256)))
        new = number.to_bytes(8, rng.choice(("little", "big"))).strip(b"\0") or b"\0"
        change = rng.choice(("write", "insert", "cut", "end", "repeat", "noise"))
        if change == "write":
            data[at : at + len(new)] = new
        elif change == "insert":
            data[at:at] = new
        elif change == "cut":
            del data[min(at, other) : min(at, other) + rng.randrange(1, 40)]
        elif change == "end":
            del data[at:]
        elif change == "repeat":
            data[at:at] = data[other : other + rng.randrange(1, 60)] * rng.choice((1, 3, 50))
        else:
            data[at : at + 4] = rng.randbytes(4)
    return bytes(data[:MOST_BYTES])


def damage_json(seed: bytes, rng: random.Random) -> bytes:
    """Put odd values anywhere, leave keys out, repeat items."""
    document = json.loads(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = list(places_in(document))
        holder, key = rng.choice(places) if places else ([document], 0)
        change = rng.choice(("odd", "odd", "odd", "drop", "repeat", "swap"))
        if change == "drop":
            del holder[key]
        elif change == "repeat" and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 30))))
        elif change == "swap" and places:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other[name])
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    return json.dumps(document).encode()


def places_in(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, (dict, list)) and depth < 20:
            yield from places_in(item, depth + 1)


JSON_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    JSON_SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """What Hypothesis tries on a parser: anything, and damage to what it understands."""
    chance, seeds = st.randoms(use_true_random=False), st.sampled_from(seeds_of(name))
    damaged = st.builds(damage_bytes, seeds, chance)
    if name not in JSON_TARGETS:
        return st.one_of(damaged, st.binary(max_size=200))
    document = JSON.map(lambda value: json.dumps(value).encode())
    return st.one_of(st.builds(damage_json, seeds, chance), document, damaged)


@cache
def seeds_of(name: str) -> list[bytes]:
    return (TARGETS.get(name) or JSON_TARGETS[name]).seeds()


def damaged_input(name: str, number: int) -> bytes:
    """The n-th damaged input of a target: the same on every machine."""
    rng = random.Random(f"{name} {number}")
    seed = rng.choice(seeds_of(name))
    if name in JSON_TARGETS and rng.random() < 0.8:
        return damage_json(seed, rng)
    return damage_bytes(seed, rng)


# ---- make fuzz -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*TARGETS, *JSON_TARGETS])
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        run_child(options.names[0], options.seconds)
        return 0
    FAILURES.mkdir(parents=True, exist_ok=True)
    failed, total = [], 0
    for name in options.names:
        command = [sys.executable, "-m", "tests.fuzzing", "--child", name]
        command += ["--seconds", str(options.seconds)]
        done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        said = done.stderr.decode("utf-8", "replace")
        counts = [int(n) for n in re.findall(r"number_of_executed_units: *(\d+)", said)]
        total += sum(counts)
        say(f"{name:15} {sum(counts):12,} inputs  {'failed' if done.returncode else 'ok'}")
        if done.returncode:
            failed.append(name)
            say(said[-3000:])
    say(f"{total:,} inputs; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_child(name: str, seconds: int) -> None:
    """Fuzz one target, guided by the coverage of tpuctl's own code where that can be seen."""
    target = TARGETS.get(name) or JSON_TARGETS[name]
    limit = MEMORY_MIB << 20
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder, corpus = Path(place, "work"), Path(place, "corpus")
        folder.mkdir()
        corpus.mkdir()
        seeds = [*target.seeds(), *(damaged_input(name, number) for number in range(100))]
        for number, seed in enumerate(seeds):
            written(seed, corpus, f"seed-{number:03}")
        try:
            import atheris
        except ImportError:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            fuzz_blindly(name, target, folder, seconds)
            return
        arguments = [
            f"-max_total_time={seconds}", "-seed=1", f"-rss_limit_mb={MEMORY_MIB}",
            f"-timeout={LONGEST_S}", f"-max_len={MOST_BYTES}", "-print_final_stats=1",
            f"-artifact_prefix={FAILURES}/{name}-",
        ]  # fmt: skip
        for module in [name for name in sys.modules if name.startswith("tpuctl")]:
            for item in vars(sys.modules[module]).values():
                if getattr(item, "__module__", None) == module and hasattr(item, "__code__"):
                    atheris.instrument_func(item)
        atheris.Setup(
            [sys.argv[0], *arguments, str(corpus)], lambda data: target.check(data, folder)
        )
        atheris.Fuzz()


def fuzz_blindly(name: str, target: Target, folder: Path, seconds: int) -> None:
    end, number = time.monotonic() + seconds, 0
    # The default action of SIGALRM would end it without the input.
    signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail(f"took {LONGEST_S} s"))
    while time.monotonic() < end:
        data = damaged_input(name, number)
        signal.alarm(LONGEST_S)
        try:
            target.check(data, folder)
        except BaseException:
            written(data, FAILURES, f"{name}-{number}")
            raise
        number += 1
    sys.stderr.write(f"number_of_executed_units: {number}\n")


if __name__ == "__main__":
    sys.exit(main())
