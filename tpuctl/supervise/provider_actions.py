"""Watch a TPU of a provider behind the port, such as a runtime on Colab."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from tpuctl.clock import Clock
from tpuctl.cloud.create import NotCreated
from tpuctl.cloud.plan import CreateOptions
from tpuctl.cloud.tpu import Tpu
from tpuctl.errors import TpuctlError
from tpuctl.progress import silent
from tpuctl.providers.port import Login, Provider, Reached
from tpuctl.supervise.models import KnownTpu, TpuObservation, WatchState
from tpuctl.supervise.worker_actions import WorkerActions


@runtime_checkable
class Supervised(Provider, Protocol):
    """A provider whose TPUs can be kept alive."""

    @property
    def clock(self) -> Clock:
        """The service's time."""

    @property
    def endpoint(self) -> str:
        """The address of an emulator; empty for the service itself."""

    def recipe(self, name: str) -> CreateOptions | None:
        """Return the options that create such a TPU again; local."""

    def why_gone(self, name: str) -> str | None:
        """Return why tpuctl has deleted the TPU of this name; None where it has not. Local."""


class ProviderActions(WorkerActions):
    """The side effects of a watch of a TPU that a provider knows by its name."""

    def __init__(self, provider: Supervised, login: Login, **talk: Any) -> None:
        super().__init__(login, **talk)
        self._provider, self.clock = provider, provider.clock
        self._tpu: Tpu | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of the TPU that was observed last."""
        return (self._tpu.id,) if self._tpu else ()

    def observe(self, state: WatchState) -> TpuObservation:
        """Find the TPU in the list; one whose create was interrupted is created again."""
        try:
            self._tpu = tpu = find_tpu(self._provider, state.name)
        except TpuctlError as error:
            return TpuObservation("unknown", error=error)
        if tpu is None:
            why = self._provider.why_gone(state.name) if state.tpu else None
            return TpuObservation("none", "gone", on_purpose=bool(why), why_gone=why or "")
        known = KnownTpu(
            tpu.id,
            tpu.zone or "",
            tpu.created,
            tpu.as_of,
            usd_per_hour=tpu.usd_per_hour,
            units_per_hour=tpu.units_per_hour,
            expires=tpu.expires,
        )
        return TpuObservation("usable", tpu.state, tpu.id, known.zone, known=known, is_ours=True)

    def create(self, state: WatchState) -> None:
        """Create a TPU from the recipe, or adopt that of an interrupted create."""
        plan = self._provider.plan(replace(state.recipe, watch=state.watch))
        with self._progress() as on_progress:
            made = self._provider.create(
                plan,
                wait=True,
                timeout_s=None,
                on_interrupt=lambda: "leave",
                on_progress=on_progress,
                on_attempt=lambda attempt: None,
            )
        if isinstance(made, NotCreated):
            raise made.error

    def delete(self, state: WatchState) -> None:
        """Delete the TPU that was observed last."""
        plan = self._provider.plan_delete([state.name], None)
        if self._tpu and [each.id for each in plan.tpus] == [self._tpu.id]:
            done = self._provider.delete(plan, timeout_s=600, on_progress=silent)
            if done.failures:
                raise done.failures[0]

    def _type(self) -> str:
        return self._usable().accelerator_type

    def _workers_key(self) -> object:
        return self._usable().id

    def _reach(self) -> Reached:
        return self._provider.reach(self._usable().name, self._login)

    def _usable(self) -> Tpu:
        assert self._tpu, "only the workers of a usable TPU are asked"
        return self._tpu


def find_tpu(provider: Provider, name: str) -> Tpu | None:
    """Return the usable TPU of this name that is ours."""
    listed = provider.list(None).tpus
    return next((tpu for tpu in listed if tpu.name == name and tpu.is_usable), None)
