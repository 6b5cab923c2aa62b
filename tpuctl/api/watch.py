"""`watch` from Python: keep one TPU alive, or run a job on one provider after the other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from tpuctl.api.cloud import OnWarning, warn_about
from tpuctl.api.workers import (
    as_pairs,
    as_words,
    print_output,
    python_warning,
)
from tpuctl.errors import NoCapacityError, TpuctlError, UsageError, refuse_unused
from tpuctl.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tpuctl.providers.port import ProviderOffer
    from tpuctl.remote.output import Sink
    from tpuctl.supervise.messages import WatchResult
    from tpuctl.supervise.plan import WatchPlan
    from tpuctl.supervise.relay import RelayPlan, RelayResult

FOLDER = "tpuctl-watch"
"""Folder of the job on workers."""

_TTL_S = 12 * 3600.0
_TYPES = {"kaggle": "v5litepod-8", "colab": "v5litepod-1"}


@overload
def watch(
    name: str, command: str | Sequence[str], *, dry_run: Literal[False] = False, **options: Any
) -> WatchResult: ...
@overload
def watch(
    name: None, command: str | Sequence[str], *, on: str | Sequence[str], **options: Any
) -> RelayResult | RelayPlan: ...
@overload
def watch(
    name: str, command: str | Sequence[str], *, dry_run: bool, **options: Any
) -> WatchResult | WatchPlan: ...
def watch(
    name: str | None,
    command: str | Sequence[str],
    *,
    on: str | Sequence[str] = (),
    checkpoints: str | Path | None = None,
    max_units: float | None = None,
    zone: str | Sequence[str] | None = None,
    accelerator_type: str | None = None,
    spot: bool | None = None,
    queued: bool | None = None,
    flex: bool | None = None,
    reservation: str | None = None,
    setup: str | None = None,
    provider: str | None = None,
    ttl_s: float | None = None,
    max_usd: float | None = None,
    runtime_version: str | None = None,
    fresh: bool = False,
    delete_at_end: bool = False,
    key: Path | None = None,
    jump: str | None = None,
    internal_ip: bool = False,
    iap: bool = False,
    project: str | None = None,
    dry_run: bool = False,
    confirm: Callable[[Any], None] = warn_about,
    show: Callable[[Any], None] = lambda result: None,
    sink: Sink = print_output,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[], AbstractContextManager[OnProgress]] = lambda: nullcontext(silent),
    on_warning: OnWarning = python_warning,
    **job: Any,
) -> WatchResult | WatchPlan | RelayResult | RelayPlan:
    """Run a job and keep it alive, on another TPU when this one is taken away; costs money.

    Args:
        name: Name of the TPU; user@NAME logs in as that user. None with `on`.
        command: The program and its arguments.
        on: Providers, as "kaggle,colab:v5e-1,cloud-tpu:v5e-8": when one ends, the next resumes.
        checkpoints: With `on`: folder or gs:// address of the checkpoints. The job finds them in
            the folder that the variable TPUCTL_CHECKPOINTS names, and writes them there.
        max_units: With `on`: compute units for each runtime on Colab.
        zone: Where the TPU is and is recreated, several zones to recreate it in, or "auto".
        accelerator_type: Type to create if there is no TPU yet. Like the following options, by
            default the same as the TPU has now.
        spot: Whether to create spot TPUs.
        queued: Whether to create queued resources.
        flex: Whether to create by flex-start, which needs a time to live.
        reservation: Reservation on Compute Engine to create in.
        setup: Framework to install on each TPU: "jax", "torch" or "none".
        provider: Where to create it: "cloud-tpu", "gce" or "colab"; by default "auto".
        ttl_s: Time to live of each TPU.
        max_usd: Total budget for all TPUs of this watch.
        runtime_version: TPU software version.
        fresh: Start over instead of resuming an interrupted watch.
        delete_at_end: Delete the TPU when the job is done or given up.
        key: Private SSH key to log in with.
        jump: SSH jump host, as USER@HOST.
        internal_ip: Connect to internal addresses.
        iap: Connect through Identity-Aware Proxy, with gcloud.
        project: Google Cloud project; by default the one set.
        dry_run: Return the plan and do nothing.
        confirm: Called with the plan before anything is done; raise an exception to stop.
        show: Called with the result of a NAME before it is recorded that the watch is over.
        sink: Receives the job's output; by default it goes to stdout and stderr.
        note: Receives a line for each step.
        progress: Context manager for the progress of a create.
        on_warning: Called with each warning about earlier creates.
        **job: Options of `plan_job`: `env`, `code`, `folder`, `max_crashes`, `hang_after_s`,
            `bad_host_after_s`, `include_secrets`.

    Raises why nothing could be started, and TryAgainError where the TPU is already being watched;
    why a job was given up is in the result.
    """
    job["env"] = as_pairs(job.get("env", ()))
    if on or name is None:
        unused: dict[str, object] = {
            "a NAME": name,
            "--queued": queued,
            "--accelerator-type": accelerator_type,
            "--flex": flex,
            "--reservation": reservation,
            "--setup": setup,
            "--provider": provider,
        }
        unused |= {"--key": key, "--jump": jump, "--internal-ip": internal_ip, "--iap": iap}
        refuse_unused({**unused, "--delete": delete_at_end}, "with --on")
        options: dict[str, Any] = {"ttl_s": ttl_s, "max_usd": max_usd, "spot": spot}
        options["runtime_version"] = runtime_version
        return _watch_on(
            on, as_words(command), checkpoints=checkpoints, zone=zone, max_units=max_units,
            options=options, fresh=fresh, project=project, dry_run=dry_run, confirm=confirm,
            sink=sink, note=note, progress=progress, on_warning=on_warning, job=job,
        )  # fmt: skip
    refuse_unused({"--checkpoints": checkpoints, "--max-units": max_units}, "without --on")
    from tpuctl.cloud.plan import check_words
    from tpuctl.hardware.types import describe
    from tpuctl.providers.control_planes import provider_to_watch
    from tpuctl.providers.port import Login
    from tpuctl.providers.registry import is_control_plane
    from tpuctl.remote.hosts import parse_hosts, split_user
    from tpuctl.supervise.loop import open_target
    from tpuctl.supervise.loop import watch as watch_planned
    from tpuctl.supervise.plan import WatchOptions, plan_job, resolve_watch_zones

    if accelerator_type:
        describe(accelerator_type)
    check_words(setup, reservation)
    user, plain = split_user(name)
    way = parse_hosts(jump)[0] if jump else None
    login = Login("" if plain == name else user, None, key, way, internal_ip, iap)
    models = {"spot": spot, "queued": queued, "flex": flex, "reservation": reservation}
    chosen: dict[str, Any] = {**models, "runtime_version": runtime_version, "setup": setup}
    owner = provider_to_watch(
        plain, accelerator_type, zone, chosen,
        provider=provider, project=project, on_warning=on_warning,
    )  # fmt: skip
    control_plane = owner.abilities.name if is_control_plane(owner) else None
    spec = plan_job(as_words(command), **job)
    store, plan_watch, act_on = open_target(owner, plain, project=project, on_warning=on_warning)
    look_in, zones = resolve_watch_zones(zone if control_plane or zone else ())
    wanted = WatchOptions(
        look_in,
        zones,
        accelerator_type,
        ttl_s=ttl_s,
        max_usd=max_usd,
        provider=control_plane,
        **chosen,
    )
    if dry_run:
        return plan_watch(wanted, spec, store=store, fresh=fresh)
    with store.lock():
        plan = plan_watch(wanted, spec, store=store, fresh=fresh)
        confirm(plan)
        return watch_planned(
            act_on(login, sink=sink, note=note, progress=progress),
            plan.watch_state,
            spec,
            store=store,
            note=note,
            show=show,
            delete_at_end=delete_at_end,
        )


def _watch_on(
    on: str | Sequence[str],
    command: list[str],
    *,
    checkpoints: str | Path | None,
    zone: str | Sequence[str] | None,
    max_units: float | None,
    options: dict[str, Any],
    fresh: bool,
    project: str | None,
    dry_run: bool,
    confirm: Callable[[RelayPlan], None],
    on_warning: Callable[[str], None],
    job: dict[str, Any],
    **talk: Any,
) -> RelayResult | RelayPlan:
    """Run a job on the first provider that has a TPU, and on the next when that one ends."""
    from tpuctl.supervise.plan import WatchOptions, plan_job, resolve_watch_zones
    from tpuctl.supervise.relay import LedgerFile, RelayPlan, relay_folder
    from tpuctl.supervise.run_parts import CHECKPOINTS, Checkpoints, Relay, RelayJob

    if not checkpoints:
        raise UsageError("Where are the checkpoints?", hint="Add --checkpoints DIR or gs://...")
    places = _parse_providers(on.split(",") if isinstance(on, str) else on)
    _refuse_ignored(places, {**options, "zone": zone, "max_units": max_units}, job)
    code = job.pop("code", None)
    spec = plan_job(command, **{**job, "folder": job.get("folder") or FOLDER})
    in_bucket = str(checkpoints) if str(checkpoints).startswith("gs:") else None
    sent = _files_of(command, code, Path(checkpoints))
    store = LedgerFile([list(places), str(checkpoints), command, sent, sorted(spec.env.items())])
    with store.lock():
        ledger = store.load(fresh=fresh)
        here = Path(checkpoints).expanduser().resolve()
        if in_bucket:
            here = relay_folder(ledger) / (
                in_bucket.rstrip("/").rpartition("/")[2] or "checkpoints"
            )
        elif here in (Path.cwd(), Path.home().resolve(), Path("/")) or here.is_file():
            raise UsageError(f"{checkpoints} must be a folder of checkpoints only.")
        spec = replace(spec, env={**spec.env, CHECKPOINTS: here.name})
        zones = resolve_watch_zones(zone)[1] or ()
        options["ttl_s"] = options["ttl_s"] or _TTL_S
        wanted = WatchOptions(None, zones, **options)
        kept = Checkpoints(here, in_bucket)
        relay_job = RelayJob(spec, sent, kept, wanted, max_units=max_units, project=project)
        if any(place.startswith("kaggle:") for place in places):
            from tpuctl.providers.pack import refuse_secrets

            variables = (f"{name}={value}" for name, value in spec.env.items())
            refuse_secrets([*spec.command, *variables])
        plan = RelayPlan(
            command=spec.command,
            checkpoints=str(checkpoints),
            offers=tuple(_offer(place, project) for place in places),
            sent=tuple(path for path, _ in sent),
            resumes=ledger.legs[-1].provider if ledger.legs else None,
        )
        if dry_run:
            return plan
        confirm(plan)
        return Relay(ledger, places, relay_job, store=store, **talk).run()


def _parse_providers(words: Sequence[str]) -> tuple[str, ...]:
    """Check PROVIDER or PROVIDER:TYPE, and write the type out."""
    from tpuctl.hardware.types import describe
    from tpuctl.providers.colab.api import accelerator_for
    from tpuctl.providers.registry import open_provider

    found = []
    for word in filter(None, map(str.strip, words)):
        name, _, kind = word.partition(":")
        provider = open_provider(name)
        if not kind and name not in _TYPES:
            raise UsageError(f"--on {name} needs a type.", hint=f"--on {name}:v5litepod-8")
        kind = describe(kind or _TYPES[name]).accelerator_type
        if name == "kaggle" and kind != _TYPES[name]:
            raise UsageError(f"Kaggle does not have {kind}.", hint="--on kaggle")
        if name == "colab":
            accelerator_for(kind)
        is_other_batch = provider.abilities.reachable == "batch" and name != "kaggle"
        if name == "hosts" or is_other_batch:
            raise provider.abilities.refuse("watch")
        if f"{name}:{kind}" in found:
            raise UsageError(
                f"{word} is named twice.", hint="After the last one, the first is next."
            )
        found.append(f"{name}:{kind}")
    if not found:
        raise UsageError("No providers are named.", hint="--on kaggle,colab:v5e-1")
    return tuple(found)


def _refuse_ignored(places: Sequence[str], options: dict[str, Any], job: dict[str, Any]) -> None:
    """Raise UsageError for options that none of the providers honours."""
    names = list(dict.fromkeys(place.partition(":")[0] for place in places))
    unused = {} if "colab" in names else {"--max-units": options["max_units"]}
    if set(names) <= set(_TYPES):
        unused |= {"--zone": options["zone"], "--spot": options["spot"]}
        unused |= {"--max-usd": options["max_usd"]}
        unused |= {"--runtime-version": options["runtime_version"]}
    if names == ["kaggle"]:
        unused |= {"--hang-after": job.get("hang_after_s"), "--chdir": job.get("folder")}
        unused |= {"--include-secrets": job.get("include_secrets")}
    refuse_unused(unused, f"with --on {','.join(names)}")


def _files_of(
    command: Sequence[str], code: Path | None, checkpoints: Path
) -> tuple[tuple[str, str], ...]:
    """Return what to send and where to: the folder `code`, or the files that the command names."""
    if code is not None:
        if not (root := code.expanduser().resolve()).is_dir():
            raise UsageError(
                f"{code} is not a folder.", hint="--code takes the folder of your code."
            )
        return ((str(root), ""),)
    found = []
    for word in dict.fromkeys(command):
        path = Path(word.partition("=")[2] or word)
        is_inside = not path.is_absolute() and ".." not in path.parts and path.parts
        if is_inside and path.exists() and path.resolve() != checkpoints.resolve():
            place = path.parent if path.is_file() else path
            found.append((str(path.resolve()), "" if place == Path() else str(place)))
    return tuple(found)


def _offer(place: str, project: str | None) -> ProviderOffer:
    """Return the best offer of a provider, or why it has none; only reads."""
    from tpuctl.providers.combined import rank
    from tpuctl.providers.port import ProviderOffer
    from tpuctl.providers.registry import open_provider

    name, _, kind = place.partition(":")
    try:
        found = rank(open_provider(name, project=project).offers(kind))
        if found:
            return found[0]
        raise NoCapacityError(f"It has no {kind}.")
    except TpuctlError as error:
        why = f"{error} {error.hint or ''}".strip()
        return ProviderOffer(
            name, kind, None, None, "on_demand", None, available=False, evidence=(why,)
        )
