"""`migrate`: what a TPU of the Cloud TPU API would be on Compute Engine."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tpuctl.cloud.clone import clone_options
from tpuctl.cloud.connect import connect
from tpuctl.cloud.create import Created, NotCreated
from tpuctl.cloud.lookup import attempt, find
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.cloud.plan import CreateOptions
from tpuctl.cloud.quotas import ZoneLimit, read_quotas
from tpuctl.errors import NotFoundError, TpuctlError, UnsupportedError, UsageError
from tpuctl.hardware.compute_engine import (
    GCE,
    describe_on,
    flex_limits,
    hardware_of,
    list_price,
    model_of,
)
from tpuctl.outcome import Outcome
from tpuctl.progress import OnProgress, silent
from tpuctl.providers.registry import hosted_owner, open_provider


@dataclass(frozen=True)
class Migration(Outcome):
    """The command that makes the same TPU on Compute Engine, and what would be different.

    `quota` is that of its zone there; None where it is unknown. `created` is the new TPU, if it was
    made; the old one stays.
    """

    name: str
    zone: str
    to: str
    command: str
    differences: tuple[str, ...]
    quota: ZoneLimit | None
    usd_per_hour: float | None
    created: Created | None = None
    options: CreateOptions | None = field(default=None, metadata={"internal": True})
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})


def plan_migration(
    name: str, *, to: str = GCE, zone: str | None = None, project: str | None = None
) -> Migration:
    """Describe what a node or a queued resource would be on Compute Engine; only reads.

    Raises InvalidArgumentError for a generation that Compute Engine does not have.
    """
    if to != GCE:
        raise UsageError(f"Cannot migrate to {to!r}.", hint="TPUs migrate to gce.")
    resource = attempt(lambda: find(connect(project), name, zone))
    if isinstance(resource, TpuctlError):
        there = attempt(lambda: find(connect(project, control_plane=GCE), name, zone))
        if isinstance(resource, NotFoundError) and not isinstance(there, TpuctlError):
            raise UsageError(f"{name} is on Compute Engine already.", hint=f"tpuctl show {name}")
        if not zone and (owner := hosted_owner(name)):
            text = f"{name} is on {owner.abilities.title}; only TPUs of the Cloud TPU API migrate."
            raise UsageError(text, hint=f"tpuctl show {name}")
        raise resource
    node = resource.requested if isinstance(resource, QueuedResource) else resource
    if node is None:
        raise UnsupportedError(f"What the queued resource {name} asks for is unknown.")
    is_queued = isinstance(resource, QueuedResource) or node.queued_resource is not None
    options = _options(node, is_queued=is_queued)
    kind = attempt(lambda: describe_on(GCE, options.accelerator_type))
    if isinstance(kind, TpuctlError):
        kind.hint = f"Its generation stays on the Cloud TPU API: tpuctl show {name}"
        raise kind
    place = node.zone if node.zone in kind.zones else "auto"
    table = attempt(
        lambda: read_quotas(connect(project, control_plane=GCE), options.accelerator_type)
    )
    limits = () if isinstance(table, TpuctlError) else table.limits
    unread = (f"Its quota is unknown: {table}",) if isinstance(table, TpuctlError) else ()
    return Migration(
        name,
        node.zone,
        to,
        shlex.join(_command(options, place)),
        tuple(_differences(node, options, place)),
        next((each for each in limits if each.zone == place), None),
        list_price(GCE, options.accelerator_type, place, model_of(options)),
        options=replace(options, zones=() if place == "auto" else (place,)),
        warnings=(*unread, *((kind.note,) if kind.note else ())),
    )


def migrate(
    plan: Migration,
    *,
    project: str | None = None,
    on_progress: OnProgress = silent,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Migration:
    """Create the TPU next to the old one, which costs money; the old one is left alone."""
    assert plan.options
    if plan.options.reservation == _NO_RESERVATION:
        raise UsageError(
            "Which reservation on Compute Engine to use must be named.", hint=plan.command
        )
    provider = open_provider(GCE, project=project, on_warning=on_warning)
    result = provider.create(
        provider.plan(plan.options),
        wait=True,
        timeout_s=None,
        on_interrupt=lambda: "cancel",
        on_progress=on_progress,
        on_attempt=lambda attempt: None,
    )
    if isinstance(result, NotCreated):
        raise result.error
    return replace(plan, created=result)


_NO_RESERVATION = "RESERVATION"
_DEFAULTS = ("/networks/default", "/subnetworks/default", "-compute@developer.gserviceaccount.com")


def _options(node: Node, *, is_queued: bool) -> CreateOptions:
    """Return the options of the new TPU; a queued resource becomes a flex-start request."""
    same = clone_options(node)
    flex = is_queued and not node.spot and not node.reserved
    ttl_s = same.ttl_s or (float(flex_limits().max_run_s) if flex and not same.max_usd else None)
    return replace(
        same,
        name=f"{node.name[:59]}-gce",
        provider=GCE,
        runtime_version=None,
        network=_unless_default(same.network),
        subnetwork=_unless_default(same.subnetwork),
        service_account=_unless_default(same.service_account),
        queued=False,
        reserved=False,
        reservation=_NO_RESERVATION if node.reserved else None,
        flex=flex,
        ttl_s=ttl_s,
        metadata={key: same.metadata[key] for key in sorted(same.metadata) if key != "ssh-keys"},
    )


def _unless_default(name: str | None) -> str | None:
    """A node names the defaults too, and the subnetwork of its own region."""
    return None if name and name.endswith(_DEFAULTS) else name


def _command(options: CreateOptions, place: str) -> Iterator[str]:
    yield from ("tpuctl", "create", options.name, "--provider", GCE)
    yield from ("--accelerator-type", options.accelerator_type, "--zone", place)
    given: dict[str, object] = {
        "--spot": options.spot,
        "--flex": options.flex,
        "--reservation": options.reservation,
        "--ttl": options.ttl_s and f"{options.ttl_s:g}s",
        "--max-usd": options.max_usd and f"{options.max_usd:g}",
        "--network": options.network,
        "--subnetwork": options.subnetwork,
        "--internal-ip": options.internal_ip,
        "--service-account": options.service_account,
        "--startup-script": options.startup_script and "FILE",
    }
    for flag, value in given.items():
        if value:
            yield from (flag,) if value is True else (flag, str(value))
    for key, value in options.labels.items():
        yield from ("--label", f"{key}={value}")
    for tag in options.tags:
        yield from ("--tag", tag)
    for disk in options.data_disks:
        mode = "read-only" if disk.read_only else "read-write"
        yield from ("--data-disk", f"source={disk.source},mode={mode}")


def _differences(node: Node, options: CreateOptions, place: str) -> Iterator[str]:
    kind = describe_on(GCE, options.accelerator_type)
    hardware = hardware_of(kind.generation)
    form = "one VM" if kind.workers == 1 else f"a group of {kind.workers} VMs with a template and a"
    yield f"It is {form}{'' if kind.workers == 1 else ' workload policy'} ({kind.machine_type})."
    if kind.workers == 1 and hardware and kind.chips in hardware.rarely_granted:
        yield f"{kind.machine_type} is rarely granted."
    yield (
        f"The image is {kind.runtime_version}, not {node.runtime_version or 'a TPU runtime'}: it "
        "has no Docker, no libtpu and no JAX (--setup jax installs it)."
    )
    yield "It uses a different quota: that of compute.googleapis.com, by region."
    yield "Workers know each other by VM names, without addresses; see worker-network-endpoints."
    if options.flex:
        yield "Instead of a queued resource it is a VM that is PENDING until there is capacity."
    if node.reserved:
        yield "The reservation must be named: replace RESERVATION."
    if node.spot:
        yield "A preempted TPU is deleted with its boot disk; it does not stay PREEMPTED."
    if options.ttl_s or options.max_usd:
        yield "The service itself deletes it when its time is over, instead of a guard on the TPU."
    if place == "auto":
        yield f"{node.zone} has no {kind.generation} there: other zones are tried."
