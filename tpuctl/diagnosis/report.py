"""The data of a diagnosis: what a check receives and returns, and the result of `doctor`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.outcome import Outcome, Status
from tpuctl.runtime.detect import Detection
from tpuctl.runtime.holders import Holder
from tpuctl.runtime.machine import HostFacts, Machine, is_true, variable
from tpuctl.runtime.redact import is_secret_name, redact
from tpuctl.training.choose import Choice

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
    """The evidence for each of the four questions that `detect` answers."""

    platform: tuple[str, ...]
    hardware: tuple[str, ...]
    frameworks: tuple[str, ...]
    state: tuple[str, ...]


@dataclass(frozen=True)
class OwnNotebook:
    """The notebook that `doctor` runs in, and the worst finding of `lint` in it.

    `path` is None if its file cannot be found, and `why_null` says why.
    """

    path: str | None
    findings: int
    cell: int | None
    line: int | None
    code: str | None
    severity: str | None
    message: str | None
    why_null: str | None


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
    own_notebook: OwnNotebook | None = None
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


@dataclass(frozen=True)
class MachineView:
    """A machine and what was detected on it."""

    machine: Machine
    detected: Detection

    @property
    def on_tpu(self) -> bool:
        """Whether there are TPU chips in this machine."""
        return self.detected.chips.count > 0

    @property
    def is_hosted(self) -> bool:
        """Whether this is a notebook service, where the host cannot be changed."""
        return self.detected.runtime.startswith(("colab", "kaggle"))

    def has(self, distribution: str) -> bool:
        """Whether a distribution is installed."""
        return distribution in self.machine.packages

    def version(self, distribution: str) -> str:
        """Return the version of a distribution; empty if it is not installed."""
        return self.machine.packages.get(distribution, "")

    def value(self, name: str) -> str:
        """Return an environment variable; set but empty is the same as unset."""
        return variable(self.machine, name)

    def is_true(self, name: str) -> bool:
        """Whether an environment variable is set to a true value."""
        return is_true(self.machine, name)

    def shown(self, name: str) -> str:
        """Return `NAME=value` as evidence, without secrets."""
        value = redact(self.value(name))
        return f"{name}={'<redacted>' if is_secret_name(name) else value[:120]}"


@dataclass(frozen=True)
class Finding:
    """Evidence of a failure; the other fields override the catalogue for this machine."""

    evidence: tuple[str, ...]
    severity: str | None = None
    summary: str | None = None
    fix: str | None = None
    fix_command: str | None = None


def found(*evidence: str, severity: str | None = None) -> Finding:
    """Make a finding that the catalogue describes."""
    return Finding(tuple(evidence), severity=severity)
