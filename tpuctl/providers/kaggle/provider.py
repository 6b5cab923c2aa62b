"""Kaggle behind the port: batch runs that can be listed, followed and deleted, but not stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from tpuctl.cloud.delete import DeleteResult, TpuDeletion
from tpuctl.cloud.gc import GcResult, orphan_of
from tpuctl.cloud.list import TpuList
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.tpu import Balance, Tpu, Worker
from tpuctl.errors import NotFoundError, TpuctlError, WrongStateError
from tpuctl.hardware.types import describe
from tpuctl.progress import OnProgress, silent
from tpuctl.providers.batch import (
    BatchProvider,
    Run,
    RunStore,
    delete_each,
    delete_orphans_still,
    plan_deletions,
)
from tpuctl.providers.kaggle.client import ENDED, KaggleClient
from tpuctl.providers.kaggle.follow import HostedRun, fetch_part, finish, follow, pass_on
from tpuctl.providers.kaggle.login import find_endpoint, find_login
from tpuctl.providers.kaggle.runs import PREFIX, Note, drop_data, limits
from tpuctl.providers.port import Abilities, ProviderOffer
from tpuctl.remote.copy_plan import CopyResult, CopyResults, Direction
from tpuctl.remote.output import Sink

NAME = "kaggle"
_LAUNCH = "tpuctl launch SCRIPT.py --on kaggle"
# A push that could not be read for this long was never accepted.
_SURELY_MISSING = timedelta(minutes=5)


class Kaggle(BatchProvider):
    """Batch sessions on a TPU v5e-8."""

    abilities = Abilities(
        NAME,
        "Kaggle",
        reachable="batch",
        instead={
            "create": f"A session is made for one job: {_LAUNCH}",
            "SSH": "A session runs one job and shows its log: tpuctl logs NAME --follow",
            "cp": "What a session needs is sent by launch: --code DIR, --set data=DIR",
            "watch": "A known run: tpuctl logs NAME --follow. One that continues elsewhere: "
            "tpuctl watch --on kaggle,colab --checkpoints DIR -- CMD",
            "stop": "It ends with its job, or at its time limit (launch --ttl); only the web page "
            "can cancel it: tpuctl show NAME",
        },
    )

    def __init__(self, project: str | None, on_warning: Callable[[str], None]) -> None:
        """Take what every provider takes; Kaggle needs neither."""
        self.store = RunStore()

    @cached_property
    def client(self) -> KaggleClient:
        """The client; made when it is first needed, because that reads the login."""
        return KaggleClient()

    def why_unusable(self) -> str | None:
        """Return why there is no login; None if there is one."""
        found = attempt(lambda: find_login(find_endpoint()))
        return f"{found} {found.hint or ''}".rstrip() if isinstance(found, TpuctlError) else None

    def is_recorded(self, name: str) -> bool:
        """Whether this machine has started the run."""
        return self.store.find(name) is not None

    def is_used(self) -> bool:
        """Whether a run that was started here may not have ended."""
        runs = self.store.runs(find_endpoint().shown)
        return any(run.phase in ("intended", "pushed") for run in runs)

    def was_deleted(self, name: str) -> bool:
        """Always False: a deleted run is forgotten."""
        return False

    def list(self, zone: str | None) -> TpuList:
        """List the sessions that have not ended, from wherever they were started."""
        client, quota = self.client, self.client.quota()
        found = []
        for name, version in self._kernels().items():
            run = self._run(name)
            if run.phase in ("intended", "pushed"):
                tpu = self._tpu(run, version, *client.status(name, version))
                found += [] if tpu.is_dead else [replace(tpu, hours_left=quota.left_hours)]
        return TpuList(
            None,
            tuple(found),
            emulated=client.endpoint.is_local,
            balances=(self.balance(),),
            place="on Kaggle",
        )

    def get(self, name: str, zone: str | None) -> Tpu:
        """Read a run, also one that has ended."""
        run = self._run(name)
        version = run.version or self.client.version_of(name)
        if version is None:
            raise _missing(name)
        return self._tpu(run, version, *self.client.status(name, version))

    def plan_delete(self, names: Sequence[str] | None, zone: str | None) -> DeleteResult:
        """Find our kernels; deleting one does not stop its session."""
        kernels = self._kernels()
        return plan_deletions(
            names,
            kernels,
            lambda name: self._deletion(name, kernels[name]),
            was_ours=self.is_recorded,
            missing=_missing,
        )

    def delete(
        self, plan: DeleteResult, *, timeout_s: float, on_progress: OnProgress
    ) -> DeleteResult:
        """Delete kernels whose sessions have ended; the others would run on, out of sight."""
        return delete_each(plan, self._delete)

    def find_orphans(self, zone: str | None) -> GcResult:
        """Find finished kernels whose output was fetched, and runs that are not followed."""
        kernels, found = self._kernels(), []
        for run in self.store.runs(self.client.endpoint.shown):
            # A list may be older than a run, and its search may lag.
            version = kernels.get(run.name) or self.client.version_of(run.name)
            if version is None:
                is_old = self.client.clock.now() - run.asked > _SURELY_MISSING
                if run.phase != "intended" or (is_old and not self.store.is_followed(run)):
                    if run.data_set is None:
                        self.store.forget(run)
                        continue
                    reason = f"its data set {run.data_set} is left"
                    found.append(orphan_of(self._deletion(run.name, None), reason))
                continue
            deletion = self._deletion(run.name, version)
            if deletion.state not in ENDED:
                if self.store.is_followed(run):
                    continue
                ends = f"{run.ends_by:%Y-%m-%d %H:%M} UTC"
                reason = f"it is not followed; it ends by {ends}: tpuctl logs {run.name} --follow"
                deletion = replace(deletion, outcome="left_alone")
            else:
                reason = "its output is here"
                if run.phase != "home":
                    reason = f"finished, its output is not here: tpuctl logs {run.name} --follow"
                    deletion = replace(deletion, outcome="left_alone")
            found.append(orphan_of(replace(deletion, reason=reason), reason))
        return GcResult(tuple(found)).summed()

    def delete_orphans(self, found: GcResult, on_progress: OnProgress) -> GcResult:
        """Delete what is finished and home."""
        return delete_orphans_still(found, lambda orphan: True, self._delete)

    def offers(self, accelerator_type: str | None) -> Sequence[ProviderOffer]:
        """Offer the free hours of this week."""
        known = limits()
        kind = known["accelerator_type"]
        if accelerator_type and describe(accelerator_type).accelerator_type != kind:
            return ()
        quota = self.client.quota()
        return (
            ProviderOffer(
                provider=NAME,
                accelerator_type=kind,
                chips=known["chips"],
                zone=None,
                provisioning="free",
                usd_per_hour=0.0,
                quota_left=round(quota.left_hours, 2),
                limit_hours=min(float(known["session_hours"]), quota.left_hours),
                available=quota.left_hours > 0,
                evidence=(
                    f"{quota.used_hours:.1f} h used and {quota.reserved_hours:.1f} h reserved of "
                    f"{quota.total_hours:.0f} h this week",
                    "batch only; needs a verified account",
                ),
            ),
        )

    def balance(self) -> Balance:
        """Read the hours of this week."""
        quota = self.client.quota()
        left = max(0.0, quota.total_hours - quota.used_hours)
        reserved = round(quota.reserved_hours, 2)
        return Balance(NAME, "hours", round(left, 2), None, reserved, quota.refreshes)

    def logs(
        self,
        name: str,
        *,
        to_end: bool,
        sink: Sink,
        note: Note,
        on_progress: OnProgress = silent,
    ) -> HostedRun | Tpu:
        """Pass on the log of a run; `to_end` follows it to its end and fetches its output."""
        run = self.store.find(name)
        if run is None or not run.version:
            raise _missing(name)
        if to_end:
            ended = follow(self.client, self.store, run, sink=sink, note=note)
            return finish(self.client, self.store, run, ended, on_progress=on_progress)
        found = self.get(name, None)
        if found.is_dead:
            for event in self.client.log(name, run.version):
                pass_on(event, sink)
        else:
            note(f"{name} is {found.state}. Its log: tpuctl logs {name} --follow")
        return found

    def fetch(self, name: str, path: str, target: Path) -> CopyResults:
        """Copy a file or folder of a run's output, as `cp` does from a worker."""
        began_s, run = time.monotonic(), self.store.find(name)
        if run is None or not run.version:
            raise _missing(name)
        found, size_bytes = fetch_part(self.client, run, path.strip("/"), target)
        copied = CopyResult(
            index=0, address=run.url, failure=None, exit_code=0, path=str(target), files=found,
            sent=found, sent_bytes=size_bytes,
        )  # fmt: skip
        seconds = time.monotonic() - began_s
        return CopyResults(workers=(copied,), direction=Direction.DOWN, seconds=seconds)

    def _kernels(self) -> dict[str, int]:
        """Return the kernels that tpuctl created, with their newest versions."""
        client = self.client
        refs = {str(each.get("ref")): each for each in client.kernels(PREFIX)}
        # Another user's kernel may be shared with this account.
        return {
            ref.rpartition("/")[2]: number
            if isinstance(number := each.get("currentVersionNumber"), int)
            else 1
            for ref, each in refs.items()
            if ref.startswith(f"{client.username}/{PREFIX}")
        }

    def _run(self, name: str) -> Run:
        """Return what this machine knows of a run; little of one that was started elsewhere."""
        if run := self.store.find(name):
            return run
        now, client = self.client.clock.now(), self.client
        return Run(name, "", "", client.endpoint.shown, client.username, "", now, 0.0)

    def _tpu(self, run: Run, version: int, state: str, why: str) -> Tpu:
        known, clock = limits(), self.client.clock
        is_over = state in ENDED
        code = "" if run.exit_code is None else f"exit code {run.exit_code}"
        # READY and TERMINATED are what the states are called everywhere.
        shown = "TERMINATED" if is_over else {"RUNNING": "READY"}.get(state, state)
        return Tpu(
            name=run.name,
            zone=None,
            accelerator_type=known["accelerator_type"],
            generation="v5e",
            chips=known["chips"],
            workers=(Worker(0, None, None, shown),),
            state=shown,
            created=run.asked,
            expires=run.ends_by if run.limit_s else None,
            labels={"page": run.url},
            usd_per_hour=0.0,
            usd_so_far=0.0,
            emulated=self.client.endpoint.is_local,
            id=f"{run.owner}/{run.name}/{version}",
            as_of=clock.now(),
            health_description=", ".join(filter(None, (state if is_over else "", why, code))),
            provider=NAME,
            provisioning="free",
            reachable="batch",
        )

    def _deletion(self, name: str, version: int | None) -> TpuDeletion:
        state = self.client.status(name, version)[0] if version else "MISSING"
        kind = limits()["accelerator_type"]
        return TpuDeletion("kernel", name, None, state, kind, usd_per_hour=0.0, provider=NAME)

    def _delete(self, planned: TpuDeletion) -> TpuDeletion:
        version, run = self.client.version_of(planned.name), self.store.find(planned.name)
        if version is None and not (run and run.data_set):
            return replace(planned, outcome="already_deleted")
        if version and self.client.status(planned.name, version)[0] not in ENDED:
            raise WrongStateError(
                f"{planned.name} still runs, and deleting it would not stop it: "
                f"{limits()['stop']}.",
                hint=self.abilities.instead["stop"].replace("NAME", planned.name),
            )
        if version:
            self.client.delete(planned.name)
        if run:
            self.store.forget(drop_data(self.client, self.store, run))
        return replace(planned, outcome="deleted")


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"Run {name} not found on Kaggle.", hint="tpuctl list")
