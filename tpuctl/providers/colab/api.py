"""The requests that tpuctl sends to Colab, whichever of its two control planes answers."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tpuctl.clock import Clock
from tpuctl.codec import load_facts
from tpuctl.errors import InvalidInputError, NoCapacityError, QuotaExceededError, TpuctlError
from tpuctl.hardware.types import describe


def facts() -> dict[str, Any]:
    """Return the dated facts about Colab."""
    return load_facts(Path(__file__).parent / "data" / "colab.json")


def accelerator_for(accelerator_type: str) -> tuple[str, str]:
    """Return our name of a type and Colab's; raises UsageError, InvalidInputError."""
    ours = describe(accelerator_type).accelerator_type
    known: dict[str, str] = facts()["types"]
    if ours not in known:
        raise InvalidInputError(
            f"Colab has no {accelerator_type}: its TPUs are {' and '.join(known)}, one chip each.",
            hint=f"tpuctl offers {accelerator_type} shows who has it.",
        )
    return ours, known[ours]


def type_of(accelerator: str) -> str:
    """Return our name of Colab's accelerator, or Colab's own in lower case for another one."""
    known: dict[str, str] = {theirs: ours for ours, theirs in facts()["types"].items()}
    return known.get(accelerator, accelerator.lower() or "none")


@dataclass(frozen=True)
class Runtime:
    """A runtime of the account: ours, of another tool, or of a browser tab.

    `id` is its name in both control planes; `url` and `token` lead to it until `expires`.
    """

    id: str
    accelerator: str
    url: str
    token: str
    expires: datetime | None


@dataclass(frozen=True)
class Units:
    """The compute units of an account, and how fast everything that runs uses them."""

    left: float | None
    per_hour: float | None


class ColabApi(Protocol):
    """One request per method; raises TpuctlErrors. UnavailableError: the work may be done or not.

    `key` makes a create unique: the same key again leads to the same runtime.
    """

    plane: str

    @property
    def clock(self) -> Clock:
        """The service's time."""

    def find(self, key: str) -> Runtime | None:
        """Return the runtime that was created with a key; creates nothing."""

    def create(self, key: str, accelerator: str) -> Runtime:
        """Create a runtime, or return that of the key."""

    def list(self) -> tuple[Runtime, ...]:
        """List every runtime of the account, each with a fresh token."""

    def delete(self, runtime_id: str) -> None:
        """Delete a runtime; one that is already gone is not an error."""

    def units(self) -> Units:
        """Read the balance."""

    def eligible(self) -> dict[str, bool] | None:
        """Return which accelerators the account may have; None if this API does not say."""

    def keep_alive(self, runtime_id: str) -> None:
        """Tell Colab that a runtime is in use."""


def refusal(reason: str, accelerator: str) -> TpuctlError:
    """Make the error for a refused create; `reason` is the public API's."""
    kind = type_of(accelerator)
    if reason == "DENYLISTED":
        return TpuctlError(
            "Colab refuses this account: it is on Colab's deny list.",
            hint="Ask Colab's support; other providers: tpuctl offers",
        )
    if reason == "NOT_ELIGIBLE":
        return QuotaExceededError(
            f"Colab does not give this account a {kind}: paid tier, region or quota.",
            hint="What it may have: tpuctl doctor --provider colab",
        )
    if reason == "QUOTA_EXCEEDED_USAGE_TIME":
        return QuotaExceededError(
            f"Colab refused a {kind}: the usage limit of this account is reached.",
            hint="Units and rate: tpuctl offers --provider colab; other providers: tpuctl offers",
        )
    if reason == "TOO_MANY_ACTIVE_RUNTIMES":
        return QuotaExceededError(
            f"Colab refused a {kind}: too many runtimes of this account are active.",
            hint="See them, also those of a browser: tpuctl list --provider colab",
        )
    return NoCapacityError(
        f"Colab has no {kind} right now ({reason or 'no reason given'}).",
        hint="The same command again later, or another provider: tpuctl offers",
    )
