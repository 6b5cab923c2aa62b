"""The batch sessions of the emulated Kaggle, each of which runs its script as a local process."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.emulator.errors import ServiceError, load_data
from tpuctl.emulator.worker_processes import DEVICES, MARK, kill_everything
from tpuctl.storage.local import write_atomically

_TICK_S = 0.02
_SILENCE_S = 1.0
_CHIPS = 8
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
_NOWHERE = "http://127.0.0.1:9"
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


def kaggle_error(kind: str, **facts: object) -> ServiceError:
    """Make an error in Kaggle's format, from the table in kaggle.json."""
    entry = load_data("kaggle")["errors"][kind]
    text = entry["text"].format_map(facts)
    document = {"code": entry["status"], "message": text}
    if kind == "refused":
        document = {"error": text}
    error = ServiceError(text, http_status=entry["status"], http_document=document)
    error.http_headers = dict(entry.get("headers", {}))
    return error


@dataclass
class Session:
    """One version of a kernel and its run, with the `fault` that the scenario plans."""

    slug: str
    version: int
    title: str
    shape: str
    internet: bool
    private: bool
    timeout_s: float
    pushed: datetime
    runs: bool = True
    fault: str = ""
    status: str = "QUEUED"
    failure: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether its output and complete log are available."""
        return self.status in ENDED

    @property
    def has_tpu(self) -> bool:
        """Whether it uses TPU hours."""
        return self.shape.startswith("Tpu")

    def used_s(self, now: datetime) -> float:
        """The TPU seconds that it has used."""
        if not (self.has_tpu and self.started):
            return 0.0
        return ((self.ended or now) - self.started).total_seconds()


class Sessions:
    """All kernels of one account; the files of a version are in FOLDER/SLUG/VERSION."""

    def __init__(
        self, folder: Path, now: Callable[[], datetime], *, queue_s: float, scale: float
    ) -> None:
        self._folder, self._now, self._queue_s, self._scale = folder, now, queue_s, scale
        self.changed = threading.Condition(threading.RLock())
        self.kernels: dict[str, list[Session]] = {}
        self._running: set[Path] = set()
        self._deleted: list[Session] = []
        self._closed = False
        for path in sorted(folder.glob("*/*/session.json"), key=lambda p: int(p.parent.name)):
            session = from_plain(Session, json.loads(path.read_bytes()))
            if not session.is_over:
                session.status, session.failure = (
                    "ERROR",
                    load_data("kaggle")["failures"]["restart"],
                )
                session.ended = now()
            self.kernels.setdefault(session.slug, []).append(session)

    def place(self, session: Session) -> Path:
        """Return the folder of a version."""
        return self._folder / session.slug / str(session.version)

    def start(self, session: Session, source: str, mounts: Mapping[str, Path]) -> None:
        """Store a new version, and run it in a thread."""
        place = self.place(session)
        (place / "working").mkdir(parents=True)
        write_atomically(place / "source.py", source)
        with self.changed:
            self.kernels.setdefault(session.slug, []).append(session)
            self._save(session)
        if session.runs:
            threading.Thread(target=self._run, args=(session, mounts), daemon=True).start()

    def remove(self, slug: str) -> None:
        """Delete a kernel; as on Kaggle, this does not stop its session."""
        with self.changed:
            for session in self.kernels.pop(slug):
                self._deleted.append(session)
                shutil.rmtree(self.place(session), ignore_errors=session.is_over)

    def running(self) -> list[Session]:
        """Return the running TPU sessions."""
        return [each for each in self._all() if each.has_tpu and each.runs and not each.is_over]

    def _all(self) -> list[Session]:
        return [*self._deleted, *(each for kept in self.kernels.values() for each in kept)]

    def used_s(self, *, since: datetime) -> float:
        """Return the TPU seconds used by the sessions pushed since a time."""
        return sum(each.used_s(self._now()) for each in self._all() if each.pushed >= since)

    def follow(self, session: Session) -> Iterator[dict[str, Any] | None]:
        """Yield the whole log as it grows; None while nothing happens."""
        position = 0
        while True:
            with self.changed:
                grown = len(session.log) > position or session.is_over or self._closed
                ready = grown or self.changed.wait(_SILENCE_S)
                events, over = session.log[position:], session.is_over or self._closed
            yield from events
            position += len(events)
            if over and position == len(session.log):
                return
            if not ready:
                yield None

    def close(self) -> None:
        """Kill all running sessions."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for place in list(self._running):
            kill_everything(place)

    def _run(self, session: Session, mounts: Mapping[str, Path]) -> None:
        due = session.pushed + timedelta(seconds=self._queue_s)
        while self._now() < due and not self._closed:
            time.sleep(_TICK_S)
        if self._closed:
            return
        self._change(session, status="RUNNING", started=self._now())
        code, timed_out = self._run_script(
            session, {} if session.fault == "late_mounts" else mounts
        )
        texts = load_data("kaggle")["failures"]
        status, failure = (
            ("ERROR", texts["error"].format(code=code)) if code else ("COMPLETE", None)
        )
        if timed_out:
            status, failure = "ERROR", texts["timeout"].format(seconds=f"{session.timeout_s:.0f}")
        if session.fault == "complete_anyway":
            status, failure = "COMPLETE", None
        if not self._closed:
            self._change(session, status=status, failure=failure, ended=self._now())

    def _run_script(self, session: Session, mounts: Mapping[str, Path]) -> tuple[int, bool]:
        place = self.place(session)
        for name, target in mounts.items():
            mount = place / "input" / name
            mount.parent.mkdir(parents=True, exist_ok=True)
            mount.symlink_to(target)
        process = subprocess.Popen(  # noqa: S603 (the pushed script, as its user asked)
            [sys.executable, "-u", str(place / "source.py")],
            cwd=place / "working",
            env=self._environment(session),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._running.add(place)
        readers = [
            threading.Thread(target=self._read, args=(session, name, stream), daemon=True)
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
        ]
        for reader in readers:
            reader.start()
        assert session.started
        deadline, timed_out = session.started + timedelta(seconds=session.timeout_s), False
        while process.poll() is None:
            if self._closed or self._now() >= deadline:
                timed_out = True
                break
            time.sleep(_TICK_S)
        # Processes that the script leaves behind end with its session, like the machine.
        kill_everything(place)
        for reader in readers:
            reader.join()
        self._running.discard(place)
        return process.wait(), timed_out

    def _read(self, session: Session, name: str, stream: IO[bytes]) -> None:
        with stream:
            for line in iter(lambda: stream.readline(1 << 16), b""):
                assert session.started
                at = round((self._now() - session.started).total_seconds(), 3)
                text = line.decode("utf-8", "replace")
                with self.changed:
                    session.log.append({"stream_name": name, "time": at, "data": text})
                    self.changed.notify_all()

    def _environment(self, session: Session) -> dict[str, str]:
        place = self.place(session)
        env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        env |= {
            "HOME": str(place),
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_DATA_PROXY_URL": _NOWHERE,
            "KAGGLE_USER_SECRETS_TOKEN": "emulated",
            "TPUCTL_KAGGLE_ROOT": str(place),
            "TPUCTL_EMULATED_TIME_SCALE": str(self._scale),
            MARK: str(place),
        }
        if not session.internet:
            env |= dict.fromkeys(("http_proxy", "https_proxy"), _NOWHERE)
        if session.has_tpu and session.fault != "no_tpu":
            devices = place / "dev" / "vfio"
            devices.mkdir(parents=True, exist_ok=True)
            for chip in range(_CHIPS):
                (devices / str(chip)).touch()
            env |= load_data("kaggle")["machine"]
            # Without chips on the PCI bus, the frameworks would wait for a TPU forever.
            env |= {DEVICES: str(devices.parent), "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}
            del env["ISTPUVM"]
        return env

    def _change(self, session: Session, **changes: Any) -> None:
        with self.changed:
            for name, value in changes.items():
                setattr(session, name, value)
            self._save(session)
            self.changed.notify_all()

    def _save(self, session: Session) -> None:
        if self.place(session).is_dir():
            text = json.dumps(to_plain(session))
            write_atomically(self.place(session) / "session.json", text, private=True)
