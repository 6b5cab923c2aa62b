"""What a worker sends is checked: nonsense is that worker's error, and the others go on."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("pathspec")

from tests.workers import Heard, Slice, running_slice
from tpuctl.remote.agent import wire
from tpuctl.remote.connection import Connection
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import plan_copy
from tpuctl.remote.fleet import on_every_worker, run_async
from tpuctl.remote.free import find_holders
from tpuctl.remote.jobs import list_jobs
from tpuctl.remote.logs import read_logs
from tpuctl.remote.run import plan_command, run_command
from tpuctl.remote.top import read_usage

JOB = {"state": "running", "pid": 1, "exit": None, "job": "a", "argv": ["true"], "started_s": 0.0}
ENTRY = ["../outside", "f", 0o644, 1, 0, ""]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path, 2) as workers:
        yield workers


def answer(workers: Slice, index: int, *frames: bytes) -> None:
    """Replace a worker's Python by a program that sends these frames, whatever is asked."""
    programs = workers.root / f"bin-{index}"
    programs.mkdir()
    (programs / "answer").write_bytes(wire.MARK + b"".join(frames))
    python = programs / "python3"
    python.write_text(f"#!/bin/sh\ncat {programs}/answer\ncat > /dev/null\n")
    python.chmod(0o755)
    workers.refuse(index)
    workers.come_back(index, env={"PATH": f"{programs}:/usr/bin:/bin"})


def run(own: Slice) -> Any:
    return run_command(own.hosts, plan_command(["true"]), own.access, sink=Heard())


def logs(own: Slice) -> Any:
    return read_logs(own.hosts, own.access, sink=Heard(), note=lambda _: None, job="j")


def upload(own: Slice) -> Any:
    (own.root / "source").mkdir()
    (own.root / "source" / "file").write_text("x")
    plan = plan_copy(str(own.root / "source"), ":there", has_hosts=True)
    return copy(own.hosts, own.access, plan)


def download(own: Slice) -> Any:
    own.folder(0).joinpath("there").mkdir()
    plan = plan_copy(":there", str(own.root / "here"), has_hosts=True)
    return copy(own.hosts, own.access, plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "frames"),
    [
        (run, [wire.note(exit="none")]),
        (run, [wire.note(exit={"code": "0", "signal": None, "out_of_memory": False})]),
        (run, [wire.note(refused="no")]),
        (run, [wire.frame(b"n", b"[]")]),
        (run, [b"o\xff\xff\xff\xff"]),
        (lambda own: read_usage(own.hosts, own.access), [wire.note(vcpus="many")]),
        (lambda own: read_usage(own.hosts, own.access), [wire.note(chips=[{"index": 0}])]),
        (lambda own: find_holders(own.hosts, own.access), [wire.note(holders=[{"pid": "1"}])]),
        (lambda own: list_jobs(own.hosts, own.access), [wire.note(jobs=[{"job": "a"}])]),
        *(
            (
                lambda own: list_jobs(own.hosts, own.access),
                [wire.note(jobs=[JOB | {"started_s": s}])],
            )
            for s in (1e300, 253402300800, -1.0, float("nan"), 10**400)
        ),
        (logs, [wire.note(offset=0), wire.frame(b"z", b"not compressed")]),
        (logs, [wire.note(ended={"state": "asleep", "pid": 1, "exit": None})]),
        (upload, [wire.note(missing=[7], doubtful=[], digests=[])]),
        (upload, [wire.note(missing=[-1], doubtful=[], digests=[])]),
        (upload, [wire.note(missing=[], doubtful=[0], digests=[])]),
        (download, [wire.note(is_file=True, entries=[], odd=[], ignores={})]),
        (download, [wire.note(is_file=False, entries=[ENTRY], odd=[], ignores={})]),
        (download, [wire.note(is_file=False, entries=[], odd=[], ignores={".gitignore": 1})]),
    ],
)
def test_a_malformed_reply_is_the_error_of_the_worker_that_sent_it(
    own: Slice, command: Callable[[Slice], Any], frames: list[bytes]
) -> None:
    answer(own, 1, *frames)
    codes = [error.code for error in command(own).failures if "worker 1" in str(error)]
    assert codes == ["worker_failed"]


def test_a_bug_in_our_own_work_does_not_look_like_an_interrupt(own: Slice) -> None:
    async def work(connection: Connection) -> None:
        if connection.host.index == 0:
            await asyncio.Event().wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_async(on_every_worker(own.hosts, own.access, work))
