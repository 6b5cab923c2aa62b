"""Colab and Kaggle may answer with any JSON and any header: an answer or one of our errors."""

import http.client
import json
import os
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("google.auth")
pytest.importorskip("asyncssh")

from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import EMULATOR_TOKEN
from tests.fuzzing import damage_json
from tests.kaggle_world import Kaggles, World
from tests.kaggle_world import kaggle as kaggle
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.providers.colab._planes import open_plane
from tpuctl.providers.kaggle.client import KaggleClient
from tpuctl.providers.kaggle.follow import _place
from tpuctl.providers.kaggle.provider import Kaggle

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("FUZZ_EXAMPLES", "6"))
HEADERS = (
    "Retry-After: \xb2", "Retry-After: " + "9" * 500, "Range: bytes=0-" + "9" * 5000,
    "Date: never", "tpuctl-emulated-scale: nan", "X: y",
)  # fmt: skip


class Liar:
    """Between a client and an emulator: damages replies while `chance` is set."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.chance: random.Random | None = None
        self.asked = 0

    def reply(
        self, verb: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, str]:
        self.asked += 1
        request = urllib.request.Request(
            f"{self.upstream}{path}", body or None, headers, method=verb
        )
        try:
            with urllib.request.urlopen(request) as answer:
                status, data, kind = answer.status, answer.read(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            status, data, kind = error.code, error.read(), "application/json"
        if self.chance is None or not data:
            return status, data, kind or ""
        text = data.decode().removeprefix(")]}'")
        with suppress(ValueError):
            data = damage_json(text.encode(), self.chance)
        if self.chance.random() < 0.1:
            data = self.chance.choice((b"[" * 50_000, b"", b"null", b"7", b"\xff\xfe", b'"x"'))
        if self.chance.random() < 0.1:
            status = self.chance.choice((400, 401, 403, 404, 409, 412, 429, 500, 503))
        return status, data, kind or ""


@contextmanager
def lying(upstream: str) -> Iterator[tuple[Liar, str]]:
    liar = Liar(upstream)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {k: v for k, v in self.headers.items() if k not in ("Host", "Accept-Encoding")}
            status, data, kind = liar.reply(self.command, self.path, body, kept)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if liar.chance:
                name, _, value = liar.chance.choice(HEADERS).partition(": ")
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PUT = answer

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
        api = open_plane(plane)
        runtime = api.create("0" * 32, "V5E1")
        uses: dict[str, Callable[[], object]] = {
            "find": lambda: api.find("0" * 32),
            "create": lambda: api.create("0" * 32, "V5E1"),
            "list": api.list,
            "units": api.units,
            "eligible": api.eligible,
            "keep alive": lambda: api.keep_alive(runtime.id),
            "delete": lambda: api.delete("tpuctl-none"),
            "open": open_plane,
        }
        ends = try_all(liar, uses)
    assert set().union(*ends.values()) == {"answered", "refused"}


def test_an_answer_without_end_is_not_read_to_its_end(
    colab_world: ColabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world()
    with lying(colab.url) as (liar, address):
        monkeypatch.setenv("TPUCTL_COLAB_ENDPOINT", address)
        api = open_plane("tun")
        liar.reply = lambda *_: (200, b"[" + b"0," * (8 << 20), "application/json")  # type: ignore[method-assign]
        with pytest.raises(TpuctlError, match="too long"):
            api.list()


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
        liar.reply = lambda *_: (200, given, "application/json")  # type: ignore[method-assign]
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
