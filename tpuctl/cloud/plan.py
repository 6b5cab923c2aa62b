"""Plan a create: derive the request from the type, and reject options that cannot work."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpuctl.cloud import ttl
from tpuctl.cloud.models import (
    LABEL_CREATE_ID,
    LABEL_MAX_USD_CENTS,
    LABEL_TTL_S,
    LABEL_WATCH,
    DataDisk,
    NodeRequest,
    region_of,
    shared,
)
from tpuctl.errors import InvalidArgumentError, InvalidInputError, UsageError
from tpuctl.hardware.compute_engine import (
    CLOUD_TPU,
    GCE,
    describe_on,
    flex_limits,
    hardware_of,
    list_price,
    model_of,
)
from tpuctl.hardware.types import AcceleratorType, load_data
from tpuctl.outcome import Outcome
from tpuctl.units import format_duration

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
# The service takes 64; up to four are ours.
_MAX_LABELS = 60
SHORT_TTL_S = 600
"""A shorter time to live hardly pays: it takes minutes until a TPU is ready."""

_DISK = re.compile(r"projects/[^/,=]+/(zones|regions)/(?P<place>[^/,=]+)/disks/(?P<name>[^/,=]+)")
_RESERVATION = re.compile(r"(projects/[^/\s]+/reservations/)?[a-z][-a-z0-9]*(/\w+/[-a-z0-9]+)*")
_DISK_MODES = {"read-write": False, "read-only": True}

SETUPS = (None, "jax", "torch", "none")
"""The frameworks that can be installed on a new TPU."""

STARTUP_SCRIPT = "startup-script"
"""The metadata key of the script that a VM runs when it starts."""

METADATA_SETUP = "tpuctl-setup"
"""The metadata key of what was installed on a TPU, so that the next one gets it too."""


@dataclass(frozen=True)
class CreateOptions:
    """The options of a create. Without zones, every zone that has the type is considered.

    `watch` is the id of the watch that creates the TPU, written to a label; `metadata` is passed to
    the VMs besides the startup script. `bucket` holds the training data.
    """

    name: str
    accelerator_type: str
    zones: tuple[str, ...] = ()
    spot: bool = False
    reserved: bool = False
    queued: bool = False
    ttl_s: float | None = None
    max_usd: float | None = None
    runtime_version: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ip: bool = False
    service_account: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    startup_script: bytes | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    data_disks: tuple[DataDisk, ...] = ()
    watch: str | None = None
    bucket: str | None = None
    max_units: float | None = None
    provider: str = CLOUD_TPU
    flex: bool = False
    reservation: str | None = None
    setup: str | None = None


@dataclass(frozen=True)
class Offer:
    """One zone to try: its list price, the TPU's time to live there, and our quota of chips.

    `not_tried` is the reason why the zone is skipped.
    """

    zone: str
    usd_per_hour: float | None
    ttl_s: int | None = None
    quota_chips: int | None = None
    not_tried: str | None = None

    @property
    def region(self) -> str:
        """The region of the zone."""
        return region_of(self.zone)


@dataclass(frozen=True, kw_only=True)
class NotedOutcome(Outcome):
    """An outcome whose warnings and reasons are fields, which JSON leaves out."""

    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})
    reasons: tuple[str, ...] = field(default=(), metadata={"internal": True})


@dataclass(frozen=True, kw_only=True)
class CreatePlan(NotedOutcome):
    """The requests to send, zone by zone in this order."""

    name: str
    accelerator_type: str
    generation: str
    chips: int
    workers: int
    topology: str | None
    runtime_version: str
    spot: bool
    reserved: bool
    queued: bool
    flex: bool
    provider: str
    max_usd: float | None
    offers: tuple[Offer, ...]
    prices_as_of: str
    why_provider: str | None = None
    options: CreateOptions = field(metadata={"internal": True})

    def with_warnings(self, *more: str) -> "CreatePlan":
        """Return the same plan with further warnings."""
        return replace(self, warnings=(*self.warnings, *more))

    @property
    def to_try(self) -> tuple[Offer, ...]:
        """The offers that will be requested."""
        return tuple(offer for offer in self.offers if offer.not_tried is None)


def plan_create(options: CreateOptions) -> CreatePlan:
    """Check the options and derive the rest from the type; sends no request.

    Raises UsageError for an unknown type or options that exclude each other, and InvalidInputError
    for a value that cannot work.
    """
    kind = describe_on(options.provider, options.accelerator_type)
    _check_names(options)
    _check_labels(options.labels)
    models = {"--spot": options.spot, "--reserved": options.reserved, "--flex": options.flex,
              "--reservation": options.reservation}  # fmt: skip
    if len(given := [flag for flag, is_given in models.items() if is_given]) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other.", hint="Give one of them.")
    check_words(options.setup, options.reservation)
    version = _runtime_version(kind, options.runtime_version)
    _check_limits(options)
    offers = _offers_in_given_zones(kind, options)
    known = {
        **shared(CreatePlan, options),
        **shared(CreatePlan, kind),
        "runtime_version": version,
        "warnings": (
            *_version_warnings(kind, version),
            *_machine_warnings(kind, options),
            *offer_warnings(kind, offers),
        ),
        "reasons": (
            f"{options.accelerator_type} is {kind.accelerator_type}: {kind.in_words}",
            f"{'image family' if options.provider == GCE else 'runtime version'} {version}, "
            + ("as given" if options.runtime_version else f"the default of {kind.generation}"),
        ),
    }
    return CreatePlan(**known, offers=offers, options=options)


def _offers_in_given_zones(kind: AcceleratorType, options: CreateOptions) -> tuple[Offer, ...]:
    offers = tuple(offer_in(zone, kind, options) for zone in options.zones)
    if offers and all(offer.not_tried for offer in offers):
        if why_disks_elsewhere(offers[0].zone, options.data_disks):
            raise InvalidInputError(
                f"Cannot create {options.name} in {offers[0].zone}: {offers[0].not_tried}.",
                hint="Create it in the zone of the disk.",
            )
        raise InvalidInputError(
            f"Cannot keep a budget: {offers[0].not_tried}.",
            hint="Limit its time to live with --ttl instead.",
        )
    return offers


def offer_in(zone: str, kind: AcceleratorType, options: CreateOptions) -> Offer:
    """Price the type in a zone, and turn a budget into a time to live there.

    A zone is skipped where a budget cannot be kept because no price is known, and where the data
    disks are elsewhere.
    """
    price = list_price(options.provider, kind.accelerator_type, zone, model_of(options))
    if reason := why_disks_elsewhere(zone, options.data_disks):
        return Offer(zone, price, not_tried=reason)
    limits = [options.ttl_s] if options.ttl_s is not None else []
    if options.max_usd is not None:
        if not price:
            reason = f"the price of {kind.accelerator_type} in {zone} is unknown"
            return Offer(zone, price, not_tried=f"{reason}, and --max-usd needs it")
        limits.append(options.max_usd / price * 3600)
    return Offer(zone, price, ttl_s=max(1, int(min(limits))) if limits else None)


def parse_data_disk(text: str) -> DataDisk:
    """Parse `source=PATH[,mode=read-only]`, gcloud's syntax; raises InvalidArgumentError."""
    words = dict(word.partition("=")[::2] for word in text.split(","))
    source, mode = words.pop("source", ""), words.pop("mode", "read-write")
    if words or mode not in _DISK_MODES or not _DISK.fullmatch(source):
        raise InvalidArgumentError(
            f"{text!r} is not a valid data disk.",
            hint="--data-disk source=projects/P/zones/Z/disks/NAME,mode=read-only (or read-write)",
        )
    return DataDisk(source, _DISK_MODES[mode])


def why_disks_elsewhere(zone: str, disks: Sequence[DataDisk]) -> str | None:
    """Say which disk cannot be attached to a TPU in a zone; None when all of them can."""
    for disk in disks:
        read = _DISK.search(disk.source)
        if read and read["place"] not in (zone, region_of(zone)):
            return f"its data disk {read['name']} is in {read['place']}"
    return None


def request_for(plan: CreatePlan, offer: Offer, *, project: str, create_id: str) -> NodeRequest:
    """Build the request for one zone, with its limits as labels and a TTL guard on the VM.

    On Compute Engine the service itself keeps the limit.
    """
    options = plan.options
    limits: dict[str, str] = {}
    if offer.ttl_s is not None:
        limits[LABEL_TTL_S] = str(offer.ttl_s)
    if plan.max_usd is not None:
        limits[LABEL_MAX_USD_CENTS] = str(round(plan.max_usd * 100))
    watched = {LABEL_WATCH: options.watch} if options.watch else {}
    installed = {METADATA_SETUP: options.setup} if options.setup else {}
    is_guarded = bool(limits) and plan.provider != GCE
    script = ttl.startup_script(
        ttl.GuardTarget(project, offer.zone, plan.name, create_id) if is_guarded else None,
        options.startup_script,
    )
    known = {
        **shared(NodeRequest, options),
        **shared(NodeRequest, plan),
        "labels": {**options.labels, **limits, **watched, LABEL_CREATE_ID: create_id},
        "metadata": {
            **options.metadata,
            **installed,
            **({STARTUP_SCRIPT: script} if script else {}),
        },
    }
    return NodeRequest(
        **known,
        zone=offer.zone,
        create_id=create_id,
        external_ips=not options.internal_ip,
        max_run_s=offer.ttl_s,
    )


def check_name(name: str) -> None:
    """Raise InvalidArgumentError for a name that no TPU can have."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not a valid TPU name.",
            hint="Use at most 63 lower-case letters, digits and '-'; start with a letter, do not "
            "end with '-'.",
        )


def check_words(setup: str | None, reservation: str | None) -> None:
    """Raise UsageError for a setup or the name of a reservation that cannot be."""
    if setup not in SETUPS:
        raise UsageError(f"Cannot set up {setup!r}.", hint="Set up jax, torch or none.")
    if reservation is not None and not _RESERVATION.fullmatch(reservation):
        raise InvalidArgumentError(
            f"{reservation!r} is not a valid reservation.",
            hint="Give its name, or projects/OWNER/reservations/NAME for a shared one.",
        )


def _check_names(options: CreateOptions) -> None:
    check_name(options.name)
    for zone in options.zones:
        if not _NAME.fullmatch(zone):
            raise InvalidArgumentError(
                f"{zone!r} is not a valid zone.", hint="Write a zone like us-central1-a."
            )
    if len(set(options.zones)) < len(options.zones):
        raise UsageError(f"The same zone is given twice: {', '.join(options.zones)}.")


def _check_labels(wanted: Mapping[str, str]) -> None:
    if len(wanted) > _MAX_LABELS:
        raise InvalidArgumentError(f"Too many labels: {len(wanted)}; the limit is {_MAX_LABELS}.")
    for key, value in wanted.items():
        if key.startswith("tpuctl-"):
            raise InvalidArgumentError(f"The label {key!r} is reserved: tpuctl- labels are ours.")
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidArgumentError(
                f"{key}={value} is not a valid label.",
                hint="Use at most 63 lower-case letters, digits, '-' and '_' in a key and in a "
                "value; start a key with a letter.",
            )


def _check_limits(options: CreateOptions) -> None:
    for name, limit in (("--ttl", options.ttl_s), ("--max-usd", options.max_usd)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InvalidArgumentError(
                f"{name} must be a finite number greater than 0.",
                hint="For example --ttl 4h or --max-usd 20; leave both out for no limit.",
            )
    if options.ttl_s is not None and options.ttl_s < 1:
        raise InvalidArgumentError("--ttl must be at least 1s.")
    if not options.flex:
        return
    limits = flex_limits()
    wanted = options.ttl_s or (limits.min_run_s if options.max_usd else 0)
    if not limits.min_run_s <= wanted <= limits.max_run_s:
        raise InvalidArgumentError(
            f"--flex needs a time to live of {format_duration(limits.min_run_s)} to "
            f"{format_duration(limits.max_run_s)}.",
            hint="For example: --flex --ttl 8h",
        )


def _runtime_version(kind: AcceleratorType, wanted: str | None) -> str:
    """Choose the generation's default version, or check the given one."""
    if wanted is None and kind.runtime_version is None:
        raise InvalidArgumentError(
            f"The Cloud TPU API does not offer {kind.generation}: "
            f"{kind.note or 'no runtime version is known'}",
            hint=f"Compute Engine does: --provider {GCE}"
            if hardware_of(kind.generation)
            else "To see the types that it offers: tpuctl types",
        )
    if wanted is None:
        return str(kind.runtime_version)
    families = load_data("families")["families"]
    owners = [each["generation"] for each in families if each["runtime_version"] == wanted]
    if owners and kind.generation not in owners:
        raise InvalidArgumentError(
            f"{wanted} is the runtime version of {', '.join(owners)}, not of {kind.generation}.",
            hint=f"Leave out --runtime-version to use {kind.runtime_version}.",
        )
    return wanted


def offer_warnings(kind: AcceleratorType, offers: Sequence[Offer]) -> tuple[str, ...]:
    """Warn of unknown prices and of a time to live that is too short to be useful."""
    notes = []
    if unknown := [offer.zone for offer in offers if offer.usd_per_hour is None]:
        notes.append(f"The price of {kind.accelerator_type} in {', '.join(unknown)} is unknown.")
    lives = [offer.ttl_s for offer in offers if offer.ttl_s is not None]
    if lives and min(lives) < SHORT_TTL_S:
        notes.append(
            f"The TPU is deleted {format_duration(min(lives))} after the request, and it takes "
            "minutes until it is ready."
        )
    return tuple(notes)


def _machine_warnings(kind: AcceleratorType, options: CreateOptions) -> tuple[str, ...]:
    """Say what is known about getting such a machine on Compute Engine."""
    hardware = hardware_of(kind.generation)
    if options.provider != GCE or hardware is None:
        return ()
    notes = [hardware.note] if hardware.note else []
    if kind.workers == 1 and kind.chips in hardware.rarely_granted:
        notes.append(
            f"One machine with {kind.chips} chips ({kind.machine_type}) is rarely granted, and "
            "tpuctl cannot make it of two machines."
        )
    if options.flex and kind.workers > 1:
        notes.append("A waiting slice does not expire by itself: tpuctl cancels it.")
    return tuple(notes)


def _version_warnings(kind: AcceleratorType, version: str) -> tuple[str, ...]:
    if version.startswith("tpu-vm-tf-") and kind.workers > 1 and "-pod" not in version:
        return (
            f"{version} is for a single worker, but this TPU has {kind.workers}: use {version}-pod "
            "(--runtime-version).",
        )
    return ()
