"""The whole answer of `tpuctl doctor`, as data."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.outcome import Outcome, Status
from tpuctl.runtime.machine import HostFacts
from tpuctl.training.strategy import Choice

if TYPE_CHECKING:
    from tpuctl.diagnosis.repair import Repair
    from tpuctl.diagnosis.trials import DeviceTrial, Numerics


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, or worth knowing, with the evidence and what mends it."""

    code: str
    severity: str
    summary: str
    evidence: tuple[str, ...]
    fix: str
    fix_command: str | None


@dataclass(frozen=True)
class HolderLine:
    """A process that has the TPU."""

    pid: int
    user: str | None
    command: str | None
    device: str
    is_this_notebook: bool
    seen_by: str


@dataclass(frozen=True)
class Recommended:
    """The framework and strategy to start with, and code that runs as pasted."""

    framework: str
    strategy: str
    because: str
    snippet: str


@dataclass(frozen=True)
class Answers:
    """The four separate answers, each with its own evidence."""

    platform: tuple[str, ...]
    hardware: tuple[str, ...]
    frameworks: tuple[str, ...]
    state: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis(Outcome):
    """Where we are, what is here, what is wrong and what to do."""

    runtime: str
    accelerator: str
    generation: str | None
    chips: int
    cores: int
    devices: int
    hosts: int
    slices: int
    remote_chips: int | None
    remote_cores: int | None
    usable: bool | None
    free: bool | None
    worker: int | None
    container: bool
    gpus: int
    gpu_names: tuple[str, ...]
    evidence: tuple[str, ...]
    answers: Answers
    host: HostFacts
    packages: dict[str, str]
    strategy_tf: str
    strategy_jax: str
    strategy_torch: str
    strategy_keras: str
    strategies: tuple[Choice, ...]
    recommended: Recommended
    holders: tuple[HolderLine, ...]
    uninspected_processes: int
    problems: tuple[Problem, ...]
    deep: "DeviceTrial | None" = None
    numerics: "Numerics | None" = None
    repairs: "tuple[Repair, ...] | None" = None
    recorded_to: str | None = None
    is_replay: bool = field(default=False, metadata={"internal": True})

    @property
    def blocking(self) -> tuple[Problem, ...]:
        """The problems that keep the accelerator from working."""
        return tuple(problem for problem in self.problems if problem.severity == "blocking")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that was seen."""
        return self.evidence

    @property
    def status(self) -> Status:
        """Attention where something blocks or deserves a warning."""
        serious = any(problem.severity != "note" for problem in self.problems)
        return "attention" if serious or self.exit_code else "ok"

    @property
    def exit_code(self) -> int:
        """1 when any problem is blocking, or a trial that was asked for has failed."""
        failed = (self.deep and self.deep.error) or (self.numerics and self.numerics.error)
        return 1 if self.blocking or failed else 0
