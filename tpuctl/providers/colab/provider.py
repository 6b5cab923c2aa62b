"""Google Colab as a provider of TPUs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from tpuctl.clock import Clock
from tpuctl.cloud.create import Choice, Created, NotCreated, OnAttempt
from tpuctl.cloud.delete import DeleteResult, TpuDeletion
from tpuctl.cloud.follow import ZoneAttempt
from tpuctl.cloud.gc import GcResult, orphan_of
from tpuctl.cloud.list import TpuList
from tpuctl.cloud.models import Node, shared
from tpuctl.cloud.plan import CreateOptions, CreatePlan
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import Balance, Tpu, Worker, type_facts
from tpuctl.errors import NotFoundError, TpuctlError, TryAgainError, WorkerUnreachableError
from tpuctl.progress import OnProgress, Progress
from tpuctl.providers.batch import delete_each, delete_orphans_still, plan_deletions
from tpuctl.providers.colab import guard
from tpuctl.providers.colab.api import ColabApi, Runtime, Units, accelerator_for, type_of
from tpuctl.providers.colab.create import Creation, find_runtime, is_known_to, open_api, own_plane
from tpuctl.providers.colab.quote import NAME, balance_of, list_offers, plan_runtime
from tpuctl.providers.colab.records import TAKEN_AWAY, Record, Records
from tpuctl.providers.port import Abilities, HostedPlan, Login, ProviderOffer, Reached
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.hosts import EMULATED_PORT, Host
from tpuctl.remote.jobs import ShownTpu, list_jobs
from tpuctl.remote.keys import own_key
from tpuctl.remote.ssh import SharedSsh
from tpuctl.settings import load_settings, state_dir
from tpuctl.start_python import python_command

USER = "root"
_READY_S = 300.0
_FOREIGN = {"owner": "another tool or a browser"}


class Colab:
    """Runtimes of a Colab account."""

    abilities = Abilities(
        NAME,
        "Colab",
        options=frozenset({"ttl_s", "max_units"}),
        instead={
            "zones": "It has no zones: leave out --zone.",
            "spot": "It has no spot runtimes; spot TPUs: --provider cloud-tpu --spot",
            "max_usd": "It is paid in units: limit it with --max-units, or --ttl.",
            "queued": "It has no queue: repeat the command while it exits with 3.",
            "startup_script": "Run the script afterwards: tpuctl run NAME -- sh setup.sh",
            "labels": "It has no labels: put it into the name.",
            "--internal-ip": "It is reached by SSH through Colab only: leave out --internal-ip.",
            "--jump": "It is reached by SSH through Colab only: leave out --jump.",
        },
    )

    def __init__(self, project: str | None, on_warning: Callable[[str], None]) -> None:
        self._on_warning = on_warning
        self._records = Records()

    @cached_property
    def _api(self) -> ColabApi:
        return open_api(None)

    @property
    def clock(self) -> Clock:
        """Colab's time."""
        return self._api.clock

    @property
    def endpoint(self) -> str:
        """The address of the emulator, if that is used."""
        return load_settings({})["colab_endpoint"] or ""

    def recipe(self, name: str) -> CreateOptions | None:
        """Return the type and the limits that a runtime was created with."""
        if (record := self._records.find(name)) is None:
            return None
        ttl = record.expires - record.created if record.expires else None
        ttl_s = ttl.total_seconds() if ttl else None
        kind = record.accelerator_type
        return CreateOptions(name, kind, ttl_s=ttl_s, max_units=record.max_units)

    def why_gone(self, name: str) -> str | None:
        """Return why its guard or a command has deleted a runtime."""
        why = self._records.why_gone(name)
        return None if why == TAKEN_AWAY else why

    def _not_found(self, name: str) -> NotFoundError:
        why = f"; it is gone: {found}" if (found := self._records.why_gone(name)) else ""
        hint = "tpuctl list --provider colab"
        return NotFoundError(f"Runtime {name} not found on Colab{why}.", hint=hint)

    def why_unusable(self) -> str | None:
        """Look for a login of Colab's own: asking with the login of Cloud TPUs takes a request."""
        from tpuctl.settings import home

        token = home() / ".config" / "colab-cli" / "token.json"
        if self.endpoint or token.is_file() or self._records.all():
            return None
        return (
            "no login for Colab was found. Log in with `colab sessions` of google-colab-cli, or "
            "see tpuctl doctor --provider colab"
        )

    def is_recorded(self, name: str) -> bool:
        """Whether we have asked Colab for a runtime of this name."""
        return self._records.find(name) is not None

    def is_used(self) -> bool:
        """Whether a runtime that was requested here may still be there."""
        return bool(self._records.all())

    def was_deleted(self, name: str) -> bool:
        """Whether tpuctl had a runtime of this name."""
        return self._records.why_gone(name) is not None

    def plan(self, options: CreateOptions, *, dry_run: bool = False) -> HostedPlan:
        """Check the type, and read what the account may have and what is left."""
        accelerator_for(options.accelerator_type)
        return plan_runtime(self._api, self._records, options, self._on_warning)

    def create(
        self,
        plan: CreatePlan | HostedPlan,
        *,
        wait: bool,
        timeout_s: float | None,
        on_interrupt: Callable[[], Choice],
        on_progress: OnProgress,
        on_attempt: OnAttempt,
    ) -> Created | NotCreated:
        """Create a runtime, or adopt that of an interrupted create of the same name."""
        assert isinstance(plan, HostedPlan)
        creation = Creation(self._api, self._records, plan, self._on_warning)
        with self._records.creating(plan.name):
            runtime, record = creation.run(
                on_interrupt,
                lambda record: self._wait_for_ssh(record, timeout_s, on_progress) if wait else None,
            )
        return Created(
            **shared(Tpu, self._describe(runtime, record, self._api.units())),
            attempts=(ZoneAttempt(NAME, "ready", "", 0.0),),
            reasons=plan.reasons,
        )

    def _wait_for_ssh(
        self, record: Record, timeout_s: float | None, on_progress: OnProgress
    ) -> None:
        reached = self._reach(record, Login())
        polling = Polling(self._api.clock, timeout_s=timeout_s or _READY_S)
        while True:
            try:
                assert reached.access.shared
                reached.access.shared.start(reached.hosts[0])
                return
            except WorkerUnreachableError as error:
                on_progress(Progress(record.name, polling.waited_s, unit="s", note=str(error)))
                polling.pause(
                    f"{record.name} on Colab cannot be reached,",
                    hint=f"tpuctl wait {record.name}, or: tpuctl delete {record.name}",
                )

    def list(self, zone: str | None) -> TpuList:
        """List every runtime of the account, also those of a browser, with the balance."""
        # Records first: what is created meanwhile is not in the list, and not gone.
        units, records, runtimes = self._api.units(), self._records.all(), self._api.list()
        known = {
            found.id if (found := self._interrupted(record)) else record.runtime_id: record
            for record in self._settled(records, runtimes)
        }
        tpus = tuple(self._describe(each, known.get(each.id), units) for each in runtimes)
        waiting = [record for record in self._records.all() if record.phase == "intended"]
        notes = tuple(
            f"The create of {record.name} on Colab was interrupted, and may have a runtime: repeat "
            "it to adopt it, or see tpuctl gc"
            for record in waiting
            if not self._records.is_being_created(record.name)
        )
        return TpuList(
            None,
            tpus,
            emulated=bool(self.endpoint),
            balances=(balance_of(units),),
            notes=notes,
            place="on Colab",
        )

    def _interrupted(self, record: Record) -> Runtime | None:
        """Return the runtime of a create that was interrupted; None for any other record."""
        if record.phase == "running" or self._records.is_being_created(record.name):
            return None
        return find_runtime(self._api, record)

    def _settled(
        self, records: Sequence[Record], runtimes: Sequence[Runtime]
    ) -> tuple[Record, ...]:
        """Return our records; forget those whose runtime is gone, restart guards that died."""
        alive = {each.id for each in runtimes}
        for record in records:
            is_listed = record.phase == "running" and is_known_to(self._api, record)
            if is_listed and record.runtime_id not in alive:
                self._records.forget(record, TAKEN_AWAY)
            else:
                guard.start_guard(self._records, record.name)
        return self._records.all()

    def _describe(self, runtime: Runtime, record: Record | None, units: Units) -> Tpu:
        ours = type_of(runtime.accelerator)
        now = self._api.clock.now()
        balance = balance_of(units)
        return Tpu(
            name=record.name if record else runtime.id,
            zone=None,
            accelerator_type=ours,
            **type_facts(ours),
            workers=(Worker(0, None, None, "READY"),),
            state="CREATING" if record and record.phase == "intended" else "READY",
            runtime_version=NAME,
            created=record.created if record else now,
            expires=record.expires if record else None,
            labels={} if record else dict(_FOREIGN),
            emulated=bool(self.endpoint),
            id=runtime.id,
            as_of=now,
            provider=NAME,
            provisioning="units",
            units_per_hour=record.units_per_hour if record else None,
            units_left=balance.left,
            hours_left=balance.hours_left,
        )

    def get(self, name: str, zone: str | None) -> Tpu:
        """Read one runtime with its jobs."""
        found = next((tpu for tpu in self.list(None).tpus if name in (tpu.name, tpu.id)), None)
        if found is None:
            raise self._not_found(name)
        if found.labels:
            return found
        record = self._records.find(name)
        try:
            reached = self._reach(record, Login()) if record else None
            jobs = list_jobs(reached.hosts, reached.access) if reached else None
            failure = str(jobs.failures[0]) if jobs and jobs.failures else None
            shown = jobs.jobs if jobs and not failure else None
        except TpuctlError as error:
            shown, failure = None, str(error)
        return ShownTpu(**shared(Tpu, found), jobs=shown, jobs_why_null=failure)

    def plan_delete(self, names: Sequence[str] | None, zone: str | None) -> DeleteResult:
        """Find runtimes by name; one that is not ours only by its id."""
        listed = self.list(None).tpus
        found = {tpu.name: tpu for tpu in listed if names is not None or not tpu.labels}
        for name in names or ():
            record = self._records.find(name)
            if record and name not in found and (late := find_runtime(self._api, record)):
                found[name] = self._describe(late, record, Units(None, None))

        def was_ours(name: str) -> bool:
            record = self._records.find(name)
            if record and self._records.is_being_created(name):
                return False
            if record:
                self._records.forget(record)
            return record is not None or self.was_deleted(name)

        def missing(name: str) -> TpuctlError:
            if not self._records.is_being_created(name):
                return self._not_found(name)
            text = f"{name} on Colab is being created by another command, and not there yet."
            return TryAgainError(
                text, hint=f"Stop that command, or try again: tpuctl delete {name}"
            )

        return plan_deletions(
            names,
            found,
            lambda name: _deletion(found[name]),
            was_ours=was_ours,
            missing=missing,
        )

    def delete(
        self, plan: DeleteResult, *, timeout_s: float, on_progress: OnProgress
    ) -> DeleteResult:
        """Delete runtimes, each checked to be gone afterwards."""
        return delete_each(plan, self._delete)

    def _delete(self, planned: TpuDeletion) -> TpuDeletion:
        runtime_id, why = planned.id, "a user deleted it"
        record = self._records.find(planned.name)
        if record and record.runtime_id not in ("", runtime_id):
            record = None  # that of a later runtime of the same name
        api = own_plane(self._api, record) if record else self._api
        if record:
            host = self._reach(replace(record, runtime_id=runtime_id), Login())
            if host.access.shared:
                host.access.shared.stop(host.hosts[0])
            self._records.expect_end(record, why)
        api.delete(runtime_id)
        if runtime_id in {each.id for each in api.list()}:
            raise TpuctlError(f"{planned.name} on Colab is still listed after its deletion.")
        if record:
            self._records.forget(record, why)
        return replace(planned, outcome="deleted")

    def find_orphans(self, zone: str | None) -> GcResult:
        """Find our runtimes that were left by an interrupted create, or have expired."""
        runtimes = {each.id: each for each in self._api.list()}
        now, found = self._api.clock.now(), []
        for record in self._records.all():
            runtime = runtimes.get(record.runtime_id)
            reason = guard.why_delete(record, now)
            if record.phase == "intended" and not self._records.is_being_created(record.name):
                runtime = find_runtime(self._api, record)
                reason = "created by a command that was interrupted"
                if runtime is None and now - record.created > guard.LANDS_WITHIN:
                    self._records.forget(record)
            if runtime and reason:
                tpu = self._describe(runtime, record, Units(None, None))
                found.append(orphan_of(_deletion(tpu), reason))
        return GcResult(tuple(found)).summed()

    def delete_orphans(self, found: GcResult, on_progress: OnProgress) -> GcResult:
        """Delete the orphans that still are orphans."""
        still = {each.name for each in self.find_orphans(None).found}
        return delete_orphans_still(found, lambda orphan: orphan.name in still, self._delete)

    def offers(self, accelerator_type: str | None) -> tuple[ProviderOffer, ...]:
        """Offer the accelerators that Colab has, with the balance and whether we may have them."""
        return list_offers(self._api, self._records, accelerator_type)

    def balance(self) -> Balance:
        """Read the compute units."""
        return balance_of(self._api.units())

    def reach(self, name: str, login: Login) -> Reached:
        """Return the one worker of a runtime, over the SSH connection that commands share."""
        record = self._records.find(name)
        if record is None or record.phase != "running":
            raise self._not_found(name)
        for flag, given in (
            ("--internal-ip", login.internal_ip),
            ("--jump", login.jump),
            ("--iap", login.iap),
        ):
            if given:
                raise self.abilities.refuse(flag)
        guard.start_guard(self._records, name)
        return self._reach(record, login)

    def _reach(self, record: Record, login: Login) -> Reached:
        key = own_key(state_dir(), login.key)
        errors = self._records.path(record.name, "ssh-error")
        arguments = (record.name, f"{key.path}.pub", str(errors))
        host_keys = HostKeys(state_dir() / "known_hosts")
        shared_ssh = SharedSsh(
            f"colab.{record.runtime_id}",
            tuple(python_command("tpuctl.providers.colab.bridge", *arguments)),
            key.path,
            host_keys.path,
            errors,
        )
        host = Host(
            0, record.runtime_id, login.user or USER, target=record.name,
            key_alias=shared_ssh.alias,
        )  # fmt: skip
        access = Access((key.path,), host_keys, on_warning=login.on_warning, shared=shared_ssh)
        emulated = {EMULATED_PORT: "0"} if self.endpoint else {}
        node = Node(
            record.name, "", record.runtime_id, record.accelerator_type, NAME, "READY", "UNKNOWN",
            record.created, metadata=emulated,
        )  # fmt: skip
        return Reached((host,), access, node)


def job_states(record: Record) -> dict[str, str]:
    """Ask a runtime for the states of its jobs, by name; raises TpuctlErrors."""
    reached = Colab(None, lambda text: None)._reach(record, Login())
    found = list_jobs(reached.hosts, reached.access)
    return {job.job: state.state for job in found.jobs for state in job.workers}


def _deletion(tpu: Tpu) -> TpuDeletion:
    kind = tpu.accelerator_type
    return TpuDeletion(
        "runtime", tpu.name, None, tpu.state, kind, tpu.chips, provider=NAME, id=tpu.id
    )
