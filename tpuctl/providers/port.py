"""The port to a place that has TPUs.

A provider is a module with a class that has the methods of `Provider`, and one line in
`registry.PROVIDERS`. The module is imported when the provider is first used, so it may load a
vendor's library only in `_*.py` modules that it imports inside its functions.

Who calls what:

- `tpuctl create` asks `provider.plan(options)`, shows the plan, and passes it to `create`.
- `list`, `gc`, `delete` and `offers` ask every provider in use (`registry.in_use`) and join the
  results (`combined.py`); with `--provider` they ask that one.
- A command with a NAME asks the provider that `knows` it from its own records, without a request;
  else the Cloud TPU API.
- `run`, `cp`, `ssh`, `logs`, `stop`, `top`, `free`, `launch --on NAME` use what `reach` returns.

Rules for an adapter:

- The objects are the same everywhere: `Tpu`, `TpuList`, `Created`, `DeleteResult`, `GcResult`. A
  field that a provider does not know is None; `zone` is None where there are no zones.
- What a provider cannot do is refused with `Abilities.refuse`, which names the provider and the
  closest thing offered. `Abilities.check` refuses the options of a create that it would ignore.
- `why_unusable`, `is_used` and `knows` read local files only.
- A request that creates something is written to disk before it is sent (`records.py`, or the
  journal of Cloud TPUs), and repeated with the same key after a crash.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, Protocol

from tpuctl.cloud.models import Node
from tpuctl.cloud.plan import CreateOptions, CreatePlan, NotedOutcome
from tpuctl.cloud.tpu import Balance as Balance
from tpuctl.cloud.tpu import Provisioning
from tpuctl.errors import UnsupportedError
from tpuctl.progress import OnProgress
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import Host

if TYPE_CHECKING:
    from tpuctl.cloud.create import Choice, Created, NotCreated, OnAttempt
    from tpuctl.cloud.delete import DeleteResult
    from tpuctl.cloud.gc import GcResult
    from tpuctl.cloud.list import TpuList
    from tpuctl.cloud.tpu import QueuedTpu, Tpu


@dataclass(frozen=True)
class Abilities:
    """The features of a provider, known without a request.

    `title` is its name in sentences. `options` are the fields of CreateOptions that it honours.
    `instead` names, for a verb or an option that it does not have, the closest thing offered.
    """

    name: str
    title: str
    reachable: Literal["ssh", "batch"] = "ssh"
    options: frozenset[str] = frozenset()
    instead: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, what: str, *, key: str = "", name: str = "NAME") -> UnsupportedError:
        """Make the error for something that this provider cannot do, with a TPU of that name."""
        hint = self.instead.get(key or what, "tpuctl offers shows what every provider has.")
        text = f"{self.title} does not offer {what}."
        return UnsupportedError(text, hint=hint.replace("NAME", name))

    def check(self, options: CreateOptions) -> None:
        """Raise UnsupportedError for an option of a create that would have no effect."""
        for each in fields(options):
            default = each.default
            if default is MISSING and each.default_factory is not MISSING:
                default = each.default_factory()
            if each.name in _ALWAYS or each.name in self.options:
                continue
            if getattr(options, each.name) != default:
                raise self.refuse(flag_of(each.name), key=each.name)


def refused(what: str) -> Callable[..., NoReturn]:
    """Make a method of a provider that refuses a verb."""

    def refuse(provider: "Provider", *_: object, **__: object) -> NoReturn:
        raise provider.abilities.refuse(what)

    return refuse


_ALWAYS = frozenset({"name", "accelerator_type", "metadata", "watch"})
_FLAGS = {"zones": "--zone", "ttl_s": "--ttl", "labels": "--label", "tags": "--tag",
          "data_disks": "--data-disk"}  # fmt: skip


def flag_of(option: str) -> str:
    """Return the flag of a field of CreateOptions."""
    return _FLAGS.get(option, "--" + option.replace("_", "-"))


@dataclass(frozen=True)
class ProviderOffer:
    """One way to get a TPU now, its price, and what that is known from.

    `available` is whether the account may have it and a request may succeed: False where the quota
    or the balance is used up, None if only a request can show it.
    """

    provider: str
    accelerator_type: str
    chips: int | None
    zone: str | None
    provisioning: Provisioning
    usd_per_hour: float | None
    units_per_hour: float | None = None
    quota_left: float | None = None
    limit_hours: float | None = None
    available: bool | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostedPlan(NotedOutcome):
    """A create of one TPU that is paid in units or free hours, before it is requested."""

    name: str
    provider: str
    accelerator_type: str
    generation: str | None
    chips: int | None
    provisioning: Provisioning
    ttl_s: float | None
    max_units: float | None
    units_per_hour: float | None
    limit_hours: float | None
    balance: Balance | None
    options: CreateOptions = field(metadata={"internal": True})
    until: str = field(default="until you delete it", metadata={"internal": True})


@dataclass(frozen=True)
class Login:
    """How the user wants to log in to workers; `user` is empty without USER@."""

    user: str = ""
    zone: str | None = None
    key: Path | None = None
    jump: Host | None = None
    internal_ip: bool = False
    iap: bool = False
    on_warning: Callable[[str], None] = lambda text: None


class Reached(NamedTuple):
    """The workers of a TPU, what SSH needs for them, and the TPU itself where it has a node."""

    hosts: tuple[Host, ...]
    access: Access
    node: Node | None = None


class Provider(Protocol):
    """One place that has TPUs; every method raises only TpuctlErrors."""

    abilities: Abilities

    def why_unusable(self) -> str | None:
        """Return why it cannot be asked, with the command to run; None where it can. Local."""

    def is_recorded(self, name: str) -> bool:
        """Whether this machine has a record of creating a TPU of this name. Local."""

    def is_used(self) -> bool:
        """Whether the user relies on it: something that was started here may be there. Local."""

    def was_deleted(self, name: str) -> bool:
        """Whether what this machine had created under this name is gone. Local."""

    def plan(self, options: CreateOptions, *, dry_run: bool = False) -> CreatePlan | HostedPlan:
        """Check the options, and read price and balance, for a dry run quota; creates nothing."""

    def create(
        self,
        plan: CreatePlan | HostedPlan,
        *,
        wait: bool,
        timeout_s: float | None,
        on_interrupt: "Callable[[], Choice]",
        on_progress: OnProgress,
        on_attempt: "OnAttempt",
    ) -> "Created | NotCreated":
        """Create what was planned, or adopt what an interrupted create of that name has left."""

    def list(self, zone: str | None) -> "TpuList":
        """List the TPUs of a zone or of all; those that are not ours are in it, and marked."""

    def get(self, name: str, zone: str | None) -> "Tpu | QueuedTpu":
        """Read one TPU; raises NotFoundError."""

    def plan_delete(self, names: Sequence[str] | None, zone: str | None) -> "DeleteResult":
        """Find what is to be deleted; None is everything that is ours."""

    def delete(
        self, plan: "DeleteResult", *, timeout_s: float, on_progress: OnProgress
    ) -> "DeleteResult":
        """Delete what was planned, and wait until it is gone."""

    def find_orphans(self, zone: str | None) -> "GcResult":
        """Find what costs money or quota but is unused; only what is ours."""

    def delete_orphans(self, found: "GcResult", on_progress: OnProgress) -> "GcResult":
        """Delete the orphans that still are orphans."""

    def offers(self, accelerator_type: str | None) -> Sequence[ProviderOffer]:
        """List what is available, of one type or of all; only reads."""

    def balance(self) -> Balance | None:
        """Read what is left of units or free hours; None for a provider that bills in dollars."""

    def reach(self, name: str, login: Login) -> Reached:
        """Find the workers of a TPU; raises `refuse` for one that is batch only."""
