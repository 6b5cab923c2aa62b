"""Whatever one worker sends, its error names it, and the other workers' results are shown."""

import io
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

pytest.importorskip("asyncssh")
pytest.importorskip("pathspec")

from rich.console import Console

from tests.workers import Heard, Slice, running_slice
from tpuctl.outcome import Outcome
from tpuctl.remote import connection
from tpuctl.remote.agent import wire
from tpuctl.remote.barrier import check_workers
from tpuctl.remote.copy import copy, preview_copy
from tpuctl.remote.copy_plan import plan_copy
from tpuctl.remote.free import find_holders, free_chips
from tpuctl.remote.hosts import parse_hosts
from tpuctl.remote.jobs import list_jobs, start_job, stop_job
from tpuctl.remote.logs import read_logs
from tpuctl.remote.run import plan_command, run_command
from tpuctl.remote.top import read_usage
from tpuctl.reporters import envelope
from tpuctl.reporters import workers as report

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
"""For each command; make soak tries many more."""

LIAR = """#!/bin/sh
if [ -e {folder}/lie ]; then cat {folder}/lie; [ -e {folder}/stay ] && exec sleep 600; exit 0; fi
exec {python} "$@"
"""


class Pair:
    """An honest worker 0, and a worker 1 that sends what it is told to."""

    def __init__(self, own: Slice) -> None:
        self.own = own
        self.programs = own.root / "bin"
        self.programs.mkdir()
        (self.programs / "python3").write_text(
            LIAR.format(folder=self.programs, python=sys.executable)
        )
        (self.programs / "python3").chmod(0o755)
        own.refuse(1)
        own.come_back(1, env={"PATH": f"{self.programs}:/usr/bin:/bin"})
        (own.root / "source").mkdir()
        (own.root / "source" / "file").write_text("x")
        for index in range(2):
            (own.folder(index) / "there").mkdir()
            (own.folder(index) / "there" / "file").write_text("y")
        job = plan_command(["echo", "hello"])
        assert not start_job(own.hosts, job, own.access, job="j", check=False).failures

    def lie(self, said: bytes, *, stay: bool = False) -> None:
        (self.programs / "stay").unlink(missing_ok=True)
        if stay:
            (self.programs / "stay").touch()
        (self.programs / "lie").write_bytes(said)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_slice(tmp_path_factory.mktemp("slice"), 2) as own:
        yield Pair(own)


def ignore(_: str) -> None:
    return None


Command = Callable[[Slice], Outcome]
COMMANDS: dict[str, tuple[Command, Callable[[Any], Any]]] = {
    "run": (
        lambda own: run_command(own.hosts, plan_command(["true"]), own.access, sink=Heard()),
        report.render_run,
    ),
    "job": (
        lambda own: start_job(own.hosts, plan_command(["true"]), own.access, check=False),
        report.render_run,
    ),
    "logs": (
        lambda own: read_logs(own.hosts, own.access, sink=Heard(), note=ignore, job="j"),
        report.render_run,
    ),
    "jobs": (lambda own: list_jobs(own.hosts, own.access), report.render_jobs),
    "stop": (lambda own: stop_job(own.hosts, own.access, job="j"), report.render_stopped_job),
    "top": (lambda own: read_usage(own.hosts, own.access), report.render_usage),
    "free": (
        lambda own: free_chips(
            find_holders(own.hosts, own.access), own.hosts, own.access, grace_s=0.1
        ),
        report.render_held,
    ),
    "check": (lambda own: check_workers(own.hosts, own.access), str),
    "upload": (
        lambda own: copy(
            own.hosts,
            own.access,
            plan_copy(str(own.root / "source"), ":new", has_hosts=True),
        ),
        report.render_copied,
    ),
    "download": (
        lambda own: copy(
            own.hosts, own.access, plan_copy(":there/", str(own.root / "back"), has_hosts=True)
        ),
        report.render_copied,
    ),
    "preview": (
        lambda own: preview_copy(
            own.hosts, own.access, plan_copy(":there/", str(own.root / "no"), has_hosts=True)
        ),
        report.render_copied,
    ),
}
EXIT = {"code": 0, "signal": None, "out_of_memory": False, "left_behind": 0, "disk_free_bytes": 9}
STATE = {"state": "finished", "pid": 7, "exit": EXIT}
CHIP = {
    "index": 0, "device": "accel0", "duty_cycle_percent": 50.0, "hbm_used_bytes": 1,
    "hbm_bytes": 16, "holder_pid": 3, "holder_user": "me", "holder_command": "python",
    "why_null": None,
}  # fmt: skip
HOLDER = {
    "pid": 3, "user": "me", "command": "python", "device": "accel0", "seen_by": "fd",
    "is_this_notebook": False, "outcome": "ended", "may_end": True, "started": 5,
}  # fmt: skip
PROBE = {
    "now_s": 1.7e9, "disk_free_bytes": 1 << 40, "python": "3.11", "packages": {"jax": "0.4"},
    "chips": 4, "holders": ["3"], "libtpu": None,
}  # fmt: skip
NOTES: dict[str, list[dict[str, Any]]] = {
    "run": [{"exit": EXIT}],
    "job": [{"job": "j", "pid": 7}],
    "logs": [
        {"job": "j", "offset": 0, "dropped_bytes": 3},
        {"ended": STATE},
    ],
    "jobs": [{"jobs": [{**STATE, "job": "j", "argv": ["true"], "started_s": 1.7e9}]}],
    "stop": [{"job": "j", "was": "running", "state": STATE}],
    "top": [{"vcpus": 4, "vcpu_percent": 5.0, "memory_bytes": 8, "memory_used_bytes": 4,
             "chips": [CHIP], "why_null": None}],
    "free": [{"chips": 4, "holders": [HOLDER], "uninspected": 1, "stale_lockfile": True,
              "lockfile_removed": False, "outcomes": [[3, "ended"]]}],
    "check": [{"now_s": 1.7e9}, PROBE],
    "upload": [{"missing": [0], "doubtful": [], "digests": []},
               {"done": True, "path": "/x", "changed": ["a"]}],
    "download": [{"is_file": False, "entries": [["file", "f", 420, 1, 1, ""]], "odd": ["p"],
                  "ignores": {".gitignore": "*.pyc"}}],
}  # fmt: skip
NOTES["preview"] = NOTES["download"]
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 256, 2**31, 2**63, 10**30, 1e308, -1e308, 1e-320, float("nan"), float("inf"),
    "", "\x1b[31m", "[/]", "[red]x", "\ud800", "\udcff", "a\nb", "é" * 300, "\0", "../x",
    [], {}, [[]], [[[[]]]], {"": {}},
]  # fmt: skip
ODD = st.one_of(st.sampled_from(ODD_VALUES), st.integers(), st.floats(), st.text(max_size=8))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a note, with each of its keys."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def damaged(draw: st.DrawFn, command: str) -> bytes:
    """The honest notes of a command with some values replaced or left out."""
    notes = json.loads(json.dumps(NOTES[command]))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(notes))))
        # An earlier change may have taken it away.
        if isinstance(container, dict) and draw(st.booleans()):
            container.pop(key, None)
        elif isinstance(container, dict) or key < len(container):
            container[key] = draw(ODD)
    frames = [wire.note(**note) if isinstance(note, dict) else b"" for note in notes]
    said = wire.MARK + b"".join(frames)
    return said[: draw(st.integers(0, len(said)))] if draw(st.integers(0, 4)) == 0 else said


PAYLOADS = [
    b"{}", b"[]", b"z", b"{" * 9, b"[" * 100_000, b'{"a":' * 50_000, b"1" * 9999,
    b'{"refused":{"code":"x","message":1}}', b'{"refused":{}}',
    b'{"refused":{"code":[],"message":"\\ud800"}}',
]  # fmt: skip
FRAMES = st.tuples(
    st.sampled_from([b"o", b"e", b"n", b"r", b"z", b"x", b"\0"]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(PAYLOADS),
        st.binary(max_size=99).map(lambda data: b"z" + zlib.compress(data)),
    ),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)


def framed(frames: list[tuple[bytes, bytes, int | None]]) -> bytes:
    """Frames, some with a length that is not theirs."""
    return wire.MARK + b"".join(
        kind + struct.pack(">I", len(data) if length is None else length) + data
        for kind, data, length in frames
    )


def check(pair: Pair, command: str, said: bytes, *, stay: bool = False) -> None:
    pair.lie(said, stay=stay)
    work, render = COMMANDS[command]
    result = work(pair.own)
    shown = render(result)
    Console(file=io.StringIO(), force_terminal=False, width=100).print(shown or "", markup=False)
    json.loads(envelope.success(command, result))
    _ = result.warnings
    for failure in result.failures:
        # Valid figures that are not true can make the honest one look unfit for a job.
        blameless = failure.code in ("not_started", "worker_unfit")
        assert "worker 1" in str(failure) or blameless, failure
        assert "bug" not in str(failure)
    for worker in getattr(result, "workers", ()) if command != "preview" else ():
        if worker.index == 0 and hasattr(worker, "failure"):
            assert worker.failure is None or worker.failure.code == "not_started"


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_a_worker_sends_harms_the_others(pair: Pair, command: str) -> None:
    @given(
        said=st.one_of(
            damaged(command),
            damaged(command),
            st.lists(FRAMES, max_size=5).map(framed),
            st.binary(max_size=200),
        )
    )
    @settings(
        max_examples=EXAMPLES // 3 if command == "top" else EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @example(said=wire.MARK)
    @example(said=wire.MARK[:-1])
    @example(said=framed([(b"n", b"[" * 100_000, None)]))
    @example(said=framed([(b"n", b"{}", 2**31)]))
    def attack(said: bytes) -> None:
        check(pair, command, said)

    attack()


def test_the_check_would_notice_a_bug(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(own: Slice) -> Outcome:
        raise ZeroDivisionError

    monkeypatch.setitem(COMMANDS, "run", (broken, str))
    with pytest.raises(ZeroDivisionError):
        check(pair, "run", b"")


@pytest.mark.parametrize("command", ["logs", "preview"])
def test_a_worker_that_never_starts_is_given_up(
    pair: Pair, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "START_S", 2.0)
    check(pair, command, b"welcome\n" * 10, stay=True)


@pytest.mark.parametrize("command", ["jobs", "top"])
def test_a_worker_that_never_replies_is_given_up(
    pair: Pair, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.AgentCall.reply, "__defaults__", (2.0,))
    check(pair, command, wire.MARK + b"n\0\0\0\7{", stay=True)


BOMBS = {
    "values": (b'{"jobs":[', b"[]," * 10_000, 3_000, b"[]]}"),
    "text": (b'{"jobs":"', b"a" * 30_000, 10_000, b'"}'),
}


@cache
def bomb_of(name: str) -> bytes:
    begin, part, times, end = BOMBS[name]
    packer = zlib.compressobj()
    parts = chain([begin], repeat(part, times), [end])
    return b"z" + b"".join(map(packer.compress, parts)) + packer.flush()


@pytest.mark.parametrize(
    ("command", "bomb"), [("jobs", "values"), ("download", "values"), ("download", "text")]
)
def test_a_small_note_does_not_become_gigabytes(pair: Pair, command: str, bomb: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(pair, command, wire.MARK + wire.frame(wire.NOTE, bomb_of(bomb)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20, f"{grown} KiB"


@pytest.mark.parametrize("is_framed", [False, True])
def test_output_that_never_ends_neither_fills_memory_nor_hides_the_others(
    pair: Pair, is_framed: bool
) -> None:
    (pair.programs / "mark").write_bytes(wire.MARK if is_framed else b"welcome")
    (pair.programs / "more").write_bytes(wire.frame(wire.STDOUT, b"x" * 60_000) * 10)
    python = pair.programs / "python3"
    liar = python.read_text()
    python.write_text(
        f"#!/bin/sh\ncd {pair.programs}\ncat mark\nwhile cat more; do :; done 2> /dev/null\n"
    )
    command = [sys.executable, "-m", "tpuctl", "run", "--host", pair.own.option, "--key"]
    words = [str(pair.own.key), "--", "sh", "-c", "echo honest; sleep 0.5; echo honest"]
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)"
    limited = [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])"]
    try:
        with subprocess.Popen(
            [*limited, *command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdout
            assert child.stderr
            lines = (line for line in child.stdout if b"honest" in line)
            assert [next(lines), next(lines)] == [b"[0] honest\n"] * 2
            if is_framed:
                child.kill()
                child.stdout.close()
            said = child.stderr.read()
        assert child.returncode != 0
        assert is_framed or b"Could not start the agent on worker 1" in said
    finally:
        python.write_text(liar)


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-x\r\n", b"SSH-2.0-x\r\n" + b"\xff" * 99, b"x\n" * 9]
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_machine_that_speaks_no_ssh_is_that_workers_error(
    pair: Pair, said: bytes, ends: bool
) -> None:
    (pair.programs / "lie").unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        talks = []

        def talk() -> None:
            talks.append(server.accept()[0])
            talks[0].sendall(said)
            if ends:
                talks[0].close()

        threading.Thread(target=talk, daemon=True).start()
        own = pair.own
        hosts = parse_hosts(f"{own.option.split(',')[0]},me@127.0.0.1:{server.getsockname()[1]}")
        access = replace(own.access, timeouts=replace(own.access.timeouts, connect_s=2.0))
        found = list_jobs(hosts, access)
        talks[0].close()
    assert [job.job for job in found.jobs if job.workers[0].index == 0]
    assert ["worker 1" in str(failure) for failure in found.failures] == [True]
