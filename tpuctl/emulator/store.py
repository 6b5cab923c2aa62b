"""The state of an emulator on disk: a log of its requests, and the time.

The state machine is deterministic, so replaying the requests at their times restores the state. A
line that a crash left incomplete was never answered, and is dropped.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.emulator.errors import ServiceError
from tpuctl.emulator.methods import Call
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.state import apply
from tpuctl.emulator.world import World
from tpuctl.errors import InvalidInputError
from tpuctl.storage.local import append_line, ensure_folder, translated_write_errors

FORMAT = 1
_CLOCK_BYTES = 32


class Store:
    """The log of one world, and the last time that a client saw."""

    def __init__(self, folder: Path) -> None:
        self._log, self._clock = folder / "requests.jsonl", folder / "time"
        self.storage = folder / "storage"
        ensure_folder(folder, private=True)

    @property
    def has_world(self) -> bool:
        """Whether there is a world to resume."""
        return any(True for _ in self._lines())

    @property
    def scenario(self) -> Scenario | None:
        """The scenario of the stored world."""
        header = next(self._lines(), None)
        return parse_scenario(header["scenario"], source=str(self._log)) if header else None

    def create(self, scenario: Scenario, *, seed: str, now: datetime) -> World:
        """Replace the stored world."""
        with translated_write_errors(self._log):
            self._log.unlink(missing_ok=True)
            shutil.rmtree(self.storage, ignore_errors=True)
        header = {
            "format": FORMAT,
            "seed": seed,
            "began": now.isoformat(),
            "scenario": dict(scenario.document),
        }
        append_line(self._log, json.dumps(header), private=True)
        return World(scenario, seed=seed, now=now)

    def resume(self) -> World:
        """Rebuild the world from its log; raises InvalidInputError if that is damaged."""
        lines = self._lines()
        try:
            header = next(lines)
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            scenario = parse_scenario(header["scenario"], source=str(self._log))
            start = datetime.fromisoformat(header["began"])
            world = World(scenario, seed=header["seed"], now=start)
            for line in lines:
                at = datetime.fromisoformat(line["at"])
                # A failed request is stored too, because it counts for planned faults.
                with suppress(ServiceError):
                    apply(world, from_plain(Call, line["call"]), at)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"Could not read the emulator's state in {self._log}: {error}.",
                hint="Start over: tpuctl emulator start --fresh",
            ) from error
        self._drop_incomplete_line()
        return world

    def last_time(self, world: World) -> datetime:
        """Return the last time that a client saw, or that of the world if it is later."""
        try:
            stored = datetime.fromisoformat(self._clock.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return world.now
        return max(stored, world.now)

    def record(self, call: Call, at: datetime) -> None:
        """Store a request before it is answered; raises WriteError."""
        line = json.dumps({"at": at.isoformat(), "call": to_plain(call)})
        append_line(self._log, line, private=True)

    def save_time(self, now: datetime) -> None:
        """Store the time, in one small write that a kill cannot interrupt."""
        with translated_write_errors(self._clock):
            descriptor = os.open(self._clock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(descriptor, now.isoformat().ljust(_CLOCK_BYTES).encode(), 0)
            finally:
                os.close(descriptor)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            for line in file:
                # The last line is incomplete if the emulator was killed while it wrote it.
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _drop_incomplete_line(self) -> None:
        with translated_write_errors(self._log), self._log.open("r+b") as file:
            whole = file.read().rpartition(b"\n")[0]
            file.truncate(len(whole) + 1)
