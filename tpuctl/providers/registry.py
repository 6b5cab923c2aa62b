"""The providers, and which ones a command uses."""

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

CONTROL_PLANES = (CLOUD_TPU, GCE)
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
    others = {*configured_control_planes()} - {chosen} if chosen in CONTROL_PLANES else set()
    if not owner and (there := _control_planes_with(tpu, None, project, others)):
        owner = open_provider(min(there))
    if owner and owner.abilities.name != chosen:
        raise UsageError(
            f"{owner.abilities.title} has a TPU {tpu}, which later commands would use.",
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
    """Return the provider of a TPU: the one given, the one that recorded it, or a control plane.

    A zone or a project, where given, mean Google Cloud. What the journal knows counts while that
    TPU is there; for other TPUs the control planes are asked.
    """
    if provider in (None, AUTO) and not zone and not project and (owner := hosted_owner(tpu)):
        return owner
    if provider not in (None, AUTO):
        return open_provider(str(provider), project=project, on_warning=on_warning)
    from tpuctl.cloud.connect import chosen_zone, zone_to_delete_in

    known = control_plane_in_journal(tpu, project)
    where = zone_to_delete_in(zone, everything=False) if deletes else chosen_zone(zone)
    chosen = _control_plane_of(tpu, where, project, known)
    control_plane = open_provider(chosen, project=project, on_warning=on_warning)
    return control_plane if known or zone or project else _deleted_earlier(tpu, control_plane)


def in_use(
    name: str | None = None,
    *,
    project: str | None = None,
    on_warning: OnWarning = lambda text: None,
) -> list[Provider]:
    """Return the provider of that name, or all that this user has access to, control planes first.

    Control planes are always included, because only a request tells whether it can be used.
    """
    if name not in (None, AUTO):
        return [open_provider(str(name), project=project, on_warning=on_warning)]
    found = [open_provider(each, project=project, on_warning=on_warning) for each in PROVIDERS]
    control_planes = configured_control_planes()
    return [
        each
        for each in found
        if each.abilities.name in control_planes
        or (not is_control_plane(each) and each.why_unusable() is None)
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
        chosen = configured_control_planes() if provider in (None, AUTO) else (str(provider),)
        every = (open_provider(each, project=project, on_warning=on_warning) for each in chosen)
        return [(each, None) for each in every]
    owners: dict[str, tuple[Provider, list[str]]] = {}
    for tpu in names:
        owner = owner_of(
            tpu, provider=provider, zone=zone, project=project, deletes=True, on_warning=on_warning
        )
        owners.setdefault(owner.abilities.name, (owner, []))[1].append(tpu)
    return list(owners.values())


def is_control_plane(provider: Provider) -> bool:
    """Whether it is a control plane of a Google Cloud project."""
    return provider.abilities.name in CONTROL_PLANES


def configured_control_planes() -> tuple[str, ...]:
    """Return the control planes that may be asked: not Google's beside an emulator's."""
    from tpuctl.cloud.connect import control_plane_is_set  # only some commands need it

    return (
        tuple(
            control_plane for control_plane in CONTROL_PLANES if control_plane_is_set(control_plane)
        )
        or CONTROL_PLANES[:1]
    )


def control_plane_is_used(control_plane: str) -> bool:
    """Whether the settings choose a control plane, or the journal has TPUs on it."""
    from tpuctl.cloud.journal import Journal, control_plane_at

    is_local = bool(load_settings()["gce_endpoint" if control_plane == GCE else "tpu_endpoint"])
    places = (entry.endpoint for entry in Journal().named(None, None))
    used = {control_plane_at(each) for each in places if ("googleapis.com" in each) != is_local}
    return control_plane in CONTROL_PLANES and (
        control_plane in used or control_plane == chosen_control_plane()
    )


def control_plane_in_journal(tpu: str, project: str | None) -> str | None:
    """Return the control plane on which this machine has created a TPU; None if it is unknown."""
    from tpuctl.cloud.journal import Journal, control_plane_at

    control_planes = {
        control_plane_at(entry.endpoint) for entry in Journal().named(tpu, project)
    } & {*configured_control_planes()}
    return control_planes.pop() if len(control_planes) == 1 else None


def chosen_control_plane() -> str | None:
    """Return the control plane that the settings choose; None leaves it to `auto`."""
    chosen = load_settings()["provider"]
    if chosen not in (None, AUTO, *CONTROL_PLANES):
        known = ", ".join((AUTO, *CONTROL_PLANES))
        raise UsageError(f"Unknown control plane {chosen!r}.", hint=f"TPUCTL_PROVIDER: {known}.")
    return None if chosen == AUTO else chosen


def _control_plane_of(tpu: str, where: str | None, project: str | None, known: str | None) -> str:
    """Return the control plane that has a TPU; where none has it, the one that had it.

    Raises UsageError where it is not clear which TPU is meant.
    """
    from tpuctl.cloud.connect import connect
    from tpuctl.cloud.lookup import Resource, attempt, attempt_all, find

    control_planes, chosen = configured_control_planes(), chosen_control_plane()
    if len(control_planes) == 1:
        return known or chosen or control_planes[0]
    there = _control_planes_with(tpu, where, project, control_planes)
    if len(there) == 1 and chosen in (None, *there):
        return there.pop()

    def check(control_plane: str) -> Resource:
        return find(connect(project, control_plane=control_plane), tpu, where)

    if chosen and not isinstance(attempt(partial(check, chosen)), NotFoundError):
        return chosen
    found = attempt_all(
        [partial(check, control_plane) for control_plane in control_planes], at_once=2
    )
    answers = dict(zip(control_planes, found, strict=True))
    # UsageError: several zones have it.
    having = [p for p in control_planes if isinstance(answers[p], Resource | UsageError)]
    if having and (chosen or len(having) > 1):
        titles = [open_provider(control_plane).abilities.title for control_plane in having]
        text = f"Both {titles[0]} and {titles[-1]} have a TPU {tpu}."
        if chosen:
            source = load_settings().source_of("provider")
            text = f"{titles[0]} has a TPU {tpu}, but {source} chooses {chosen}."
        before = " or ".join(f"TPUCTL_PROVIDER={control_plane}" for control_plane in having)
        raise UsageError(text, hint=f"Put {before} before the same command.")
    for error in answers.values():
        if having and isinstance(error, TryAgainError):
            raise error  # It may have one, too.
    # What could not be asked says more than that the other one does not have it.
    unsure = (p for p in control_planes if not isinstance(answers[p], NotFoundError))
    return next(iter(having), known or chosen or next(unsure, control_planes[0]))


def _control_planes_with(
    tpu: str, where: str | None, project: str | None, control_planes: Collection[str]
) -> set[str]:
    """Return which of the control planes still have what this machine created under a name."""
    from tpuctl.cloud.connect import connect
    from tpuctl.cloud.journal import Journal, JournalEntry, control_plane_at
    from tpuctl.cloud.lookup import attempt
    from tpuctl.cloud.requests import is_of, read_resource

    def is_there(entry: JournalEntry) -> bool:
        control_plane = control_plane_at(entry.endpoint)
        found = attempt(lambda: read_resource(connect(project, control_plane=control_plane), entry))
        return found is not None and (isinstance(found, TpuctlError) or is_of(found, entry))

    entries = [each for each in Journal().named(tpu, project) if where in (None, each.zone)]
    usable = [each for each in entries if control_plane_at(each.endpoint) in control_planes]
    return {control_plane_at(each.endpoint) for each in usable if is_there(each)}


def hosted_owner(tpu: str) -> Provider | None:
    """Return the provider other than Google Cloud that knows a name from its own records."""
    for name in PROVIDERS:
        if name in CONTROL_PLANES:
            continue
        provider = open_provider(name)
        if provider.is_recorded(tpu):
            return provider
    return None


def _deleted_earlier(tpu: str, control_plane: Provider) -> Provider:
    """Return the provider that has deleted a name; else the given control plane."""
    from tpuctl.cloud.lookup import attempt

    others = (open_provider(name) for name in PROVIDERS if name not in CONTROL_PLANES)
    earlier = next((each for each in others if each.was_deleted(tpu)), None)
    absent = (NotFoundError, NotLoggedInError, MissingExtraError)
    if earlier and isinstance(attempt(partial(control_plane.get, tpu, None)), absent):
        return earlier
    return control_plane
