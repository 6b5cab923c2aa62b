"""The result of `tpuctl doctor`, as data."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.outcome import Outcome, Status
from tpuctl.runtime.holders import Holder
from tpuctl.runtime.machine import HostFacts
from tpuctl.training.strategy import Choice

if TYPE_CHECKING:
    from tpuctl.diagnosis.repair import Repair
    from tpuctl.diagnosis.trials import DeviceTrial, Numerics


@dataclass(frozen=True)
class Problem:
    """Something that is wrong or worth knowing, with the evidence and how to fix it."""

    code: str
    severity: str
    summary: str
    evidence: tuple[str, ...]
    fix: str
    fix_command: str | None


@dataclass(frozen=True)
class Answers:
    """The evidence, for each of the four questions that `detect` answers."""

    platform: tuple[str, ...]
    hardware: tuple[str, ...]
    frameworks: tuple[str, ...]
    state: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis(Outcome):
    """The runtime, its hardware and frameworks, what is wrong, and what to use."""

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
    recommended: Choice
    holders: tuple[Holder, ...]
    uninspected_processes: int
    problems: tuple[Problem, ...]
    deep: "DeviceTrial | None" = None
    numerics: "Numerics | None" = None
    repairs: "tuple[Repair, ...] | None" = None
    recorded_to: str | None = None
    is_replay: bool = field(default=False, metadata={"internal": True})

    @property
    def blocking(self) -> tuple[Problem, ...]:
        """The problems that prevent the accelerator from working."""
        return tuple(problem for problem in self.problems if problem.severity == "blocking")

    @property
    def reasons(self) -> tuple[str, ...]:
        """The evidence."""
        return self.evidence

    @property
    def status(self) -> Status:
        """`attention` if there is a blocking problem or a warning."""
        serious = any(problem.severity != "note" for problem in self.problems)
        return "attention" if serious or self.exit_code else "ok"

    @property
    def exit_code(self) -> int:
        """1 if a problem is blocking, or a requested trial failed."""
        failed = (self.deep and self.deep.error) or (self.numerics and self.numerics.error)
        return 1 if self.blocking or failed else 0
