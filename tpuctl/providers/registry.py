"""Which providers there are, and which of them a command asks."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib import import_module
from typing import cast

from tpuctl.errors import (
    MissingExtraError,
    NotFoundError,
    NotLoggedInError,
    TpuctlError,
    TryAgainError,
    UsageError,
    did_you_mean,
)
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE
from tpuctl.providers.port import Provider
from tpuctl.settings import load_settings

AUTO = "auto"
"""The name that means: the control plane that has the type, the zone and the quota."""

PROVIDERS = {
    CLOUD_TPU: "cloud_tpu.CloudTpu",
    GCE: "cloud_tpu.ComputeEngine",
    "colab": "colab.provider.Colab",
    "gke": "gke.provider.Gke",
    "hosts": "hosts.Hosts",
    "kaggle": "kaggle.provider.Kaggle",
}
"""The modules and classes of all providers; a class takes a project and `on_warning`."""

PLANES = (CLOUD_TPU, GCE)
"""The control planes of a Google Cloud project: `auto` is one of them."""

OnWarning = Callable[[str], None]


def open_provider(
    name: str, *, project: str | None = None, on_warning: OnWarning = lambda text: None
) -> Provider:
    """Make a provider; sends no request. Raises UsageError for an unknown name."""
    if name not in PROVIDERS:
        known, near = ", ".join(PROVIDERS), did_you_mean(name, PROVIDERS)
        raise UsageError(f"Unknown provider {name!r}.", hint=f"{near}Providers are: {known}.")
    module, _, kind = PROVIDERS[name].rpartition(".")
    found = getattr(import_module(f"tpuctl.providers.{module}"), kind)
    return cast(Provider, found(project, on_warning))


def open_to_create(
    chosen: str, tpu: str, *, project: str | None, on_warning: OnWarning
) -> Provider:
    """Return the provider to create a TPU with; raises UsageError where another has its name."""
    owner = hosted_owner(tpu)
    others = {*set_planes()} - {chosen} if chosen in PLANES else set()
    if not owner and (there := _planes_of_ours(tpu, None, project, others)):
        owner = open_provider(min(there))
    if owner and owner.abilities.name != chosen:
        raise UsageError(
            f"{owner.abilities.title} has a TPU {tpu}, which later commands would mean.",
            hint=f"Choose another name, or first: tpuctl delete {tpu}",
        )
    return open_provider(chosen, project=project, on_warning=on_warning)


def owner_of(
    tpu: str,
    *,
    provider: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    deletes: bool = False,
    on_warning: OnWarning = lambda text: None,
) -> Provider:
    """Return the provider of a TPU: the one given, the one that knows it, or the plane that has it.

    A zone or a project, where given, mean Google Cloud. What the journal knows counts while that
    TPU is there; for other TPUs the control planes are asked.
    """
    if provider in (None, AUTO) and not zone and not project and (owner := hosted_owner(tpu)):
        return owner
    if provider not in (None, AUTO):
        return open_provider(str(provider), project=project, on_warning=on_warning)
    from tpuctl.cloud.connect import chosen_zone, zone_to_delete_in

    known = plane_in_journal(tpu, project)
    where = zone_to_delete_in(zone, everything=False) if deletes else chosen_zone(zone)
    chosen = _plane_of(tpu, where, project, known)
    plane = open_provider(chosen, project=project, on_warning=on_warning)
    return plane if known or zone or project else _deleted_earlier(tpu, plane)


def in_use(
    name: str | None = None,
    *,
    project: str | None = None,
    on_warning: OnWarning = lambda text: None,
) -> list[Provider]:
    """Return the provider of that name, or all that this user has access to, planes first.

    A plane is always among them, because only a request tells whether it can be used.
    """
    if name not in (None, AUTO):
        return [open_provider(str(name), project=project, on_warning=on_warning)]
    found = [open_provider(each, project=project, on_warning=on_warning) for each in PROVIDERS]
    planes = set_planes()
    return [
        each
        for each in found
        if each.abilities.name in planes or (not is_plane(each) and each.why_unusable() is None)
    ]


def open_to_delete(
    names: Sequence[str],
    *,
    provider: str | None,
    zone: str | None,
    project: str | None,
    on_warning: OnWarning,
) -> list[tuple[Provider, Sequence[str] | None]]:
    """Return the providers of some TPUs with the names of each; without names, all of one."""
    if not names:
        chosen = set_planes() if provider in (None, AUTO) else (str(provider),)
        every = (open_provider(each, project=project, on_warning=on_warning) for each in chosen)
        return [(each, None) for each in every]
    owners: dict[str, tuple[Provider, list[str]]] = {}
    for tpu in names:
        owner = owner_of(
            tpu, provider=provider, zone=zone, project=project, deletes=True, on_warning=on_warning
        )
        owners.setdefault(owner.abilities.name, (owner, []))[1].append(tpu)
    return list(owners.values())


def is_plane(provider: Provider) -> bool:
    """Whether it is a control plane of a Google Cloud project."""
    return provider.abilities.name in PLANES


def set_planes() -> tuple[str, ...]:
    """Return the control planes that may be asked: not Google's beside an emulator's."""
    from tpuctl.cloud.connect import plane_is_set  # only some commands need it

    return tuple(plane for plane in PLANES if plane_is_set(plane)) or PLANES[:1]


def plane_is_used(plane: str) -> bool:
    """Whether the settings choose a control plane, or the journal has TPUs on it."""
    from tpuctl.cloud.journal import Journal, plane_at

    is_local = bool(load_settings()["gce_endpoint" if plane == GCE else "tpu_endpoint"])
    places = (entry.endpoint for entry in Journal().named(None, None))
    used = {plane_at(each) for each in places if ("googleapis.com" in each) != is_local}
    return plane in PLANES and (plane in used or plane == chosen_plane())


def plane_in_journal(tpu: str, project: str | None) -> str | None:
    """Return the control plane on which this machine has created a TPU; None if it is unknown."""
    from tpuctl.cloud.journal import Journal, plane_at

    planes = {plane_at(entry.endpoint) for entry in Journal().named(tpu, project)} & {*set_planes()}
    return planes.pop() if len(planes) == 1 else None


def chosen_plane() -> str | None:
    """Return the control plane that the settings choose; None leaves it to `auto`."""
    chosen = load_settings()["provider"]
    if chosen not in (None, AUTO, *PLANES):
        known = ", ".join((AUTO, *PLANES))
        raise UsageError(f"Unknown control plane {chosen!r}.", hint=f"TPUCTL_PROVIDER: {known}.")
    return None if chosen == AUTO else chosen


def _plane_of(tpu: str, where: str | None, project: str | None, known: str | None) -> str:
    """Return the control plane that has a TPU; where none has it, the one that had it.

    Raises UsageError where it is not clear which TPU is meant.
    """
    from tpuctl.cloud.connect import connect
    from tpuctl.cloud.lookup import Resource, attempt, attempt_all, find

    planes, chosen = set_planes(), chosen_plane()
    if len(planes) == 1:
        return known or chosen or planes[0]
    there = _planes_of_ours(tpu, where, project, planes)
    if len(there) == 1 and chosen in (None, *there):
        return there.pop()

    def look(plane: str) -> Resource:
        return find(connect(project, plane=plane), tpu, where)

    if chosen and not isinstance(attempt(partial(look, chosen)), NotFoundError):
        return chosen
    found = attempt_all([partial(look, plane) for plane in planes], at_once=2)
    answers = dict(zip(planes, found, strict=True))
    # UsageError: several zones have it.
    having = [p for p in planes if isinstance(answers[p], Resource | UsageError)]
    if having and (chosen or len(having) > 1):
        titles = [open_provider(plane).abilities.title for plane in having]
        text = f"Both {titles[0]} and {titles[-1]} have a TPU {tpu}."
        if chosen:
            source = load_settings().source_of("provider")
            text = f"{titles[0]} has a TPU {tpu}, but {source} chooses {chosen}."
        before = " or ".join(f"TPUCTL_PROVIDER={plane}" for plane in having)
        raise UsageError(text, hint=f"Put {before} before the same command.")
    for error in answers.values():
        if having and isinstance(error, TryAgainError):
            raise error  # It may have one, too.
    # What could not be asked says more than that the other one does not have it.
    unsure = (p for p in planes if not isinstance(answers[p], NotFoundError))
    return next(iter(having), known or chosen or next(unsure, planes[0]))


def _planes_of_ours(
    tpu: str, where: str | None, project: str | None, planes: Collection[str]
) -> set[str]:
    """Return which of the control planes still have what this machine created under a name."""
    from tpuctl.cloud.connect import connect
    from tpuctl.cloud.journal import Journal, JournalEntry, plane_at
    from tpuctl.cloud.lookup import attempt
    from tpuctl.cloud.requests import is_of, read_resource

    def is_there(entry: JournalEntry) -> bool:
        plane = plane_at(entry.endpoint)
        found = attempt(lambda: read_resource(connect(project, plane=plane), entry))
        return found is not None and (isinstance(found, TpuctlError) or is_of(found, entry))

    entries = [each for each in Journal().named(tpu, project) if where in (None, each.zone)]
    usable = [each for each in entries if plane_at(each.endpoint) in planes]
    return {plane_at(each.endpoint) for each in usable if is_there(each)}


def hosted_owner(tpu: str) -> Provider | None:
    """Return the provider other than Google Cloud that knows a name from its own records."""
    for name in PROVIDERS:
        if name in PLANES:
            continue
        provider = open_provider(name)
        if provider.knows(tpu):
            return provider
    return None


def _deleted_earlier(tpu: str, plane: Provider) -> Provider:
    """Return the provider that has deleted a name which its plane does not have; else the plane."""
    from tpuctl.cloud.lookup import attempt

    others = (open_provider(name) for name in PROVIDERS if name not in PLANES)
    earlier = next((each for each in others if each.was_deleted(tpu)), None)
    absent = (NotFoundError, NotLoggedInError, MissingExtraError)
    if earlier and isinstance(attempt(partial(plane.get, tpu, None)), absent):
        return earlier
    return plane
