"""Colab and Kaggle may answer with any JSON and any header: an answer or one of our errors."""

import gzip
import http.client
import itertools
import json
import os
import random
import resource
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("google.auth")
pytest.importorskip("asyncssh")

from tests.cloud_world import Worlds
from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import EMULATOR_TOKEN, Tpuctl
from tests.fuzzing import damage_json
from tests.gce_world import ZONE, open_gce
from tests.gke_world import Clusters, launch
from tests.gke_world import cluster as cluster
from tests.kaggle_world import Kaggles, World
from tests.kaggle_world import kaggle as kaggle
from tests.test_gce import make
from tpuctl.cloud.connect import connect
from tpuctl.cloud.create import Created
from tpuctl.cloud.models import ALL_ZONES
from tpuctl.cloud.service_clock import EMULATED_SCALE, EMULATED_TIME
from tpuctl.emulator.colab._server import _Handler
from tpuctl.errors import InvalidInputError, TpuctlError, UnavailableError
from tpuctl.providers.colab._control_planes import open_control_plane
from tpuctl.providers.gke._kubeconfig import Context
from tpuctl.providers.gke.client import Cluster, find_context
from tpuctl.providers.gke.follow import Follower
from tpuctl.providers.gke.provider import Gke
from tpuctl.providers.kaggle.client import KaggleClient
from tpuctl.providers.kaggle.follow import _place
from tpuctl.providers.kaggle.login import find_endpoint
from tpuctl.providers.kaggle.provider import Kaggle

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("FUZZ_EXAMPLES", "3"))
HEADERS = (
    "Retry-After: \xb2", "Retry-After: " + "9" * 500, "Range: bytes=0-" + "9" * 5000,
    "Date: never", "tpuctl-emulated-scale: nan", "X: y",
)  # fmt: skip


# So that the wait before a request is sent again passes as fast as the emulator's time.
PASSED = {"content-type", EMULATED_TIME, EMULATED_SCALE}


class Liar:
    """Between a client and an emulator: damages replies while `chance` is set."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.chance: random.Random | None = None
        self.asked = 0

    def reply(
        self, verb: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        self.asked += 1
        request = urllib.request.Request(
            f"{self.upstream}{path}", body or None, headers, method=verb
        )
        try:
            with urllib.request.urlopen(request) as answer:
                status, data, about = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, data, about = error.code, error.read(), error.headers
        passed = {name: text for name, text in about.items() if name.lower() in PASSED}
        if self.chance is None or not data:
            return status, data, passed
        text = data.decode().removeprefix(")]}'")
        with suppress(ValueError):
            data = damage_json(text.encode(), self.chance)
        if self.chance.random() < 0.1:
            data = self.chance.choice((b"[" * 50_000, b"", b"null", b"7", b"\xff\xfe", b'"x"'))
        if self.chance.random() < 0.1:
            status = self.chance.choice((400, 401, 403, 404, 409, 412, 429, 500, 503))
        return status, data, passed


@contextmanager
def lying(upstream: str) -> Iterator[tuple[Liar, str]]:
    liar = Liar(upstream)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {k: v for k, v in self.headers.items() if k not in ("Host", "Accept-Encoding")}
            status, data, passed = liar.reply(self.command, self.path, body, kept)
            self.send_response(status)
            for name, value in passed.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            if liar.chance:
                name, _, value = liar.chance.choice(HEADERS).partition(": ")
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield liar, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def try_all(liar: Liar, uses: dict[str, Callable[[], object]]) -> dict[str, set[str]]:
    """What each use ended in; anything but an answer or one of our errors is raised."""
    ends: dict[str, set[str]] = {name: set() for name in uses}
    for number in range(ROUNDS):
        for name, use in uses.items():
            liar.chance = random.Random(f"{name} {number}")
            try:
                use()
                ends[name].add("answered")
            except TpuctlError as error:
                ends[name].add("bug" if "is a bug" in str(error) else "refused")
    liar.chance = None
    return ends


def test_kaggle_may_answer_anything(kaggle: Kaggles, monkeypatch: pytest.MonkeyPatch) -> None:
    world: World = kaggle()
    world.client.push(world.push("open('a', 'w').write('x')", slug="practice/tpuctl-first"))
    list(world.client.log("tpuctl-first", 1))
    place = urlsplit(world.emulator.http)
    with lying(f"http://{place.netloc}") as (liar, address):
        monkeypatch.setenv("TPUCTL_KAGGLE_ENDPOINT", f"{address}{place.path}")
        client, ours = KaggleClient(), Kaggle(None, lambda text: None)
        uses: dict[str, Callable[[], object]] = {
            "quota": client.quota,
            "version": lambda: client.version_of("tpuctl-first"),
            "status": lambda: client.status("tpuctl-first", 1),
            "outputs": lambda: client.outputs("tpuctl-first", 1),
            "log": lambda: list(client.log("tpuctl-first", 1)),
            "push": lambda: client.push(
                world.push("", slug="practice/tpuctl-first", sessionTimeoutSeconds=60)
            ),
            "data": lambda: client.create_data("tpuctl-x", Path(__file__), "x"),
            "data status": lambda: client.data_status("tpuctl-x"),
            "list": lambda: ours.list(None),
            "gc": lambda: ours.find_orphans(None),
            "delete": lambda: ours.plan_delete(None, None),
            "offers": lambda: ours.offers(None),
            "balance": ours.balance,
        }
        ends = try_all(liar, uses)
    assert set().union(*ends.values()) == {"answered", "refused"}


@pytest.mark.parametrize("plane", ["tun", "public"])
def test_colab_may_answer_anything(
    colab_world: ColabWorld, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world(scale=600.0)
    with lying(colab.url) as (liar, address):
        monkeypatch.setenv("TPUCTL_COLAB_ENDPOINT", address)
        api = open_control_plane(plane)
        runtime = api.create("0" * 32, "V5E1")
        uses: dict[str, Callable[[], object]] = {
            "find": lambda: api.find("0" * 32),
            "create": lambda: api.create("0" * 32, "V5E1"),
            "list": api.list,
            "units": api.units,
            "eligible": api.eligible,
            "keep alive": lambda: api.keep_alive(runtime.id),
            "delete": lambda: api.delete("tpuctl-none"),
            "open": open_control_plane,
        }
        ends = try_all(liar, uses)
    assert set().union(*ends.values()) == {"answered", "refused"}


def asks(tpuctl: Tpuctl, *words: str) -> Callable[[], None]:
    """A command that raises the error which it reports."""

    def ask() -> None:
        for error in tpuctl(*words, "--json").document["errors"]:
            raise TpuctlError(error["message"])

    return ask


def test_a_cluster_may_answer_anything(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world, heard = cluster({"node_pools": [{"accelerator_type": "v6e-1"}]}), list[bytes]()
    assert tpuctl(*launch("--job", "done", type="v6e-1")).exit_code == 0
    config, place = Path(os.environ["KUBECONFIG"]), urlsplit(world.emulator.http).netloc
    with lying(f"http://{place}") as (liar, address):
        config.write_text(config.read_text().replace(place, urlsplit(address).netloc))
        ours = Gke(None, lambda text: None)
        assert [each.name for each in ours.list(None).tpus] == []
        logs = partial(
            ours.logs, "done", sink=lambda _, line: heard.append(line), note=lambda _: None
        )
        uses: dict[str, Callable[[], object]] = {
            "list": lambda: ours.list(None),
            "show": lambda: ours.get("done", None),
            "delete": lambda: ours.plan_delete(None, None),
            "logs": lambda: logs(to_end=False),
            "follow": lambda: logs(to_end=True),
            "stop": lambda: ours.stop("done"),
            "launch": asks(tpuctl, *launch("--detach", type="v6e-1")),
            "plan": asks(tpuctl, *launch("--dry-run", "--kueue", "q", type="v6e-1")),
        }
        ends = try_all(liar, uses)
    assert set().union(*ends.values()) == {"answered", "refused"}


def test_compute_engine_may_answer_anything(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    here = open_gce(world, monkeypatch)
    for name, kind in (("t1", "v6e-8"), ("s1", "v6e-16")):
        assert isinstance(make(here.api, name, kind), Created)
    with lying(str(here.world.emulator.http)) as (liar, address):
        api = connect("practice", control_plane="gce", endpoint=address, clock=here.clock)
        slice_ = api.get_node("s1", zone=ZONE)
        uses: dict[str, Callable[[], object]] = {
            "list": lambda: api.list_nodes(ALL_ZONES),
            "leftovers": lambda: api.list_nodes(ZONE, leftovers=True),
            "vm": lambda: api.get_node("t1", zone=ZONE),
            "slice": lambda: api.get_node("s1", zone=ZONE),
            "why gone": lambda: api.why_gone("t1", zone=ALL_ZONES),
            "zones": lambda: connect(
                "practice", control_plane="gce", endpoint=address, clock=here.clock
            ).list_zones(),
            "quotas": api.list_quotas,
            "bucket": lambda: api.bucket_location("bucket"),
            "keys": lambda: api.guest_attributes(slice_, "hostkeys/"),
            "label": lambda: api.set_metadata(slice_, {"a": "b"}),
            "delete": lambda: api.delete_node("another", zone=ZONE),
        }
        ends = try_all(liar, uses)
    assert set().union(*ends.values()) == {"answered", "refused"}


@pytest.mark.parametrize("page", ["compute", "kubernetes"])
def test_a_list_of_endless_pages_is_given_up(
    page: str, world: Worlds, cluster: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"items": {} if page == "compute" else [], "nextPageToken": "x"}
    with lying("http://127.0.0.1:9") as (liar, address):
        body = json.dumps({"kind": "List", **more, "metadata": {"continue": "x"}}).encode()
        liar.reply = lambda *_: (200, body, {})  # type: ignore[method-assign]
        if page == "compute":
            here = open_gce(world, monkeypatch)
            api = connect("practice", control_plane="gce", endpoint=address, clock=here.clock)
            read: Callable[[], object] = api.list_zones
        else:
            place = urlsplit(cluster().emulator.http).netloc
            config = Path(os.environ["KUBECONFIG"])
            config.write_text(config.read_text().replace(place, urlsplit(address).netloc))
            read = partial(Gke(None, lambda _: None).list, None)
        with pytest.raises(UnavailableError, match="endless"):
            read()


def test_an_answer_without_end_is_not_read_to_its_end(
    colab_world: ColabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world()
    with lying(colab.url) as (liar, address):
        monkeypatch.setenv("TPUCTL_COLAB_ENDPOINT", address)
        api = open_control_plane("tun")
        liar.reply = lambda *_: (200, b"[" + b"0," * (8 << 20), {})  # type: ignore[method-assign]
        with pytest.raises(TpuctlError, match="too long"):
            api.list()


def test_a_packed_answer_without_end_is_not_unpacked_to_its_end(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.cloud.gce._http.MAX_DOCUMENT_BYTES", 8 << 20)
    bomb = gzip.compress(b" " * (200 << 20), 1)
    here = open_gce(world, monkeypatch)
    with lying("http://127.0.0.1:9") as (liar, address):
        api = connect("practice", control_plane="gce", endpoint=address, clock=here.clock)
        liar.reply = lambda *_: (200, bomb, {"Content-Encoding": "gzip"})  # type: ignore[method-assign]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UnavailableError, match="too long"):
            api.list_zones()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "a/../../b", "a//b", ".", "a/.", "a\0b", "\udcff", "\ud800/x", ""],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError):
        _place(tmp_path / "out", name)
    assert [path.name for path in tmp_path.rglob("*")] in ([], ["out"], ["out", "a"])


@pytest.mark.parametrize(
    "scheme", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://127.0.0.1:1/x"]
)
def test_what_is_uploaded_goes_to_https_or_the_emulator(
    kaggle: Kaggles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    world: World = kaggle()
    place = urlsplit(world.emulator.http)
    (tmp_path / "secret").write_text("x")
    with lying(f"http://{place.netloc}") as (liar, address):
        monkeypatch.setenv("TPUCTL_KAGGLE_ENDPOINT", f"{address}{place.path}")
        given = json.dumps(
            {"token": "t", "createUrl": scheme, "active": True, "username": "me"}
        ).encode()
        liar.reply = lambda *_: (200, given, {})  # type: ignore[method-assign]
        client = KaggleClient()
        with pytest.raises(InvalidInputError, match="not https"):
            client.create_data("tpuctl-x", tmp_path / "secret", "x")
        with pytest.raises(InvalidInputError, match="not https"), client.opened(scheme, 0):
            pass


PAGES = {
    "fetch": {"Sec-Fetch-Site": "cross-site"},
    "rebound": {"Sec-Fetch-Site": "same-origin"},
    "old browser": {"Origin": "https://evil.example"},
    "sandbox": {"Origin": "null"},
    "length": {"Content-Length": "-1"},
    "no length": {"Content-Length": "many"},
    "long": {"Content-Length": "9" * 30},
}


@pytest.mark.parametrize("name", PAGES)
def test_the_emulated_colab_refuses_pages_and_endless_bodies(
    colab_world: ColabWorld, name: str
) -> None:
    place = urlsplit(colab_world().url)
    client = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    for headers, statuses in (
        (PAGES[name], (403, 413)),
        ({"Origin": colab_world.colab.url}, (200,)),
    ):
        client.putrequest("GET", "/tun/m/assignments?authuser=0")
        sent = {"Authorization": f"Bearer {EMULATOR_TOKEN}", **headers}
        for header, value in sent.items():
            client.putheader(header, value)
        client.endheaders()
        reply = client.getresponse()
        reply.read()
        assert reply.status in statuses
        client.close()


def test_a_connection_without_a_request_does_not_stay(
    colab_world: ColabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = urlsplit(colab_world().url)
    monkeypatch.setattr(_Handler, "timeout", _Handler.timeout and 0.1)
    with socket.create_connection(("127.0.0.1", place.port or 0), timeout=10) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX")
        assert slow.recv(100) == b""


def test_an_address_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    parts = {"contexts": [{"name": "c", "context": {"cluster": "k"}}], "current-context": "c"}
    server = {"name": "k", "cluster": {"server": "https://[::1"}}
    config.write_text(json.dumps({**parts, "clusters": [server]}))
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setenv("TPUCTL_KAGGLE_ENDPOINT", "http://[::1")
    for read in (find_context, find_endpoint):
        with pytest.raises(InvalidInputError):
            read()


def test_a_cluster_that_tells_of_endless_restarts_is_not_believed(tmp_path: Path) -> None:
    cluster = Cluster(Context("c", "n", {"server": "https://127.0.0.1:1"}, {}))
    follower = Follower(cluster, "t1", lambda *_: None, lambda _: None)
    follower._observe({"status": {"restarts": 10**12}}, [])
    assert len(follower._attempts) < 10**6


def test_a_kubeconfig_that_expands_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["a: &a [x, x]"]
    for before, after in itertools.pairwise("abcdefghij"):
        lines.append(f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]")
    lines += ["current-context: c", "contexts: [{name: c, context: {cluster: k}}]"]
    lines += ["clusters: [{name: k, cluster: {server: *j}}]"]
    (tmp_path / "config").write_text("\n".join(lines))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(InvalidInputError, match="alias"):
        find_context()
