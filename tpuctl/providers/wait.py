"""`wait` for a TPU of a provider that has no operations to follow."""

from typing import Literal

from tpuctl.clock import SteadyClock
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import Tpu
from tpuctl.cloud.wait import WaitResult
from tpuctl.errors import NotFoundError, WrongStateError
from tpuctl.progress import OnProgress, Progress
from tpuctl.providers.port import Provider


def wait_for(
    provider: Provider,
    name: str,
    until: Literal["ready", "gone"],
    *,
    timeout_s: float | None,
    on_progress: OnProgress,
) -> WaitResult:
    """Read a TPU until it is usable, or gone; raises DeadlineError."""
    polling = Polling(SteadyClock(), timeout_s=timeout_s)
    title = provider.abilities.title
    while True:
        try:
            found = provider.get(name, None)
        except NotFoundError:
            if until == "ready":
                raise
            return WaitResult(name, None, "gone", polling.waited_s, None)
        if until == "ready" and isinstance(found, Tpu) and found.is_usable:
            return WaitResult(name, found.zone, "ready", polling.waited_s, found)
        if isinstance(found, Tpu) and found.reachable == "batch" and found.is_dead:
            if until == "ready":
                raise WrongStateError(
                    f"{name} on {title} has ended: {found.health_description}.",
                    hint=f"What it printed: tpuctl logs {name}",
                )
            return WaitResult(name, None, "gone", polling.waited_s, None)
        why = found.health_description if isinstance(found, Tpu) else ""
        if until == "ready" and found.state == "SUSPENDED":
            raise WrongStateError(
                f"{name} on {title} is stopped and will not become ready.",
                hint=f"tpuctl delete {name}, then start it again",
            )
        note = f"{found.state} ({why})" if why else found.state
        on_progress(Progress(f"{name} on {title}", polling.waited_s, unit="s", note=note))
        polling.pause(
            f"{name} on {title} is {found.state}, not {until},",
            hint=f"To continue waiting: tpuctl wait {name} --for {until}",
        )
