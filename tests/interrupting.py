"""Interrupt an unmodified command at the Nth thing that it does to files or the network."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

SHIM = Path(__file__).with_name("interrupt.c")
YEAR_S, DAY_S = 365 * 86400, 86400
NOTHING = "count 0"
HONEST = (0, 1, 3)
"""How a command may end at which something has struck."""
SERVICE = "service "
PROBE = re.compile(r"tmp/[a-z0-9_]{8}")
TIMEOUT_S = 120.0

# What is random or counts up in names and values, and what stands for it in a comparison.
RANDOM = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "DIGEST"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "DIGEST"),
)


@cache
def shim() -> Path | None:
    """The library to preload; None where there is no compiler."""
    if not (compiler := shutil.which("cc")) or not sys.platform.startswith("linux"):
        return None
    library = Path(mkdtemp(prefix="tpuctl-interrupt-")) / "interrupt.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Point:
    """One thing that a command did: write, create, rename, unlink, mkdir, sync, send, ..."""

    number: int
    kind: str
    path: str

    @property
    def is_file(self) -> bool:
        return self.kind not in ("send", "connect")

    def strikes(self) -> list[str]:
        """Every way to strike here."""
        at = self.number
        found = [f"kill {at}", f"die {at}"]
        if self.kind in ("write", "send"):
            found.append(f"torn {at}")
        if self.is_file:
            found += [f"error {at} {code}" for code in (errno.EIO, errno.EACCES)]
        if self.kind in ("write", "create", "mkdir", "rename", "sync"):
            found.append(f"full {at}")
        return [*found, f"clock {at} {YEAR_S}", f"clock {at} {-DAY_S}"]


@dataclass
class Ended:
    """How a run ended, and all of its points."""

    code: int
    stdout: str
    stderr: str
    points: list[Point]
    words: Sequence[str] = ()

    @property
    def said(self) -> str:
        return f"{self.code}\n{self.stdout[-1500:]}\n{self.stderr[-1500:]}"


class Place:
    """A folder that holds all that a command may see: its input, state, cache, home, output."""

    def __init__(self, root: Path, strike: str = NOTHING) -> None:
        self.root, self.aside = root / "root", root / "aside"
        # A strike at the service is a fault that its emulator plans; none comes from the machine.
        self.fault = json.loads(strike.removeprefix(SERVICE)) if strike.startswith(SERVICE) else {}
        for name in ("home", "tmp", "state", "cache", "given"):
            (self.root / name).mkdir(parents=True)
        self.aside.mkdir()
        self.runs: list[Ended] = []
        self.last, self.disk_was_full = Ended(0, "", "", []), strike.startswith("full")
        self.env = {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "TPUCTL_STATE_DIR": str(self.root / "state"),
            "TPUCTL_CACHE_DIR": str(self.root / "cache"),
            "GRPC_VERBOSITY": "NONE",
        }

    def run(
        self,
        words: Sequence[str],
        strike: str = NOTHING,
        program: Sequence[str] = ("-m", "tpuctl"),
    ) -> Ended:
        count, log = self.aside / "count", self.aside / "log"
        count.write_bytes(bytes(16))
        log.write_text("")
        shimmed = {
            "LD_PRELOAD": str(shim()),
            "INTERRUPT": strike,
            "INTERRUPT_ROOT": str(self.root),
            "INTERRUPT_COUNT": str(count),
            "INTERRUPT_LOG": str(log),
        }
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root / "given",
            env={**os.environ, **self.env, **shimmed},
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            stderr += "\nIT HUNG"
        lines = [line.split(" ", 3) for line in log.read_text(errors="replace").splitlines()]
        points = [Point(int(line[0]), line[2], line[3]) for line in lines if len(line) == 4]
        self.last = Ended(process.returncode, stdout, stderr, points, words)
        self.runs.append(self.last)
        return self.last

    def files(self) -> dict[str, str]:
        """What is there beside the input, by name."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            # Python itself tries out where temporary files may be, with a file of such a name.
            if name.startswith("given/") or path.is_dir() or PROBE.fullmatch(name):
                continue
            found[normal(name)] = ""
        return found


def normal(text: str) -> str:
    """Without what is random."""
    for pattern, name in RANDOM:
        text = pattern.sub(name, text)
    return text


@dataclass
class Opened:
    """A command in a fresh place: `result` must be the same in the end, whatever came between.

    `check` must hold at any moment. `honest` are the exit codes of a run that is struck, `again`
    those of a second run, and `methods` are what it has asked the service for.
    """

    words: list[str]
    result: Callable[[], Mapping[str, Any]]
    check: Callable[[], None] = lambda: None
    again: tuple[int, ...] = (0,)
    program: tuple[str, ...] = ("-m", "tpuctl")
    methods: Callable[[], set[str]] = set
    honest: tuple[int, ...] = HONEST


Case = Callable[[Place, ExitStack], Opened]
"""Makes the world of a command that is to be interrupted, below a place."""


@dataclass
class Undisturbed:
    """What a command does and leaves when nothing comes in between; `methods` are what it asks."""

    points: list[Point]
    result: Mapping[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()

    def strikes(self) -> list[str]:
        """Every strike at every point, and at the first requests of every method."""
        found = [strike for point in self.points for strike in point.strikes()]
        for method in self.methods:
            is_storage = method.startswith("storage_")
            errors = ("rate_limit", "internal", "unavailable", "deadline")
            faults = [{"error": error, "nth": nth} for error in errors for nth in (1, 2)]
            faults.append({"after_accept": True})
            if is_storage:
                faults += [{"error": "cut", "after_bytes": size} for size in (0, 100)]
            if method in ("storage_get", "storage_insert", "storage_upload_chunk"):
                faults.append({"error": "corrupt", "after_bytes": 100})
            if not is_storage:
                faults.append({"repeat": True})
            found += [SERVICE + json.dumps({"on": method, **fault}) for fault in faults]
        return ["short 1", *found]


def undisturbed(case: Case, root: Path) -> Undisturbed:
    with ExitStack() as stack:
        place = Place(root)
        opened = case(place, stack)
        ended = place.run(opened.words, program=opened.program)
        assert ended.code == 0, ended.said
        methods = tuple(sorted(opened.methods()))
        return Undisturbed(ended.points, opened.result(), place.files(), methods)


def interrupted(case: Case, strike: str, root: Path, wanted: Undisturbed) -> bool:
    """Strike, look, run the same command again, compare; whether the strike was reached."""
    with ExitStack() as stack:
        place = Place(root, strike)
        opened = case(place, stack)
        first = place.run(opened.words, NOTHING if place.fault else strike, opened.program)
        reached = bool(place.fault) or len(first.points) >= int(strike.split()[1])
        if first.code < 0:
            assert first.code == -signal.SIGKILL, first.said
        else:
            _check_answer(first, opened.honest)
        opened.check()
        second = place.run(opened.words, program=opened.program)
        _check_answer(second, (0, *opened.again))
        result, files = opened.result(), place.files()
        differing = [
            f"{key}: {str(result.get(key))[:500]} instead of {str(wanted.result.get(key))[:500]}"
            for key in {*wanted.result, *result}
            if wanted.result.get(key) != result.get(key)
        ]
        assert not differing, f"{differing}\nfirst: {first.said}"
        stray = [name for name in files if name not in wanted.files]
        assert not stray, f"{stray}\nfirst: {first.said}"
        lost = [name for name in wanted.files if name not in files]
        assert not lost, f"{lost}\nfirst: {first.said}"
    shutil.rmtree(root)
    return reached


def _check_answer(ended: Ended, codes: Sequence[int]) -> None:
    """One JSON document with an honest exit code, and no traceback."""
    assert ended.code in codes, ended.said
    assert "Traceback" not in ended.stderr, ended.said
    document = json.loads(ended.stdout)
    assert "bug" not in [error["code"] for error in document["errors"]], ended.said
