"""What a sweep measured, and what two of them say of each other."""

from dataclasses import dataclass, field

from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome, Status


@dataclass(frozen=True)
class Variant:
    """One way to train on this machine: device, framework and strategy."""

    device: str
    framework: str
    strategy: str
    cpu_devices: int | None = None
    hides_accelerators: bool = False


@dataclass(frozen=True)
class Row:
    """One training: the first epoch apart, since it compiles; the rest as means over epochs.

    `batch_size` is global. `us_per_example` is an epoch's time over its examples.
    """

    device: str
    framework: str
    strategy: str
    batch_size: int
    replicas: int
    first_epoch_s: float
    epoch_s: float
    step_ms: float
    us_per_example: float
    examples_per_s: float


@dataclass(frozen=True)
class Bench(Outcome):
    """A sweep over batch sizes on everything that this machine can train on.

    `date` is the day (UTC) as YYYY-MM-DD; empty where a sweep that was read does not say.
    """

    machine: str
    date: str
    template: str
    examples_per_epoch: int
    epochs: int
    rows: tuple[Row, ...]
    plot: str | None
    errors: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def place(self) -> str:
        """Where and when it was measured."""
        return f"{self.machine}, {self.date}" if self.date else self.machine

    @property
    def status(self) -> Status:
        """Partial where some trainings failed, an error where all did."""
        if not self.errors:
            return "ok"
        return "partial" if self.rows else "error"

    @property
    def exit_code(self) -> int:
        """1 when any training failed."""
        return 1 if self.errors else 0

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The trainings that failed, each with its command."""
        return self.errors


@dataclass(frozen=True)
class SpeedUp:
    """Two machines at one batch size, or each at its best where `batch_size` is None."""

    batch_size: int | None
    before: Row
    after: Row
    speed_up: float
    first_epoch_speed_up: float


@dataclass(frozen=True)
class Comparison(Outcome):
    """How many times as fast the second machine is as the first; each with its date."""

    template: str
    before: str
    after: str
    speed_ups: tuple[SpeedUp, ...]
