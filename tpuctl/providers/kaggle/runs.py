"""Start a run on Kaggle: build its kernel, write it to disk, request it, then find it.

Kaggle has no request ids. The name of a kernel is ours and unique, so that what became of a push
whose reply was lost can be read before it is sent again.
"""

import base64
import hashlib
import json
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.errors import (
    NotFoundError,
    QuotaExceededError,
    TpuctlError,
    UnavailableError,
    WrongStateError,
)
from tpuctl.outcome import Outcome
from tpuctl.providers.batch import Run, RunStore
from tpuctl.providers.kaggle.bootstrap import NO_INPUT, NO_TPU
from tpuctl.providers.kaggle.client import ENDED, KaggleClient, Quota
from tpuctl.providers.kaggle.login import KAGGLE
from tpuctl.providers.pack import HostedJob, Packed, pack
from tpuctl.units import format_bytes, format_duration, format_moment, slug

DATA = Path(__file__).parent / "data" / "limits.json"


def limits() -> dict[str, Any]:
    """Return the dated facts about Kaggle's limits."""
    return load_facts(DATA)


def fits_in_source(packed: Packed) -> bool:
    """Whether an archive can be part of the kernel's text."""
    return len(packed.archive) * 5 // 4 <= int(limits()["inline_bytes"])


def kernel_text(job: dict[str, Any], packed: Packed | None) -> str:
    """Write the source of the kernel: the bootstrap, and the archive if it is part of it."""
    boot = (resources.files(__package__) / "bootstrap.py").read_text(encoding="utf-8")
    data = base64.b85encode(packed.archive).decode() if packed else ""
    return f"{boot}\n\nmain({job!r}, {data!r})\n"


PREFIX = "tpuctl-"
_ARCHIVE = "tpuctl-project.bin"
_PUSHES, _LOOK_S = 3, 5.0
_DATA_SET_TIMEOUT_S = 900.0
Note = Callable[[str], None]


@dataclass(frozen=True)
class KagglePlan(Outcome):
    """A run before it is requested; `adopts` is the run of the same command that is not home."""

    script: str
    provider: str
    accelerator_type: str
    chips: int
    limit_hours: float
    hours_left: float
    refreshes: str | None
    files: int
    size_bytes: int
    resumes: str | None
    adopts: str | None
    because: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})
    key: str = field(default="", metadata={"internal": True})
    packed: Packed | None = field(default=None, metadata={"internal": True}, repr=False)
    job: str = field(default="", metadata={"internal": True})


def plan_run(client: KaggleClient, store: RunStore, job: HostedJob) -> KagglePlan:
    """Pack a job and read the quota; raises QuotaExceededError where no hours are left."""
    known, sources = limits(), list(job.sources)
    resumes = _resolve_resume(client, store, job)
    if resumes and Path(resumes).is_absolute():
        sources.append((Path(resumes), ""))
    packed = pack(job.work, sources)
    parts = [client.endpoint.shown, client.username, packed.sha256, job.limit_s, resumes, job.job]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    adopted = _open_run(store, client, key)
    quota = client.quota()
    if not adopted:
        _check_quota(quota)
    most_h = min(float(known["session_hours"]), (job.limit_s or 1e9) / 3600, quota.left_hours)
    how = "in the kernel's source" if fits_in_source(packed) else "as a private data set"
    reasons = (
        f"Kaggle: {quota.left_hours:.1f} of {quota.total_hours:.0f} TPU hours left this week"
        + (f", new ones at {format_moment(quota.refreshes)}" if quota.refreshes else ""),
        f"the session ends after {format_duration(most_h * 3600)} at the latest",
        f"{packed.described} {how}",
    )
    return KagglePlan(
        script=str(job.script),
        provider="kaggle",
        accelerator_type=known["accelerator_type"],
        chips=known["chips"],
        limit_hours=round(most_h, 4),
        hours_left=round(quota.left_hours, 4),
        refreshes=quota.refreshes,
        files=packed.files,
        size_bytes=len(packed.archive),
        resumes=resumes,
        adopts=adopted.name if adopted else None,
        because=(*reasons, *([f"resumes from {resumes}"] if resumes else [])),
        warnings=packed.warnings,
        key=key,
        packed=packed,
        job=job.job or Path(job.script).stem,
    )


def submit(
    client: KaggleClient, store: RunStore, plan: KagglePlan, note: Note, *, name: str = ""
) -> Run:
    """Start the planned run, or return the one that the same command has started before.

    A `name` stands for the command.
    """
    packed = plan.packed
    assert packed
    with store.lock(plan.key, wait_s=5.0):
        run = store.find(name) if name else _open_run(store, client, plan.key)
        if run is None:
            name = name or f"{PREFIX}{slug(plan.job)[:24]}-{secrets.token_hex(4)}"
            run = Run(
                name=name.replace("--", "-"),
                key=plan.key,
                script=plan.script,
                endpoint=client.endpoint.shown,
                owner=client.username,
                out=str(Path.cwd() / name),
                asked=client.clock.now(),
                limit_s=plan.limit_hours * 3600,
                # After its content: what an interrupted command has sent is found again.
                data_set=None if fits_in_source(packed) else f"{PREFIX}{packed.sha256[:32]}",
            )
            store.write(run)
        elif run.version:
            note(f"The same command has started {run.name} before; following that run.")
            return run
        version = client.version_of(run.name)
        if version is None:
            version = _push(client, store, run, plan, note)
        return store.write(run, phase="pushed", version=version)


def _push(client: KaggleClient, store: RunStore, run: Run, plan: KagglePlan, note: Note) -> int:
    """Push until it is known that one push was accepted; a refusal leaves nothing behind."""
    try:
        request = _request(client, run, plan, note)
        for attempt in range(_PUSHES):
            try:
                version, dropped = client.push(request)
                if dropped:
                    note(f"Warning: Kaggle did not attach {', '.join(dropped)}.")
                return version
            except UnavailableError:
                client.clock.sleep(_LOOK_S)
                if found := client.version_of(run.name):
                    return found
                if attempt == _PUSHES - 1:
                    raise
    except UnavailableError:
        raise
    except TpuctlError:
        # The refusal may be about a second session beside one whose reply was lost.
        if found := client.version_of(run.name):
            return found
        with suppress(TpuctlError):
            store.forget(drop_data(client, store, run))
        raise
    raise AssertionError


def _request(client: KaggleClient, run: Run, plan: KagglePlan, note: Note) -> dict[str, Any]:
    known, packed = limits(), plan.packed
    assert packed
    is_run = plan.resumes and not Path(plan.resumes).is_absolute()
    if data := run.data_set:
        _send_data(client, data, packed, note)
    margin_s = min(float(known["margin_s"]), run.limit_s / 10)
    job = {
        "id": run.name,
        "limit_s": run.limit_s - margin_s,
        "check": client.endpoint.shown if run.endpoint != KAGGLE else "https://www.kaggle.com",
        "archive": _ARCHIVE,
        "sha256": packed.sha256,
        "resume": plan.resumes if is_run else None,
    }
    return {
        "slug": f"{run.owner}/{run.name}",
        "newTitle": run.name,
        "text": kernel_text(job, packed if data is None else None),
        "language": "python",
        "kernelType": "script",
        "isPrivate": True,
        "enableInternet": True,
        "enableTpu": True,
        "machineShape": known["machine_shape"],
        "sessionTimeoutSeconds": max(60, int(run.limit_s)),
        "datasetDataSources": [f"{run.owner}/{data}"] if data else [],
        "kernelDataSources": [f"{run.owner}/{plan.resumes}"] if is_run else [],
    }


def drop_data(client: KaggleClient, store: RunStore, run: Run) -> Run:
    """Delete the data set that was made for a run, unless another run still needs it."""
    if run.data_set is None:
        return run
    others = (each for each in store.runs(run.endpoint) if each.name != run.name)
    if not any(each.data_set == run.data_set and each.phase != "home" for each in others):
        client.delete_data(run.data_set)
    return store.write(run, data_set=None)


def _send_data(client: KaggleClient, slug: str, packed: Packed, note: Note) -> None:
    """Send the archive as a private data set, unless it is there."""
    status = client.data_status(slug)
    if status is None:
        note(f"Uploading {format_bytes(len(packed.archive))} as the private data set {slug}.")
        with tempfile.NamedTemporaryFile() as file:
            file.write(packed.archive)
            file.flush()
            client.create_data(slug, Path(file.name), _ARCHIVE)
    waited_s = 0.0
    while (status := client.data_status(slug)) != "READY":
        if status in ("FAILED", "DELETED") or waited_s > _DATA_SET_TIMEOUT_S:
            raise UnavailableError(f"The data set {slug} is {status} on Kaggle, not READY.")
        client.clock.sleep(_LOOK_S)
        waited_s += _LOOK_S


def _open_run(store: RunStore, client: KaggleClient, key: str) -> Run | None:
    runs = store.runs(client.endpoint.shown)
    return next((run for run in runs if run.key == key and run.phase != "home"), None)


def _resolve_resume(client: KaggleClient, store: RunStore, job: HostedJob) -> str | None:
    """Return the name of the run to resume from, or the absolute path of a folder."""
    # The output of a run is in a folder of its name; what Kaggle has need not be sent.
    named = job.resume or ""
    is_run = named == "last" or ("/" not in named and store.find(named))
    if not named or (not is_run and Path(named).is_dir()):
        return str(Path(named).resolve()) if named else None
    runs = [run for run in store.runs(client.endpoint.shown) if run.version]
    if job.resume == "last":
        # Those that ended at once have no output.
        runs = [run for run in runs if run.exit_code not in (NO_INPUT, NO_TPU)]
        runs = [run for run in runs if Path(run.script).name == job.script.name]
    else:
        runs = [run for run in runs if run.name == job.resume]
    if not runs:
        raise NotFoundError(
            f"No run on Kaggle to resume from: {job.resume}.",
            hint="Pass last, the name of a run from `tpuctl list`, or a folder with checkpoints.",
        )
    run = runs[0]
    assert run.version
    if run.phase == "pushed" and client.status(run.name, run.version)[0] not in ENDED:
        raise WrongStateError(
            f"{run.name} has not ended, so it has no output yet.",
            hint=f"tpuctl logs {run.name} --follow",
        )
    return run.name


def _check_quota(quota: Quota) -> None:
    if quota.left_hours <= 0:
        again = f" New hours come at {format_moment(quota.refreshes)}." if quota.refreshes else ""
        raise QuotaExceededError(
            f"None of the {quota.total_hours:.0f} TPU hours of this week is left on Kaggle "
            f"({quota.used_hours:.1f} used, {quota.reserved_hours:.1f} reserved).{again}",
            hint="tpuctl offers",
        )
