"""Wait until a TPU is ready on all of its workers, or until it is gone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import Resource, attempt, find, identity, read_optional
from tpuctl.cloud.models import DEAD_NODE_STATES, Departure, Node, QueuedResource
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import Tpu, describe_node
from tpuctl.errors import NotFoundError, WrongStateError
from tpuctl.outcome import Outcome
from tpuctl.progress import OnProgress, Progress, silent

_NEVER_READY = DEAD_NODE_STATES | {"DELETING", "STOPPING", "STOPPED", "HIDING", "HIDDEN"}


@dataclass(frozen=True)
class WaitResult(Outcome):
    """The state that was reached; `tpu` is None if it is gone."""

    name: str
    zone: str | None
    reached: Literal["ready", "gone"]
    seconds: float
    tpu: Tpu | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The health of a TPU that is ready but not healthy."""
        return self.tpu.health_warnings if self.tpu else ()


def wait_until_ready(
    api: TpuApi,
    name: str,
    *,
    zone: str | None = None,
    timeout_s: float | None = None,
    on_progress: OnProgress = silent,
) -> WaitResult:
    """Wait until a TPU is READY and every worker has an address.

    Raises DeadlineError; WrongStateError where it can no longer become ready; NotFoundError where
    there is neither a TPU nor a queued resource.
    """
    seen = find(api, name, zone)
    polling = Polling(api.clock, timeout_s=timeout_s)
    while True:
        if isinstance(seen, Node):
            tpu = describe_node(seen, now=api.clock.now(), emulated=api.emulated)
            if tpu.is_usable:
                return WaitResult(name, seen.zone, "ready", polling.waited_s, tpu)
        _check_can_get_ready(seen)
        on_progress(_progress(seen, polling))
        polling.pause(
            f"{name} in {seen.zone} is {seen.state}, not ready,",
            hint=f"To continue waiting: tpuctl wait {name} --zone {seen.zone} --for ready",
        )
        try:
            seen = find(api, name, seen.zone)
        except NotFoundError as error:
            departure = attempt(partial(api.why_gone, name, zone=seen.zone, since=seen.created))
            if isinstance(departure, Departure) and departure.error:
                raise departure.error from error
            why = "there was no capacity, it was preempted, or a user deleted it"
            why = str(departure) if isinstance(departure, Departure) else why
            raise WrongStateError(
                f"{name} vanished in {seen.zone} while it was {seen.state}: {why}.",
                hint="Create it again; --zone auto tries other zones too.",
            ) from error


def wait_until_gone(
    api: TpuApi,
    name: str,
    *,
    zone: str | None = None,
    timeout_s: float | None = None,
    on_progress: OnProgress = silent,
) -> WaitResult:
    """Wait until a TPU is gone, or return at once if there is none; raises DeadlineError.

    A later TPU of the same name is not waited for.
    """
    try:
        first = find(api, name, zone)
    except NotFoundError:
        return WaitResult(name, zone, "gone", 0.0, None)
    polling = Polling(api.clock, timeout_s=timeout_s)
    get: Callable[..., Resource] = api.get_queued_resource
    if isinstance(first, Node):
        get = api.get_node
    seen: Resource | None = first
    while seen is not None and identity(seen) == identity(first):
        on_progress(_progress(seen, polling))
        polling.pause(
            f"{name} in {seen.zone} is {seen.state}, not gone,",
            hint=f"To continue waiting: tpuctl wait {name} --zone {seen.zone} --for gone",
        )
        seen = read_optional(get, name, first.zone)
    return WaitResult(name, first.zone, "gone", polling.waited_s, None)


def _check_can_get_ready(seen: Resource) -> None:
    """Raise WrongStateError where it will never be ready."""
    is_final = seen.state in _NEVER_READY if isinstance(seen, Node) else seen.is_dead
    if is_final:
        reason = seen.error if isinstance(seen, QueuedResource) else None
        raise WrongStateError(
            f"{seen.name} in {seen.zone} is {seen.state} and will not become ready"
            + (f": {reason}" if reason else "."),
            hint=f"tpuctl delete {seen.name} --zone {seen.zone}, then create it again",
        )


def _progress(seen: Resource, polling: Polling) -> Progress:
    why = seen.health_description if isinstance(seen, Node) else ""
    note = ": ".join(filter(None, (seen.state, why)))
    return Progress(f"{seen.name} in {seen.zone}", polling.waited_s, unit="s", note=note)
