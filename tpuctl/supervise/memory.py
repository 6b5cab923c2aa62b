"""What a step changes in the memory of a watch: pure, and written down before the step is done."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import DataDisk
from tpuctl.cloud.plan import CreateOptions
from tpuctl.errors import InvalidInputError, TryAgainError
from tpuctl.storage.local import ensure_folder, locked, write_atomically
from tpuctl.supervise.models import (
    Attempt,
    Close,
    Create,
    Delete,
    Forget,
    Known,
    Launch,
    Memory,
    Order,
    Removing,
    Running,
    Sight,
    Step,
    StopJobs,
)


def remember(memory: Memory, step: Step, sight: Sight, now: datetime) -> Memory:
    """What is to be known once the step has been decided."""
    memory = _what_is_seen(memory, sight)
    match step:
        case Delete():
            removing = Removing(sight.tpu.id, step.reason, step.is_bad_host)
            return replace(memory, removing=removing)
        case Forget():
            return _forget(memory)
        case Create():
            return replace(_let_go(memory), creating=True)
        case Launch():
            return _launch(memory, step, sight, now)
        case StopJobs():
            is_open = memory.open and memory.open.job in step.jobs
            return replace(memory, open=None) if is_open else memory
        case Close():
            return _close(memory, step, now)
    return memory


def _what_is_seen(memory: Memory, sight: Sight) -> Memory:
    tpu, workers = sight.tpu, sight.workers
    if tpu.kind == "leaving":
        return replace(memory, seen_leaving=True)
    if tpu.kind != "usable" or tpu.known is None:
        return memory
    all_there = workers is not None and not workers.errors
    known = replace(tpu.known, proven=tpu.known.proven or all_there)
    memory = replace(memory, tpu=_as_before(memory.tpu, known), creating=False, seen_leaving=False)
    if memory.open and workers and all_there and len(workers.job) == workers.count:
        memory = replace(memory, open=replace(memory.open, launched=True), replaced=0)
    return memory


def _as_before(before: Known | None, now: Known) -> Known:
    """The same TPU, with what was learnt of it earlier."""
    if before is None or before.id != now.id:
        return now
    return replace(now, proven=before.proven or now.proven)


def _forget(memory: Memory) -> Memory:
    removed = memory.removing
    replaced = memory.replaced + bool(removed and removed.is_bad_host)
    memory = replace(memory, removing=None, replaced=replaced, seen_leaving=False)
    is_it = removed and memory.tpu and memory.tpu.id == removed.id
    return _let_go(memory) if is_it else memory


def _let_go(memory: Memory) -> Memory:
    """The TPU of before is gone; what it cost counts against the budget."""
    cost = memory.tpu.usd_so_far if memory.tpu else 0.0
    return replace(memory, tpu=None, spent_usd=memory.spent_usd + cost)


def _launch(memory: Memory, step: Launch, sight: Sight, now: datetime) -> Memory:
    if memory.open and memory.open.job == step.job:
        return memory
    running = Running(step.number, step.job, sight.tpu.id, sight.tpu.zone, now)
    return replace(memory, open=running, serial=memory.serial + 1)


def _close(memory: Memory, step: Close, now: datetime) -> Memory:
    attempt = memory.open
    if attempt is None:
        return memory
    ended = Attempt(
        attempt.number,
        step.cause,
        step.reason,
        attempt.job,
        attempt.tpu_id,
        attempt.zone,
        attempt.began,
        now,
        step.exit_code,
        step.worker,
    )
    return replace(memory, open=None, attempts=(*memory.attempts, ended))


T = TypeVar("T")

SCHEMA = "tpuctl-watch/1"
_TIMES = ("created", "seen", "expires", "began", "ended")


@dataclass(frozen=True)
class Kept:
    """What is on the disk: a memory, of which order, and whether that watch has come to an end."""

    memory: Memory
    order: str
    command: str
    is_over: bool


class Store:
    """The file of one watch: there is one for each name, project and service."""

    def __init__(self, api: TpuApi, name: str, folder: Path | None = None) -> None:
        place = hashlib.sha256(f"{api.project}\0{api.endpoint}\0{name}".encode()).hexdigest()[:8]
        readable = re.sub(r"[^a-z0-9-]", "_", name)[:63]
        self.name = name
        self.path = (folder or settings.state_dir() / "watches") / f"{readable}-{place}.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only watch of this name for as long as the block lasts; raises TryAgainError."""
        lock = self.path.with_suffix(".lock")
        ensure_folder(lock.parent)
        try:
            holder = lock.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            holder = ""
        who = f" (process {holder})" if holder.isdecimal() else ""
        try:
            with locked(lock, wait_s=0, busy="busy") as descriptor:
                os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
                yield
        except TryAgainError as error:
            if str(error) != "busy":
                raise
            raise TryAgainError(
                f"Another watch looks after {self.name} already{who}.",
                hint="To see what its job prints: tpuctl logs "
                f"{self.name} -f; to take its place, end it first.",
            ) from None

    def load(self) -> Kept | None:
        """What the last watch of this name has left; raises InvalidInputError when unreadable."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        try:
            if document["schema"] != SCHEMA:
                raise ValueError(f"its schema is {document['schema']}")
            return Kept(
                read_memory(document["memory"]),
                document["order"],
                document["command"],
                document["is_over"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unreadable(error) from error

    def save(self, memory: Memory, order: Order, *, is_over: bool = False) -> None:
        """Have it on the disk before anything is done about it; raises WriteError."""
        document = {
            "schema": SCHEMA,
            "order": digest(order),
            "command": " ".join(order.command)[:200],
            "is_over": is_over,
            "memory": document_of(memory),
        }
        ensure_folder(self.path.parent)
        # A recipe holds what the TPU was told, which may be a secret.
        self.path.parent.chmod(0o700)
        write_atomically(self.path, json.dumps(document, indent=1))

    def _unreadable(self, error: Exception) -> InvalidInputError:
        return InvalidInputError(
            f"What the last watch of {self.name} has left in {self.path} cannot be read: {error}.",
            hint="Begin anew: add --fresh.",
        )


def digest(order: Order) -> str:
    """What tells one job from another: its words, variables, code and folder, not our patience."""
    words = [list(order.command), sorted(order.env.items()), order.code, order.folder]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in a memory")


def document_of(memory: Memory) -> dict[str, Any]:
    """A memory as what JSON can hold."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(memory), default=_plain))
    return document


def read_memory(document: dict[str, Any]) -> Memory:
    """The memory again; raises KeyError, TypeError or ValueError for what is none."""
    parts: dict[str, Any] = {
        **document,
        "recipe": _recipe(document["recipe"]),
        "attempts": tuple(_known(Attempt, item) for item in document["attempts"]),
    }
    for name, kind in (("tpu", Known), ("open", Running), ("removing", Removing)):
        parts[name] = None if document[name] is None else _known(kind, document[name])
    return _known(Memory, parts)


def _recipe(document: dict[str, Any]) -> CreateOptions:
    script = document["startup_script"]
    return _known(
        CreateOptions,
        {
            **document,
            "zones": tuple(document["zones"]),
            "tags": tuple(document["tags"]),
            "data_disks": tuple(DataDisk(*disk) for disk in document.get("data_disks", ())),
            "startup_script": None if script is None else base64.b64decode(script),
        },
    )


def _known(kind: type[T], document: dict[str, Any]) -> T:
    """Build it from what is known of it; times are read, and what is newer than we are left out."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    known = {name: value for name, value in document.items() if name in names}
    for name in _TIMES:
        if isinstance(known.get(name), str):
            known[name] = datetime.fromisoformat(known[name])
    return kind(**known)
