"""What to ask for: derived from the type, and refused here where the service could only refuse."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpuctl.cloud import models, ttl
from tpuctl.cloud.models import DataDisk, NodeRequest
from tpuctl.cloud.placement import region_of, why_not_in
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.hardware.types import AcceleratorType, describe, load_data, usd_per_hour
from tpuctl.outcome import Outcome
from tpuctl.units import format_duration

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_MOST_LABELS = 60  # 64 for the service; four may be ours
_SHORT_TTL_S = 600

STARTUP_SCRIPT = "startup-script"
"""The metadata that a VM runs when it starts."""


@dataclass(frozen=True)
class CreateOptions:
    """What somebody wants. No zones means: find one.

    `watch` is the id of the watch that makes it, which it carries as a label; `metadata` is what
    its VMs are told besides the startup script.
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


@dataclass(frozen=True)
class Offer:
    """A zone to try: its list price, how long the TPU may live there, and our quota of chips.

    `not_tried` says why it is no use to ask there.
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


@dataclass(frozen=True)
class CreatePlan(Outcome):
    """What will be asked for, zone by zone in this order."""

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
    max_usd: float | None
    offers: tuple[Offer, ...]
    prices_as_of: str
    options: CreateOptions = field(metadata={"internal": True})
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})
    because: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be known before it is paid for."""
        return self.notes

    def warned(self, *notes: str) -> "CreatePlan":
        """The same plan with more that should be known before it is paid for."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the derived values come from."""
        return self.because

    @property
    def to_try(self) -> tuple[Offer, ...]:
        """The offers that it is some use to ask for."""
        return tuple(offer for offer in self.offers if offer.not_tried is None)


def plan_create(options: CreateOptions) -> CreatePlan:
    """Derive everything from the type; no request is made.

    Raises UsageError for a type that does not exist or options that exclude each other, and
    InvalidInputError for a value that cannot work.
    """
    kind = describe(options.accelerator_type)
    _check_names(options)
    _check_labels(options.labels)
    if options.spot and options.reserved:
        raise UsageError("--spot and --reserved exclude each other.", hint="Give one of them.")
    version = _runtime_version(kind, options.runtime_version)
    _check_limits(options)
    offers = _offers_in_given_zones(kind, options)
    return CreatePlan(
        name=options.name,
        accelerator_type=kind.accelerator_type,
        generation=kind.generation,
        chips=kind.chips,
        workers=kind.workers,
        topology=kind.topology,
        runtime_version=version,
        spot=options.spot,
        reserved=options.reserved,
        queued=options.queued,
        max_usd=options.max_usd,
        offers=offers,
        prices_as_of=kind.prices_as_of,
        options=options,
        notes=(*_version_notes(kind, version), *offer_notes(kind, offers)),
        because=(
            f"{options.accelerator_type} is {kind.accelerator_type}: {kind.in_words}",
            f"runtime version {version}, "
            + ("as you said" if options.runtime_version else f"because it is a {kind.generation}"),
        ),
    )


def _offers_in_given_zones(kind: AcceleratorType, options: CreateOptions) -> tuple[Offer, ...]:
    offers = tuple(offer_in(zone, kind, options) for zone in options.zones)
    if offers and all(offer.not_tried for offer in offers):
        if why_not_in(offers[0].zone, options.data_disks):
            raise InvalidInputError(
                f"{options.name} cannot be made in {offers[0].zone}: {offers[0].not_tried}.",
                hint="Ask for it in the zone of the disk.",
            )
        raise InvalidInputError(
            f"A budget cannot be kept: {offers[0].not_tried}.",
            hint="Limit its life with --ttl instead.",
        )
    return offers


def offer_in(zone: str, kind: AcceleratorType, options: CreateOptions) -> Offer:
    """Price the type in a zone; a budget becomes a life time there.

    Without a known price a budget cannot be kept, and the zone is not tried; nor is one that the
    data disks are not in.
    """
    price = usd_per_hour(kind.accelerator_type, zone, spot=options.spot)
    if reason := why_not_in(zone, options.data_disks):
        return Offer(zone, price, not_tried=reason)
    limits = [options.ttl_s] if options.ttl_s is not None else []
    if options.max_usd is not None:
        if not price:
            reason = (
                f"no price of {kind.accelerator_type} in {zone} is known, and --max-usd needs one"
            )
            return Offer(zone, price, not_tried=reason)
        limits.append(options.max_usd / price * 3600)
    return Offer(zone, price, ttl_s=max(1, int(min(limits))) if limits else None)


def request_for(plan: CreatePlan, offer: Offer, *, project: str, create_id: str) -> NodeRequest:
    """Write the request for one zone, with its limits as labels and a guard on the VM."""
    options = plan.options
    limits: dict[str, str] = {}
    if offer.ttl_s is not None:
        limits[models.TTL_S] = str(offer.ttl_s)
    if plan.max_usd is not None:
        limits[models.MAX_USD_CENTS] = str(round(plan.max_usd * 100))
    watched = {models.WATCH: options.watch} if options.watch else {}
    script = ttl.startup_script(
        ttl.Guarded(project, offer.zone, plan.name, create_id) if limits else None,
        options.startup_script,
    )
    return NodeRequest(
        name=plan.name,
        zone=offer.zone,
        accelerator_type=plan.accelerator_type,
        runtime_version=plan.runtime_version,
        create_id=create_id,
        spot=plan.spot,
        reserved=plan.reserved,
        network=options.network,
        subnetwork=options.subnetwork,
        external_ips=not options.internal_ip,
        service_account=options.service_account,
        labels={**options.labels, **limits, **watched, models.CREATE_ID: create_id},
        metadata={**options.metadata, **({STARTUP_SCRIPT: script} if script else {})},
        tags=options.tags,
        data_disks=options.data_disks,
    )


def _check_names(options: CreateOptions) -> None:
    if not _NAME.fullmatch(options.name):
        raise InvalidInputError(
            f"{options.name!r} cannot be the name of a TPU.",
            hint="Lower-case letters, digits and '-', a letter first, no '-' last, 63 at most.",
        )
    for zone in options.zones:
        if not _NAME.fullmatch(zone):
            raise InvalidInputError(
                f"{zone!r} is no zone.", hint="A zone is written like us-central1-a."
            )
    if len(set(options.zones)) < len(options.zones):
        raise UsageError(f"A zone is there twice: {', '.join(options.zones)}.")


def _check_labels(wanted: Mapping[str, str]) -> None:
    if len(wanted) > _MOST_LABELS:
        raise InvalidInputError(f"{len(wanted)} labels are too many; at most {_MOST_LABELS} fit.")
    for key, value in wanted.items():
        if key.startswith("tpuctl-"):
            raise InvalidInputError(f"The label {key!r} is not free: tpuctl- labels are ours.")
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidInputError(
                f"{key}={value} cannot be a label.",
                hint="Lower-case letters, digits, '-' and '_'; a letter first; 63 at most.",
            )


def _check_limits(options: CreateOptions) -> None:
    for name, limit in (("--ttl", options.ttl_s), ("--max-usd", options.max_usd)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InvalidInputError(
                f"{name} must be more than nothing, and finite.",
                hint="Like --ttl 4h or --max-usd 20; leave both out for no limit.",
            )
    if options.ttl_s is not None and options.ttl_s < 1:
        raise InvalidInputError("--ttl must be at least a second.")


def _runtime_version(kind: AcceleratorType, wanted: str | None) -> str:
    """Take the version of the generation, or what was asked for unless it is of another."""
    if wanted is None and kind.runtime_version is None:
        raise InvalidInputError(
            f"The Cloud TPU API has no {kind.generation}: {kind.note or 'it is newer than that'}",
            hint="Types that it has: tpuctl types",
        )
    if wanted is None:
        return str(kind.runtime_version)
    owners = [
        family["generation"]
        for family in load_data("families")["families"]
        if family["runtime_version"] == wanted
    ]
    if owners and kind.generation not in owners:
        raise InvalidInputError(
            f"{wanted} is the runtime version of {', '.join(owners)}, not of {kind.generation}.",
            hint=f"Leave it out: tpuctl takes {kind.runtime_version}.",
        )
    return wanted


def offer_notes(kind: AcceleratorType, offers: Sequence[Offer]) -> tuple[str, ...]:
    """What should be known of the prices and limits in some zones before they are paid for."""
    notes = []
    if unknown := [offer.zone for offer in offers if offer.usd_per_hour is None]:
        notes.append(f"No price of {kind.accelerator_type} in {', '.join(unknown)} is known.")
    lives = [offer.ttl_s for offer in offers if offer.ttl_s is not None]
    if lives and min(lives) < _SHORT_TTL_S:
        notes.append(
            f"It must be gone {format_duration(min(lives))} after it was asked for, and minutes of "
            "that pass before it is ready."
        )
    return tuple(notes)


def _version_notes(kind: AcceleratorType, version: str) -> tuple[str, ...]:
    if version.startswith("tpu-vm-tf-") and kind.workers > 1 and "-pod" not in version:
        many = f"and this TPU has {kind.workers}"
        return (f"{version} is for one worker, {many}: see {version}-pod.",)
    return ()
