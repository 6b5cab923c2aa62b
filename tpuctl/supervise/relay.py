"""`watch --on`: which provider runs the job next (pure), and the ledger of what each has used."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from tpuctl import settings
from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import (
    CommandFailedError,
    InvalidInputError,
    NoCapacityError,
    TpuctlError,
    WrongStateError,
)
from tpuctl.outcome import Outcome
from tpuctl.providers.port import ProviderOffer
from tpuctl.storage.local import ensure_folder, locked, write_atomically

SCHEMA = "tpuctl-relay/1"
PAUSE_S = 300.0
"""How long to wait before all providers are asked again, when none had a TPU."""

PartEnd = Literal["", "done", "crash", "stopped", "ended", "refused"]


@dataclass(frozen=True)
class JobPart:
    """One provider's part of the job, and what it has used; `end` is empty while it runs.

    `ended`: the TPU is gone or its time is over, the job is not done. `refused`: there was no TPU;
    `may_come` is whether there may be one later. `hours_before` are the free hours of the week that
    were used before it.
    """

    number: int
    provider: str
    accelerator_type: str
    name: str
    began: datetime
    end: PartEnd = ""
    reason: str = ""
    exit_code: int | None = None
    crashes: int = 0
    hours: float = 0.0
    units: float | None = None
    usd: float | None = None
    may_come: bool = False
    hours_before: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """All parts of one command, oldest first."""

    id: str
    legs: tuple[JobPart, ...] = ()
    is_over: bool = False

    @property
    def open(self) -> JobPart | None:
        """The part that runs, or ran when this command was killed."""
        return self.legs[-1] if self.legs and not self.legs[-1].end else None

    @property
    def crashes(self) -> int:
        """How often the job itself has failed."""
        return sum(part.crashes for part in self.legs)

    def with_part(self, part: JobPart) -> "Ledger":
        """Return the ledger with a part added or changed."""
        kept = tuple(each for each in self.legs if each.number != part.number)
        return replace(self, legs=(*kept, part))


@dataclass(frozen=True)
class Go:
    """Run the job at this place, the n-th of the command."""

    place: int


@dataclass(frozen=True)
class Pause:
    """No provider has a TPU; ask again later."""


@dataclass(frozen=True)
class End:
    """The job is done, or is given up for this error."""

    error: TpuctlError | None = None


def next_step(ledger: Ledger, places: tuple[str, ...], *, max_crashes: int) -> Go | Pause | End:
    """Decide what to do next; `places` are PROVIDER:TYPE, in their order."""
    if not ledger.legs:
        return Go(0)
    last = ledger.legs[-1]
    here = places.index(f"{last.provider}:{last.accelerator_type}")
    if not last.end:
        return Go(here)
    if last.end == "done":
        return End()
    if last.end == "stopped":
        return End(WrongStateError(f"The job is not restarted: {last.reason}."))
    if last.end == "crash":
        return _after_crash(ledger, last, here, max_crashes)
    round_ = ledger.legs[-len(places) :]
    if here == len(places) - 1 and all(part.end == "refused" for part in round_):
        if any(part.may_come for part in round_):
            return Pause()
        text = "; ".join(f"{part.provider}: {part.reason}" for part in round_)
        return End(NoCapacityError(f"None of these has a TPU. {text}", hint="tpuctl offers"))
    return Go((here + 1) % len(places))


def _after_crash(ledger: Ledger, last: JobPart, here: int, max_crashes: int) -> Go | End:
    if ledger.crashes < max_crashes:
        return Go(here)
    times = "" if ledger.crashes == 1 else f" {ledger.crashes} times; the last time"
    error = CommandFailedError(
        f"The job has failed{times}: {last.reason.rstrip('.')}.",
        hint="Its output is above. After a change, repeat the command.",
    )
    error.exit_code = last.exit_code or error.exit_code
    return End(error)


@dataclass(frozen=True)
class RelayPlan(Outcome):
    """Where the job would run, in this order, and what that costs; `resumes` is an open part."""

    command: tuple[str, ...]
    checkpoints: str
    offers: tuple[ProviderOffer, ...]
    sent: tuple[str, ...]
    resumes: str | None
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})


@dataclass(frozen=True)
class RelayResult(Outcome):
    """The parts of the job, and the ledger: hours of TPUs, compute units and dollars of all."""

    checkpoints: str
    attempts: tuple[JobPart, ...]
    hours: float
    units: float
    usd: float
    error: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why the job was given up."""
        return (self.error,) if self.error else ()


def sum_up(ledger: Ledger, checkpoints: str, error: TpuctlError | None) -> RelayResult:
    """Add up the ledger."""
    parts = ledger.legs
    return RelayResult(
        checkpoints,
        parts,
        round(sum(part.hours for part in parts), 4),
        round(sum(part.units or 0.0 for part in parts), 4),
        round(sum(part.usd or 0.0 for part in parts), 4),
        error,
    )


class LedgerFile:
    """The ledger of one command: the same command finds it again, however it ended."""

    def __init__(self, words: object) -> None:
        self.id = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]
        self.folder = settings.state_dir() / "relays"
        self._path = self.folder / f"{self.id}.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this command; raises TryAgainError."""
        ensure_folder(self.folder, private=True)
        busy = "Another process runs this command."
        with locked(self._path.with_suffix(".lock"), wait_s=0, busy=busy):
            yield

    def load(self, *, fresh: bool = False) -> Ledger:
        """Read the ledger; a new one if it is missing or the job has ended."""
        stamp = self._path.stat().st_mtime_ns if self._path.exists() else 0
        new = Ledger(f"{self.id[:6]}{hashlib.sha256(str(stamp).encode()).hexdigest()[:4]}")
        try:
            document = read_json(self._path)
            saved = from_plain(Ledger, document["ledger"])
        except FileNotFoundError:
            return new
        except (OSError, ValueError, KeyError, TypeError) as error:
            if fresh:
                return new
            text = f"Could not read {self._path}, the ledger of this command: {error}."
            raise InvalidInputError(text, hint="To start over: add --fresh.") from error
        return new if saved.is_over or fresh else saved

    def save(self, ledger: Ledger) -> None:
        """Write the ledger; raises WriteError."""
        text = json.dumps({"schema": SCHEMA, "ledger": to_plain(ledger)}, indent=1)
        write_atomically(self._path, text, private=True)


def relay_folder(ledger: Ledger) -> Path:
    """Return the folder here for checkpoints that are kept in a bucket."""
    return settings.state_dir() / "relays" / ledger.id
