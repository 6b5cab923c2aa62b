"""The state of a watch: how each step changes it (pure), and the file that it is saved in."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import shared
from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import InvalidInputError, TryAgainError
from tpuctl.storage.local import (
    ensure_folder,
    locked,
    remove_stale_parts,
    translated_write_errors,
    write_atomically,
)
from tpuctl.supervise.models import (
    CloseAttempt,
    CreateTpu,
    DeleteTpu,
    ForgetTpu,
    JobAttempt,
    JobSpec,
    LaunchJob,
    Observation,
    PendingDeletion,
    RunningAttempt,
    Step,
    StopJobs,
    WatchState,
)


def next_state(state: WatchState, step: Step, seen: Observation, now: datetime) -> WatchState:
    """Return the state to save before a step is carried out.

    Everything is saved before it is done: a watch that is killed in between finds in the file what
    it may have started, and checks whether it did.
    """
    state = _with_observation(state, seen)
    match step:
        case DeleteTpu():
            removing = PendingDeletion(seen.tpu.id, step.reason, step.is_bad_host)
            return replace(state, removing=removing)
        case ForgetTpu():
            removed = state.removing
            is_ours = removed and state.tpu and state.tpu.id == removed.id
            replaced = state.replaced + bool(removed and removed.is_bad_host)
            state = replace(state, removing=None, replaced=replaced, seen_leaving=False)
            return _without_tpu(state) if is_ours else state
        case CreateTpu():
            return replace(_without_tpu(state), creating=True)
        case LaunchJob() if not state.open or state.open.job != step.job:
            running = RunningAttempt(step.number, step.job, seen.tpu.id, seen.tpu.zone, now)
            return replace(state, open=running, serial=state.serial + 1)
        case StopJobs():
            is_open = state.open and state.open.job in step.jobs
            return replace(state, open=None) if is_open else state
        case CloseAttempt() if state.open:
            known = {**shared(JobAttempt, state.open), **shared(JobAttempt, step)}
            attempts = (*state.attempts, JobAttempt(**known, ended=now))
            return replace(state, open=None, attempts=attempts)
    return state


def _with_observation(state: WatchState, seen: Observation) -> WatchState:
    tpu, workers = seen.tpu, seen.workers
    if tpu.kind == "leaving":
        return replace(state, seen_leaving=True)
    if tpu.kind != "usable" or tpu.known is None:
        return state
    is_complete = workers is not None and not workers.errors
    if state.tpu and state.tpu.id != tpu.known.id:
        state = _without_tpu(state)
    was_proven = bool(state.tpu and state.tpu.id == tpu.known.id and state.tpu.proven)
    known = replace(tpu.known, proven=was_proven or is_complete)
    state = replace(state, tpu=known, creating=False, seen_leaving=False)
    if state.open and workers and is_complete and len(workers.job) == workers.count:
        state = replace(state, open=replace(state.open, launched=True), replaced=0)
    return state


def _without_tpu(state: WatchState) -> WatchState:
    """Forget the TPU; its cost counts against the budget."""
    return replace(state, tpu=None, spent_usd=state.usd_so_far)


SCHEMA = "tpuctl-watch/1"


@dataclass(frozen=True)
class SavedWatch:
    """The content of a state file. `order` is the digest of the job, `command` for messages."""

    schema: str
    order: str
    command: str
    is_over: bool
    memory: WatchState


class Scope(NamedTuple):
    """What distinguishes watches of the same name: a project or provider, and its address."""

    project: str
    endpoint: str | None


class StateFile:
    """The file of one watch; there is one for each name, project and endpoint."""

    def __init__(self, api: TpuApi | Scope, name: str, folder: Path | None = None) -> None:
        place = hashlib.sha256(f"{api.project}\0{api.endpoint}\0{name}".encode()).hexdigest()[:8]
        readable = re.sub(r"[^a-z0-9-]", "_", name)[:63]
        self.name = name
        self.path = (folder or settings.state_dir() / "watches") / f"{readable}-{place}.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this watch within the block; raises TryAgainError."""
        lock = self.path.with_suffix(".lock")
        ensure_folder(lock.parent, private=True)
        try:
            holder = lock.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            holder = ""
        who = f" (process {holder})" if holder.isdecimal() else ""
        try:
            with locked(lock, wait_s=0, busy="busy") as descriptor:
                with translated_write_errors(lock):
                    os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
                remove_stale_parts(lock.parent)
                yield
        except TryAgainError as error:
            if str(error) != "busy":
                raise
            raise TryAgainError(
                f"{self.name} is already being watched{who}.",
                hint=f"To see the job's output: tpuctl logs {self.name} -f; to take over, stop "
                "that watch first.",
            ) from None

    def load(self) -> SavedWatch | None:
        """Read the file of the last watch; raises InvalidInputError when it is damaged."""
        try:
            document = read_json(self.path)
            if document["schema"] != SCHEMA:
                raise ValueError(f"its schema is {document['schema']}")
            return from_plain(SavedWatch, document)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"Could not read {self.path}, the state of the last watch of {self.name}: {error}.",
                hint="To start over: add --fresh.",
            ) from error

    def save(self, state: WatchState, spec: JobSpec, *, is_over: bool = False) -> None:
        """Write the state to disk; raises WriteError."""
        command = " ".join(spec.command)[:200]
        saved = SavedWatch(SCHEMA, job_digest(spec), command, is_over, state)
        # A recipe holds metadata and a startup script, which may contain secrets.
        write_atomically(self.path, json.dumps(to_plain(saved), indent=1), private=True)


def job_digest(spec: JobSpec) -> str:
    """Identify a job by its command, variables, code and folder, not by its limits."""
    words = [list(spec.command), sorted(spec.env.items()), spec.code, spec.folder]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
