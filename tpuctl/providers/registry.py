"""Which providers there are, and which of them a command asks."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.providers.port import Provider

AUTO = "auto"
"""The name that means: the control plane that has the type, the zone and the quota."""

PROVIDERS = {
    "cloud-tpu": "cloud_tpu.CloudTpu",
    "colab": "colab.provider.Colab",
    "gke": "gke.provider.Gke",
    "hosts": "hosts.Hosts",
    "kaggle": "kaggle.provider.Kaggle",
}
"""The modules and classes of all providers; a class takes a project and `on_warning`."""

_PLANES = ("cloud-tpu",)
"""The control planes of a Google Cloud project: `auto` is one of them."""

OnWarning = Callable[[str], None]


def open_provider(
    name: str, *, project: str | None = None, on_warning: OnWarning = lambda text: None
) -> Provider:
    """Make a provider; sends no request. Raises UsageError for an unknown name."""
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise UsageError(f"Unknown provider {name!r}.", hint=f"Providers are: {known}.")
    module, _, kind = PROVIDERS[name].rpartition(".")
    found = getattr(import_module(f"tpuctl.providers.{module}"), kind)
    return cast(Provider, found(project, on_warning))


def open_to_create(
    name: str | None, tpu: str, *, project: str | None, on_warning: OnWarning
) -> Provider:
    """Return the provider to create a TPU with; raises UsageError where another has its name."""
    chosen = _PLANES[0] if name in (None, AUTO) else str(name)
    owner = _owner(tpu)
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
    on_warning: OnWarning = lambda text: None,
) -> Provider:
    """Return the provider of a TPU: the one given, the one that knows it, else Cloud TPU.

    A zone or a project, where given, mean Google Cloud.
    """
    if provider in (None, AUTO) and not zone and not project and (owner := _owner(tpu)):
        return owner
    chosen = _PLANES[0] if provider in (None, AUTO) else str(provider)
    return open_provider(chosen, project=project, on_warning=on_warning)


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
    return [each for each in found if each.abilities.name in _PLANES or each.why_unusable() is None]


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
        chosen = _PLANES[0] if provider in (None, AUTO) else str(provider)
        return [(open_provider(chosen, project=project, on_warning=on_warning), None)]
    owners: dict[str, tuple[Provider, list[str]]] = {}
    for tpu in names:
        owner = owner_of(tpu, provider=provider, zone=zone, project=project, on_warning=on_warning)
        owners.setdefault(owner.abilities.name, (owner, []))[1].append(tpu)
    return list(owners.values())


def is_plane(provider: Provider) -> bool:
    """Whether it is a control plane of a Google Cloud project."""
    return provider.abilities.name in _PLANES


def _owner(tpu: str) -> Provider | None:
    for name in PROVIDERS:
        if name in _PLANES:
            continue
        provider = open_provider(name)
        if provider.knows(tpu):
            return provider
    return None


def not_found(tpu: str, provider: Provider) -> NotFoundError:
    """Make the error for a name that a provider does not have."""
    return NotFoundError(
        f"There is no TPU {tpu} on {provider.abilities.title}.", hint="tpuctl list"
    )
