"""Data sets, traces and buckets made to hurt: nothing foreign is deleted, nothing is endless."""

import contextlib
import gzip
import json
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fuzzing import NOW, damaged_input, data_set
from tests.pictures import fill, small
from tpuctl.clock import ManualClock, RetryPolicy
from tpuctl.data import presize
from tpuctl.datasets import manifest
from tpuctl.datasets.images.memory import limited_memory
from tpuctl.datasets.publish import Target
from tpuctl.datasets.shards.work import Work
from tpuctl.datasets.verify import verify
from tpuctl.errors import InvalidInputError, TpuctlError, WriteError
from tpuctl.profiling.trace.files import open_trace
from tpuctl.storage import open_storage


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A data set in a folder of its own."""
    folder = tmp_path / "there"
    folder.mkdir()
    for name, content in data_set().items():
        (folder / name).write_bytes(content)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def first(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["shards"][0].update(changes)


def option(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["options"].update(changes)


def twice(document: dict[str, Any]) -> None:
    document["shards"].append(document["shards"][0])


def nested(document: dict[str, Any]) -> None:
    inside: list[Any] = []
    for _ in range(500):
        inside = [inside]
    document["options"]["extra"] = inside


NONSENSE: dict[str, Callable[[dict[str, Any]], None]] = {
    "name that leads out": first(name="../manifest.tfrecord"),
    "absolute name": first(name="/etc/passwd"),
    "name of the manifest": first(name="manifest.json"),
    "name of the list": first(name="quarantine.jsonl"),
    "hidden name": first(name=".presize"),
    "negative bytes": first(bytes=-1),
    "negative records": first(records=-1),
    "huge number": first(bytes=10**400),
    "number as text": first(bytes="12"),
    "fraction": first(records=1.5),
    "truth for a number": first(records=True),
    "no name": lambda document: document["shards"][0].pop("name"),
    "the same shard twice": twice,
    "shards as text": lambda document: document.update(shards="none"),
    "no options": lambda document: document.pop("options"),
    "unknown encoding": option(encode="gif"),
    "encoding as list": option(encode=["jpeg"]),
    "size as text": option(size="48x64"),
    "size of one": option(size=[48]),
    "negative size": option(size=[-48, 64]),
    "cache without structure": option(encode="elements", variants=1, target="f"),
    "damaged structure": option(encode="elements", variants=1, target="f", structure={"kind": 7}),
    "nested without end": nested,
    "half a character": lambda document: document.update(classes=["\ud800"]),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_a_manifest_is_refused_without_deep(name: str, there: Path) -> None:
    rewrite(there, NONSENSE[name])
    with pytest.raises(InvalidInputError, match=r"manifest\.json is damaged"):
        verify(there)


def test_the_manifest_before_the_nonsense_is_accepted(there: Path) -> None:
    rewrite(there, lambda document: None)
    assert verify(there, deep=True).damage == ()


def test_a_data_set_without_shards_and_a_linked_shard_are_damage(there: Path) -> None:
    shard = next(there.glob("*.tfrecord"))
    shard.rename(there.parent / "elsewhere")
    shard.symlink_to(there.parent / "elsewhere")
    assert [(one.path, one.kind) for one in verify(there).damage] == [(shard.name, "unreadable")]
    rewrite(there, lambda document: document.update(shards=[], totals={}, quarantined={}))
    assert "it lists no shards" in {one.detail for one in verify(there).damage}


@pytest.mark.slow
def test_overwrite_deletes_shards_and_nothing_else_that_a_manifest_lists(
    there: Path, tmp_path: Path
) -> None:
    thesis, outside = there / "thesis.tar", tmp_path / "outside.txt"
    thesis.write_text("mine")
    outside.write_text("mine")
    listed = "train-00000-of-00001-00000000.tfrecord"
    (there / listed).symlink_to(outside)
    (there / ".presize-notes").mkdir()
    (there / ".presize-notes" / "a.json").write_text("mine")
    entry = json.loads((there / "manifest.json").read_bytes())["shards"][0]
    ours = there / entry["name"]
    foreign = [{**entry, "name": name} for name in (thesis.name, listed)]
    rewrite(there, lambda document: document["shards"].extend(foreign))
    presize(fill(tmp_path / "src"), there, small(size=(32, 32), overwrite=True))
    assert not ours.exists()
    assert thesis.read_text() == outside.read_text() == "mine"
    assert (there / ".presize-notes" / "a.json").read_text() == "mine"
    assert verify(there).damage == ()


def test_a_link_in_the_place_of_the_work_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "draft.part").write_text("mine")
    target = tmp_path / "dst"
    target.mkdir()
    (target / ".presize").symlink_to(victim)
    with pytest.raises(WriteError, match="link"):
        presize(fill(tmp_path / "src", 2), target, small())
    assert (victim / "draft.part").read_text() == "mine"


@dataclass(frozen=True)
class VanishingWork(Work):
    """The run that held the folder finishes just after we have made it, once."""

    def create(self) -> None:
        super().create()
        if not (self.folder.parent / "vanished").exists():
            (self.folder.parent / "vanished").touch()
            shutil.rmtree(self.folder)


def test_a_run_that_waited_while_another_finished_takes_its_turn(tmp_path: Path) -> None:
    target = Target(open_storage(tmp_path), VanishingWork(tmp_path / ".presize"), shared=False)
    with target.locked() as lock:
        assert lock >= 0
        assert (tmp_path / "vanished").exists()


def test_a_finished_run_leaves_the_folder_to_the_one_that_waits(tmp_path: Path) -> None:
    work = Work(tmp_path / ".presize")
    work.create()
    over = threading.Event()

    def wait_for_the_lock() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                (tmp_path / ".presize").mkdir(exist_ok=True)
                (tmp_path / ".presize/lock").touch()

    thread = threading.Thread(target=wait_for_the_lock)
    thread.start()
    try:
        for _ in range(200):
            work.remove()
    finally:
        over.set()
        thread.join()


# ---- Files that grow -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trace_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "h.xplane.pb.gz"
    bomb.write_bytes(gzip.compress(bytes(200 << 20), 9))
    assert bomb.stat().st_size < 1 << 20
    with limited_memory(256 << 20), pytest.raises(InvalidInputError, match="128 MiB unpacked"):
        open_trace(bomb)


PROGRAM = """
import resource, sys
from pathlib import Path
from tpuctl.errors import TpuctlError
from tpuctl.profiling.tpuprof import load
from tpuctl.runtime.replay import open_recorded
from tpuctl.datasets.manifest import load as load_manifest
from tpuctl.training.bench import load as load_bench
folder = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (load, open_recorded, load_bench, lambda path: load_manifest(path.parent)):
    try:
        read(folder / "manifest.json")
    except TpuctlError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_documents_of_any_length_are_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(8 << 30)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    *said, grown = subprocess.check_output(command, text=True).splitlines()
    assert len(said) == 4
    assert int(grown) << 10 < 600 << 20


# ---- A service that says anything ----------------------------------------------------------------


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A storage service that gives the first of these replies to whatever it is asked."""
    replies = [b"{}"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(replies[0])))
            self.end_headers()
            self.wfile.write(replies[0])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    yield replies
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_a_storage_service_may_send_any_json(liar: list[bytes], tmp_path: Path) -> None:
    impatient = RetryPolicy(first_s=0.01, longest_s=0.01, total_s=0.02)
    storage = open_storage("gs://bucket", clock=ManualClock(NOW), retry=impatient)
    uses: tuple[Callable[[], object], ...] = (
        lambda: list(storage.list()),
        lambda: storage.stat("a"),
        storage.location,
        lambda: storage.fetch("a", tmp_path / "a"),
        lambda: storage.read("manifest.json"),
    )
    ends, said = {"answered": 0, "refused": 0}, set[str]()
    for number in range(60):
        liar[0] = damaged_input("storage", number)
        for use in uses:
            try:
                use()
                ends["answered"] += 1
            except TpuctlError as error:
                ends["refused"] += 1
                said.add(str(error))
    assert not any("bug" in text for text in said)
    assert min(ends.values()) > 20, ends


def test_limits_of_this_process_are_as_they_were() -> None:
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    assert manifest.is_ours("v000-00000-of-00003-0123abcd.tfrecord")
    assert not manifest.is_ours("thesis.tar")
