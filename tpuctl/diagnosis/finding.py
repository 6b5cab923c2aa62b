"""What a check gets to see, and what it may say."""

from dataclasses import dataclass

from tpuctl.runtime.detect import Detection
from tpuctl.runtime.machine import Machine, is_true, variable
from tpuctl.runtime.redact import is_secret_name, redact


@dataclass(frozen=True)
class View:
    """A machine and what has been found out about it."""

    machine: Machine
    found: Detection

    @property
    def on_tpu(self) -> bool:
        """Whether there are TPU chips in this machine."""
        return self.found.chips.count > 0

    @property
    def is_hosted(self) -> bool:
        """Whether this is a notebook service, where nothing of the host can be changed."""
        return self.found.runtime.startswith(("colab", "kaggle"))

    def has(self, distribution: str) -> bool:
        """Whether a distribution is installed."""
        return distribution in self.machine.packages

    def version(self, distribution: str) -> str:
        """The version of a distribution; empty when it is not installed."""
        return self.machine.packages.get(distribution, "")

    def value(self, name: str) -> str:
        """A variable's value; set but empty is the same as unset."""
        return variable(self.machine, name)

    def is_true(self, name: str) -> bool:
        """Whether a variable means yes."""
        return is_true(self.machine, name)

    def shown(self, name: str) -> str:
        """A variable as evidence."""
        value = redact(self.value(name))
        return f"{name}={'<redacted>' if is_secret_name(name) else value[:120]}"


@dataclass(frozen=True)
class Finding:
    """A failure that was seen: its evidence, and where this machine differs from the catalogue."""

    evidence: tuple[str, ...]
    severity: str | None = None
    fix: str | None = None
    fix_command: str | None = None


def found(*evidence: str, severity: str | None = None) -> Finding:
    """A finding as the catalogue describes it."""
    return Finding(tuple(evidence), severity=severity)
