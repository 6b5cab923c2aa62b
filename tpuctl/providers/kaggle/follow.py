"""Follow a run on Kaggle to its end, and fetch what it has written."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpuctl.codec import read_json
from tpuctl.errors import (
    DamagedError,
    DeadlineError,
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    PermissionDeniedError,
    ScriptFailedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.outcome import Outcome
from tpuctl.progress import OnProgress, Progress
from tpuctl.providers.batch import Run, RunStore
from tpuctl.providers.kaggle.bootstrap import NO_INPUT, NO_TPU
from tpuctl.providers.kaggle.client import ENDED, KaggleClient
from tpuctl.providers.kaggle.runs import Note, drop_data, limits
from tpuctl.remote.output import Sink
from tpuctl.storage.local import ensure_folder, open_own, publish, translated_write_errors

_ABOUT = "tpuctl/run.json"
_TRAINING = "tpuctl/training.json"
_BLOCK = 1 << 20
_TRIES = 5
_FETCH_LOCK_S = 600.0
Files = Mapping[str, Any]


@dataclass(frozen=True)
class StartedRun(Outcome):
    """A run that keeps running without us."""

    name: str
    provider: str
    url: str
    version: int
    ends_by: str


@dataclass(frozen=True)
class HostedRun(Outcome):
    """A run that has ended: the job's exit code, and its output in the folder `out`.

    `state` is what Kaggle says, which may be COMPLETE although the job failed; `returncode` is the
    job's own, None where it is unknown. `training` is what `launch` measured there.
    """

    name: str
    provider: str
    url: str
    state: str
    returncode: int | None
    out: str
    files: int
    size_bytes: int
    unchecked: tuple[str, ...]
    training: Files | None
    why: str = field(default="", metadata={"internal": True})
    online: bool = field(default=True, metadata={"internal": True})

    @property
    def exit_code(self) -> int:
        """The job's exit code; our own error's where the session failed."""
        ours = self.failures and not isinstance(self.failures[0], ScriptFailedError)
        if ours or self.returncode is None:
            return super().exit_code
        return self.returncode

    @property
    def warnings(self) -> tuple[str, ...]:
        """Files whose digest is unknown."""
        if not self.unchecked:
            return ()
        return (f"{len(self.unchecked)} files were fetched without a checksum from Kaggle.",)

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why the job or its session failed."""
        again = "Run the same command again."
        if self.returncode == NO_TPU:
            text = f"{self.name} got a session without a TPU, and ended at once."
            hint = f"{again} If it stays so: is the account verified for TPUs at {self.url}?"
            return (NoCapacityError(text, hint=hint),)
        if self.returncode == NO_INPUT:
            text = f"{self.name} ended at once: Kaggle did not mount what it needs."
            return (UnavailableError(text, hint=again),)
        if "time limit" in self.why or "timed out" in self.why.lower():
            hint = "To resume from its checkpoints: add --resume last to the same command."
            return (DeadlineError(f"{self.name} reached the time limit.", hint=hint),)
        if self.returncode == 0:
            return ()
        code = "with an unknown exit code" if self.returncode is None else f"{self.returncode}"
        text = f"The job of {self.name} ended with exit code {self.returncode}."
        if self.returncode is None:
            text = f"{self.name} is {self.state} on Kaggle {code}. {self.why}".strip()
        offline = "Internet was off in the session: the account needs a verified phone number."
        return (ScriptFailedError(text, hint=self.url if self.online else offline),)


def follow(
    client: KaggleClient, store: RunStore, run: Run, *, sink: Sink, note: Note
) -> tuple[str, str]:
    """Pass on the log until the session ends; returns its state and why it failed.

    Each connection begins at the start of the log, so events are counted and not repeated.
    """
    assert run.version
    seen, failures, last_state = 0, 0, ""
    with ExitStack() as stack:
        # `gc` asks who holds it; a second process may follow as well.
        with suppress(TryAgainError):
            stack.enter_context(store.lock(run.name))
        while True:
            state, why = client.status(run.name, run.version)
            if state != last_state and state in ("QUEUED", "RUNNING"):
                note(f"{run.name} is {state} on Kaggle: {run.url}")
            last_state, before = state, seen
            if state != "QUEUED":
                try:
                    for index, event in enumerate(client.log(run.name, run.version)):
                        if index >= seen:
                            seen = index + 1
                            pass_on(event, sink)
                    if state in ENDED:
                        return state, why
                    failures = 0
                except (UnavailableError, NotFoundError, PermissionDeniedError) as error:
                    failures = 0 if seen > before else failures + 1
                    if state in ENDED and failures >= _TRIES:
                        note(f"Warning: the end of the log is missing: {error}")
                        return state, why
            # A session that has just ended is looked at at once, for the end of its log.
            if state == "QUEUED" or seen == before:
                client.clock.sleep(float(limits()["poll_s"]))


def finish(
    client: KaggleClient,
    store: RunStore,
    run: Run,
    ended: tuple[str, str],
    *,
    on_progress: OnProgress,
) -> HostedRun:
    """Fetch the output of a run that has ended, and tell how its job ended."""
    with store.lock(f"{run.name}.fetch", wait_s=_FETCH_LOCK_S):
        return _finish(client, store, run, ended, on_progress)


def _finish(
    client: KaggleClient,
    store: RunStore,
    run: Run,
    ended: tuple[str, str],
    on_progress: OnProgress,
) -> HostedRun:
    assert run.version
    state, why = ended
    out = Path(run.out)
    listed = dict(client.outputs(run.name, run.version))
    about = _read_about(client, listed, out, run)
    files = about.get("files")
    known: Files = files if isinstance(files, dict) else {}
    code = about.get("exit_code") if isinstance(about.get("exit_code"), int) else None
    run = store.write(run, phase="ended", exit_code=code)
    wanted = [name for name in listed if name != _ABOUT and (name in known or not known)]
    size = 0
    for number, name in enumerate(wanted):
        on_progress(Progress("fetch", number, len(wanted), "files", name))
        size += _fetch(client, listed[name], out, name, known.get(name))
    if missing := sorted(set(known) - set(listed)):
        text = f"Kaggle does not have {len(missing)} files of {run.name}, such as {missing[0]}."
        raise DamagedError(text, hint=run.url)
    # Where this fails, gc does it. Before the phase, so that following again repairs a kill here.
    with suppress(TpuctlError):
        run = drop_data(client, store, run)
    run = store.write(run, phase="home")
    return HostedRun(
        name=run.name,
        provider="kaggle",
        url=run.url,
        state=state,
        returncode=code,
        out=str(out),
        files=len(wanted),
        size_bytes=size,
        unchecked=() if known else tuple(wanted),
        training=_read_object(out / _TRAINING) if _TRAINING in wanted else None,
        why=str(about.get("why") or why),
        online=about.get("online") is not False,
    )


def fetch_part(client: KaggleClient, run: Run, path: str, target: Path) -> tuple[int, int]:
    """Fetch a file or a folder of the output; returns the number of files and their size."""
    assert run.version
    listed = dict(client.outputs(run.name, run.version))
    state = client.status(run.name, run.version)[0]
    if path in listed:
        folder, name = (
            (target, Path(path).name) if target.is_dir() else (target.parent, target.name)
        )
        wanted = {path: name}
    else:
        folder, start = target, f"{path}/" if path not in ("", ".") else ""
        wanted = {each: each.removeprefix(start) for each in listed if each.startswith(start)}
    if not wanted:
        text = f"{run.name} has no output {path!r} on Kaggle; it is {state}."
        raise NotFoundError(text, hint=run.url)
    with TemporaryDirectory(prefix="tpuctl-") as scratch:
        known = _read_about(client, listed, Path(scratch), run).get("files") or {}
    sizes = [
        _fetch(client, listed[each], folder, name, known.get(each)) for each, name in wanted.items()
    ]
    return len(sizes), sum(sizes)


def pass_on(event: Mapping[str, Any], sink: Sink) -> None:
    """Write one event of a log."""
    text = event.get("data")
    if isinstance(text, str):
        line = text if text.endswith("\n") else f"{text}\n"
        sink(2 if event.get("stream_name") == "stderr" else 1, line.encode("utf-8", "replace"))


def _read_about(
    client: KaggleClient, listed: Mapping[str, str], out: Path, run: Run
) -> dict[str, Any]:
    """Read what the bootstrap wrote; empty where it did not come to that."""
    if _ABOUT not in listed:
        return {}
    (out / _ABOUT).unlink(missing_ok=True)
    _fetch(client, listed[_ABOUT], out, _ABOUT, None)
    about = _read_object(out / _ABOUT)
    return about if about.get("id") == run.name else {}


def _read_object(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = read_json(path)
        return found if isinstance(found, dict) else {}
    return {}


def _fetch(client: KaggleClient, url: str, out: Path, name: str, known: Any) -> int:
    """Fetch one file, from where an earlier attempt broke off; returns its size.

    `known` is its size and digest. The name comes from the session, so it is not trusted.
    """
    target = _place(out, name)
    size, digest = known if isinstance(known, list) and len(known) == 2 else (None, None)
    if target.is_file() and digest and _digest(target) == digest:
        return target.stat().st_size
    part = target.with_name(f".{target.name[:40]}.tpuctl-part")

    def receive() -> int:
        with translated_write_errors(target), open_own(part, "ab") as file:
            start = file.tell()
            with client.opened(url, start) as (first, total, source):
                if first != start:
                    file.truncate(first)
                while block := source.read(_BLOCK):
                    # The connection would take the error of a full disk for one of its own.
                    with translated_write_errors(target):
                        file.write(block)
            received = os.fstat(file.fileno()).st_size if not file.flush() else 0
        if total is not None and received < total:
            raise UnavailableError(f"The connection broke while {name} was fetched.")
        return received

    if not digest:
        part.unlink(missing_ok=True)
    if not (digest and part.is_file() and part.stat().st_size == size):
        client.repeated(receive)
    if digest and _digest(part) != digest:
        part.unlink()
        raise DamagedError(
            f"{name} differs from what the session wrote.", hint="Run the same command again."
        )
    received = part.stat().st_size
    publish(part, target)
    return received


def _place(out: Path, name: str) -> Path:
    """Return where a file is written, which is below `out` whatever its name and links say."""
    parts = name.split("/")
    bad = any(part in ("", ".", "..") or "\0" in part for part in parts)
    bad = bad or any("\ud800" <= character <= "\udfff" for character in name)
    target = out.joinpath(*parts)
    if not bad:
        ensure_folder(target.parent)
        root = out.resolve()
        bad = not target.parent.resolve().is_relative_to(root) or target.is_symlink()
    if bad:
        raise InvalidInputError(f"Kaggle lists the file {name!r}, which is not in its folder.")
    return target


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest()
