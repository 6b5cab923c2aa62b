"""Runs on Kaggle from Python: what `launch --on kaggle` and `logs NAME` do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.api.workers import Workers
from tpuctl.errors import (
    NoCapacityError,
    NotFoundError,
    StoppedError,
    TpuctlError,
    UsageError,
    did_you_mean,
    refuse_unused,
)
from tpuctl.progress import OnProgress, message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.providers.combined import AutoPlan
    from tpuctl.providers.gke.manifest import GkeOptions
    from tpuctl.providers.kaggle.follow import HostedRun, StartedRun
    from tpuctl.providers.kaggle.runs import KagglePlan
    from tpuctl.providers.pack import HostedJob
    from tpuctl.providers.port import ProviderOffer
    from tpuctl.remote.output import Sink

AUTO = "auto"
_SHOWN = 5
AUTO_TTL_S = 12 * 3600.0
KAGGLE = "kaggle"
_DATA_PLACE = "tpuctl-data"


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The arguments of `launch`, where those are the workers that `on` means."""

    script: str
    arguments: Sequence[str]
    workers: Workers
    on: str | Workers
    settings: Sequence[str]
    framework: str
    strategy: str
    cpu_devices: int | None
    code: Path | None
    env: Sequence[str]
    detach: bool
    job: str | None
    check: bool | None
    include_secrets: bool
    resume: str | None
    ttl_s: float | None
    max_usd: float | None
    gke: GkeOptions | None
    dry_run: bool
    confirm: Callable[[Any], None]
    log: int | None
    sink: Sink
    on_progress: OnProgress

    @property
    def training(self) -> dict[str, Any]:
        """The options of a training that apply wherever it runs."""
        return {
            "framework": self.framework,
            "strategy": self.strategy,
            "settings": list(self.settings),
            "arguments": list(self.arguments),
        }

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables for the script."""
        from tpuctl.remote.run import plan_command

        return plan_command(["-"], env=list(self.env)).env

    @property
    def checks(self) -> bool:
        """Whether the workers are checked before the job starts."""
        return self.check is not False

    def shared(self, *names: str) -> dict[str, Any]:
        """Return these arguments by name."""
        return {name: getattr(self, name) for name in names}

    def refuse(self, where: str, *names: str, hint: str = "") -> None:
        """Raise UsageError for arguments that were given and have no effect there."""
        flags = {name: "--" + name.removesuffix("_s").replace("_", "-") for name in names}
        given = {flag: getattr(self, name) or None for name, flag in flags.items()}
        if "check" in names:
            given["--no-check"] = self.check is False
        refuse_unused(given, where, hint=hint)

    def note(self, text: str) -> None:
        """Report a step."""
        self.on_progress(message(text))


def is_kaggle(name: str | None) -> bool:
    """Whether `--on` means Kaggle, perhaps with a type; raises UsageError for one it lacks."""
    where, _, kind = (name or "").partition(":")
    if where != KAGGLE:
        return False
    from tpuctl.hardware.types import describe
    from tpuctl.providers.kaggle.runs import limits

    has = str(limits()["accelerator_type"])
    if kind and describe(kind).accelerator_type != has:
        raise UsageError(f"Kaggle does not have {kind}.", hint=f"Its only TPU: --on kaggle:{has}")
    return True


def launch_on_kaggle(request: LaunchRequest) -> KagglePlan | StartedRun | HostedRun:
    """Run a job in a session on Kaggle, follow it, and fetch its output.

    The same command finds the run that an interrupted one has started.
    """
    from tpuctl.providers.batch import RunStore
    from tpuctl.providers.kaggle.client import KaggleClient
    from tpuctl.providers.kaggle.follow import StartedRun, finish, follow
    from tpuctl.providers.kaggle.runs import plan_run, submit

    request.refuse("on Kaggle", "cpu_devices", "env", "check", "include_secrets")
    request.workers.refuse_login("on Kaggle")
    job, note = plan_job(request), request.note
    client, store = KaggleClient(), RunStore()
    plan = plan_run(client, store, job)
    if request.dry_run:
        return plan
    for reason in (*plan.because, *plan.warnings):
        note(reason)
    with _note_on_interrupt(plan.adopts or "the run"):
        run = submit(client, store, plan, note)
    if request.detach:
        ends = f"{run.ends_by:%Y-%m-%d %H:%M} UTC"
        return StartedRun(run.name, KAGGLE, run.url, run.version or 1, ends)
    with _note_on_interrupt(run.name):
        ended = follow(client, store, run, sink=request.sink, note=note)
        return finish(client, store, run, ended, on_progress=request.on_progress)


@contextmanager
def _note_on_interrupt(name: str) -> Iterator[None]:
    """On Ctrl-C, say that the run continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(
            f"Interrupted; {name} keeps running on Kaggle, which cannot be stopped from outside.",
            hint="Run the same command again to follow it. tpuctl list shows when it ends.",
        ) from None


def reach_or_suggest(workers: Workers) -> Any:
    """Find the machines of `--on NAME`; if there are none, suggest what else may be meant."""
    try:
        return workers.reach()
    except NotFoundError as error:
        places = (KAGGLE, AUTO, "colab", "gke", "local")
        error.hint = did_you_mean((workers.name or "").partition(":")[0], places) + str(error.hint)
        raise


def plan_auto(script: str, *, max_usd: float | None, project: str | None) -> AutoPlan:
    """Rank the available offers; those for dollars are included only with a budget."""
    from tpuctl.api.cloud import offers
    from tpuctl.providers.combined import AutoPlan

    found = offers(project=project)
    usable = [
        each
        for each in found.offers
        if each.available is not False and (each.usd_per_hour == 0 or each.provisioning == "units"
        or (max_usd and each.usd_per_hour))
    ]  # fmt: skip
    reasons = [
        f"{number}. {each.provider} {each.accelerator_type}, {each.provisioning.replace('_', ' ')}"
        f"{f' in {each.zone}, ${each.usd_per_hour:.2f} per hour' if each.usd_per_hour else ''}"
        f": {'; '.join(each.evidence)}"
        for number, each in enumerate(usable[:_SHOWN], 1)
    ]
    if not max_usd:
        reasons.append("paid offers are left out; to allow them: --max-usd")
    reasons += [f"{name} was not checked: {why}" for name, why in found.unusable.items()]
    if not usable:
        rows = [(each.provider, f"{each.accelerator_type}: not now") for each in found.offers]
        rows = [row for row in rows if not (row[0] == "cloud-tpu" and not max_usd)]
        rows += [(name, why.partition(". ")[0]) for name, why in found.unusable.items()]
        rows += [(error.code, str(error)) for error in found.failures]
        rows += [] if max_usd else [("for dollars", "left out; to allow them: --max-usd")]
        table = "".join(f"\n  {name:<12}{why}" for name, why in dict.fromkeys(rows))
        raise NoCapacityError(f"No TPU is available now.{table}", hint="tpuctl offers")
    return AutoPlan(script, tuple(usable), tuple(reasons))


def confirm_paid(plan: AutoPlan, confirm: Callable[[AutoPlan], None]) -> None:
    """Ask for confirmation, unless all offers are free."""
    if any(offer.provisioning != "free" for offer in plan.offers):
        confirm(plan)


def launch_auto(
    plan: AutoPlan, launch_on: Callable[[str | Workers, bool], Any], request: LaunchRequest
) -> Any:
    """Launch on the first available offer; a TPU is created for the job and deleted."""
    from tpuctl.cloud.journal import Journal
    from tpuctl.providers.kaggle.provider import Kaggle

    note, project = request.note, request.workers.project
    for reason in plan.because:
        note(reason)
    last: TpuctlError | None = None
    for offer in plan.offers:
        name = f"auto-{secrets.token_hex(4)}"
        try:
            if offer.provider == KAGGLE:
                # Nothing is started elsewhere once the run has begun, whatever happens to it.
                name = launch_on(KAGGLE, True).name
            elif offer.provider == "colab":
                return launch_on(f"colab:{offer.accelerator_type}", False)
            else:
                _create_for(offer, request, name)
        except (StoppedError, UsageError):
            raise
        except TpuctlError as error:
            if Journal().named(name, None):
                # It may exist, for example after a lost reply: a second one costs as much again.
                raise
            note(f"{offer.provider}: {error} Trying the next offer.")
            last = error
            continue
        if offer.provider == KAGGLE:
            talk = request.shared("sink", "on_progress")
            with _note_on_interrupt(name):
                return Kaggle(project, note).logs(name, to_end=True, note=note, **talk)
        try:
            return launch_on(replace(request.workers, name=name, zone=offer.zone), False)
        finally:
            _delete_after(offer, request, name)
    assert last
    raise last


def _create_for(offer: ProviderOffer, request: LaunchRequest, name: str) -> None:
    """Create the TPU of an offer, which ends at the budget or after half a day."""
    from tpuctl.api.cloud import create

    limit = {"max_usd": request.max_usd} if offer.usd_per_hour else {"ttl_s": AUTO_TTL_S}
    create(
        name,
        offer.accelerator_type,
        provider=offer.provider,
        zone=offer.zone,
        spot=offer.provisioning == "spot",
        project=request.workers.project,
        on_progress=request.on_progress,
        **limit,
    )


def _delete_after(offer: ProviderOffer, request: LaunchRequest, name: str) -> None:
    """Delete the TPU that was created for a job; raises why it may still be there."""
    from tpuctl.api.cloud import delete

    project, on_progress = request.workers.project, request.on_progress
    try:
        done = delete(name, zone=offer.zone, project=project, on_progress=on_progress)
        if done.failures:
            raise done.failures[0]
    except TpuctlError as error:
        error.hint = f"{name} may still cost money: tpuctl delete {name} --zone {offer.zone}"
        raise


def plan_job(
    request: LaunchRequest, *, more: Sequence[str] = (), place: str = "", hint: str = ""
) -> HostedJob:
    """Check what can be checked here: the script, its flags, and that no secret is among them.

    `more` are other words that are sent; `place` and `hint` are for the message about a secret.
    """
    from tpuctl.providers.pack import HostedJob, refuse_secrets
    from tpuctl.training.choose import Choice
    from tpuctl.training.plan import find_script, plan_launch
    from tpuctl.training.remote_launch import place_script

    found, options = find_script(request.script), request.training
    plan = {name: value for name, value in options.items() if value is not None}
    framework = options["framework"]
    choice = Choice("jax" if framework == "auto" else framework, "default", "", "")
    # First: an error about a flag would show its value.
    refuse_secrets([*options["settings"], *options["arguments"], *more], place, hint)
    plan_launch(found, choice, options["settings"], options["arguments"])
    plan["settings"], extra = with_data(options["settings"])
    plan["target"], source = place_script(Path(found.path), request.code)
    kept = request.resume, request.ttl_s, request.job
    return HostedJob(Path(found.path), {"plan": plan}, (source, *extra), *kept)


def with_data(
    settings: Sequence[str], above: str = ""
) -> tuple[list[str], tuple[tuple[Path, str], ...]]:
    """Take local data along: `data=DIR` becomes its place on the machine, below `above`."""
    changed, extra = [], []
    for setting in settings:
        name, _, value = setting.partition("=")
        path = Path(value).expanduser()
        if name.lstrip("-") == "data" and value and path.exists():
            extra.append((path, _DATA_PLACE))
            setting = f"{name}={above}{_DATA_PLACE}" + (f"/{path.name}" if path.is_file() else "")
        changed.append(setting)
    return changed, tuple(extra)
