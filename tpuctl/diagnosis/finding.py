"""The input and the result of a check."""

from dataclasses import dataclass

from tpuctl.runtime.detect import Detection
from tpuctl.runtime.machine import Machine, is_true, variable
from tpuctl.runtime.redact import is_secret_name, redact


@dataclass(frozen=True)
class View:
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
        """Whether an environment variable is set to something that means yes."""
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
    fix: str | None = None
    fix_command: str | None = None


def found(*evidence: str, severity: str | None = None) -> Finding:
    """Make a finding that is described by the catalogue."""
    return Finding(tuple(evidence), severity=severity)
