"""The edge of a watch: it looks and acts through what creates, deletes, copies and runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.cloud.connect import Cloud
from tpuctl.cloud.create import Created, create
from tpuctl.cloud.delete import plan_removal, remove_all
from tpuctl.cloud.follow import Attempt as CreateAttempt
from tpuctl.cloud.journal import COLLECTED, DELETED
from tpuctl.cloud.lookup import Thing, find, group_of
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.cloud.plan import CreateOptions
from tpuctl.cloud.tpu import known_type
from tpuctl.cloud.zones import plan_with_service
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, Direction
from tpuctl.remote.hosts import Host, workers_of
from tpuctl.remote.jobs import start_job, stop_job
from tpuctl.remote.keys import (
    has_os_login,
    key_for_tpus,
    login_user,
    open_access_to,
    with_key,
)
from tpuctl.remote.logs import read_logs
from tpuctl.remote.output import Sink
from tpuctl.remote.run import Command
from tpuctl.settings import state_dir
from tpuctl.supervise.follow import Eyes, Followed, follow_job, show_log
from tpuctl.supervise.models import Attempt, Launch, Memory, Order, TpuSight, WorkersSight
from tpuctl.supervise.observe import ask_workers, see

ATTEMPT, RESUME = "TPUCTL_ATTEMPT", "TPUCTL_RESUME"
"""What a job is told: the number of the attempt, and from the second on that it is to go on."""

TAIL_LINES = 20


@dataclass(frozen=True)
class Login:
    """How to log in to the workers; `is_given` is a user whom OS Login does not change."""

    user: str
    key: Path | None = None
    jump: Host | None = None
    internal_ip: bool = False
    is_given: bool = False


class Edge:
    """Everything that a watch does outside of itself; raises TpuctlErrors."""

    def __init__(
        self,
        cloud: Cloud,
        login: Login,
        *,
        sink: Sink,
        note: Callable[[str], None],
        progress: Callable[[], AbstractContextManager[OnProgress]] = lambda: nullcontext(silent),
    ) -> None:
        self._api, self._journal, self._login = cloud.api, cloud.journal, login
        self._sink, self._note, self._progress = sink, note, progress
        self._thing: Thing | None = None
        self._reach: tuple[str, tuple[Host, ...], Access] | None = None
        self._offsets: dict[str, dict[int, int]] = {}
        self.clock = cloud.api.clock

    def look(self, memory: Memory) -> TpuSight:
        """Ask the service about the TPU; what it cannot be asked is a sight too."""
        try:
            self._thing = thing = self._find(memory)
            maker = thing.queued_resource if isinstance(thing, Node) else None
            queued = self._queued(maker, thing.zone) if thing and maker else None
            was_deleted = self._was_deleted(memory) if thing is None else None
        except TpuctlError as error:
            return TpuSight("unknown", error=error)
        return see(thing, queued, memory, now=self.clock.now(), was_deleted=was_deleted)

    def _find(self, memory: Memory) -> Thing | None:
        """Where the TPU is known to be; while one is being made, wherever that may be."""
        zones: tuple[str | None, ...] = (memory.tpu.zone,) if memory.tpu else ()
        if not zones or memory.creating:
            zones = (*zones, *memory.recipe.zones) or (None,)
        for zone in dict.fromkeys(zones):
            try:
                return find(self._api, memory.name, zone)
            except NotFoundError:
                continue
        return None

    def _queued(self, name: str, zone: str) -> QueuedResource | None:
        try:
            return self._api.get_queued_resource(name, zone=zone)
        except NotFoundError:
            return None

    def _was_deleted(self, memory: Memory) -> bool | None:
        """Whether a command of ours has deleted it while it lived; None where none did."""
        create_id = memory.tpu.create_id if memory.tpu else None
        entry = self._journal.find(create_id) if create_id else None
        if entry is None or entry.outcome not in (COLLECTED, DELETED):
            return None
        return entry.outcome == DELETED

    def ask(self, memory: Memory) -> WorkersSight:
        """Ask every worker of the TPU that was seen last."""
        hosts, access = self._workers()
        kind = known_type(self._node().accelerator_type)
        chips = kind.chips_per_worker if kind else None
        return ask_workers(hosts, access, memory, chips_per_worker=chips)

    def create(self, memory: Memory) -> None:
        """Make another TPU like the one of before, or go on with making it; raises why not."""
        recipe = self._with_key(memory.recipe)
        if recipe.max_usd is not None:
            recipe = replace(recipe, max_usd=recipe.max_usd - memory.spent_usd)
        plan = plan_with_service(self._api, replace(recipe, watch=memory.watch))
        attempts: list[CreateAttempt] = []
        with self._progress() as on_progress:
            made = create(
                self._api,
                plan,
                journal=self._journal,
                on_progress=on_progress,
                on_attempt=attempts.append,
            )
        for attempt in attempts[:-1]:
            self._note(f"{attempt.zone}: {attempt.outcome.replace('_', ' ')}, {attempt.reason}")
        if not isinstance(made, Created):
            raise made.error
        for warning in made.warnings:
            self._note(f"Warning: {warning}")

    def _with_key(self, recipe: CreateOptions) -> CreateOptions:
        """Let the new TPU know our key from the start: then nothing has to wait for it."""
        if has_os_login(recipe.metadata):
            return recipe
        pair = key_for_tpus(state_dir(), self._login.key)
        return replace(recipe, metadata=with_key(recipe.metadata, self._login.user, pair))

    def delete(self, memory: Memory) -> None:
        """Delete the TPU that was seen last, exactly that one, and wait until it is gone."""
        if self._thing is None:
            return
        planned = plan_removal(group_of(self._api, self._thing), name=memory.name)
        (removal,) = remove_all(self._api, [planned], journal=self._journal)
        if removal.error:
            raise removal.error

    def launch(self, memory: Memory, order: Order, step: Launch) -> None:
        """Copy the code and start the job on every worker; raises what stands in the way."""
        if order.code is not None:
            self.copy_code(order.code, order.folder or "")
        self.start(order, step)

    def copy_code(self, folder: str, target: str) -> None:
        """Bring a folder of every worker to the state of one here."""
        hosts, access = self._workers()
        copied = copy(hosts, access, CopyPlan(Direction.UP, None, target, folder))
        if copied.failed:
            raise copied.failures[0]

    def start(self, order: Order, step: Launch) -> None:
        """Start the job on every worker, or on none."""
        hosts, access = self._workers()
        told = {ATTEMPT: str(step.number), **({RESUME: "1"} if step.number > 1 else {})}
        command = Command(order.command, {**order.env, **told}, order.folder)
        started = start_job(hosts, command, access, job=step.job, check=False)
        self._offsets[step.job] = {}
        if started.failed:
            raise started.failures[0]

    def stop_jobs(self, jobs: tuple[str, ...]) -> None:
        """End jobs on every worker that has them."""
        hosts, access = self._workers()
        for job in jobs:
            stopped = stop_job(hosts, access, job=job)
            errors = [w.failure for w in stopped.workers if w.failure]
            bad = [error for error in errors if not isinstance(error, NotFoundError)]
            if bad:
                raise bad[0]

    def follow(
        self,
        memory: Memory,
        order: Order,
        *,
        poll_s: float,
        give_up_lost: Callable[[bool], bool],
    ) -> Followed:
        """Show what the job prints until it ends, fails or hangs, or the TPU is not well."""
        assert memory.open
        job = memory.open.job
        hosts, access = self._workers()

        def is_well() -> bool:
            tpu = self.look(memory)
            if tpu.kind == "unknown":
                give_up_lost(False)
                return True
            return tpu.kind == "usable" and tpu.id == (memory.open and memory.open.tpu_id)

        eyes = Eyes(is_well, give_up_lost, self.clock, poll_s)
        followed = follow_job(
            hosts, access, job, order, self._offsets.get(job), eyes,
            sink=self._sink, note=self._note,
        )  # fmt: skip
        self._offsets[job] = followed.offsets
        return followed

    def show_rest(self, job: str) -> None:
        """Show what a job that has ended said since it was followed last, if that can be had."""
        try:
            hosts, access = self._workers()
            show_log(hosts, access, job, self._offsets.get(job), sink=self._sink)
        except TpuctlError as error:
            self._note(f"Warning: the end of its log could not be read: {error}")

    def tail(self, attempt: Attempt) -> tuple[str, ...]:
        """The last lines that a failed attempt has printed, where they can still be had."""
        said = bytearray()
        try:
            hosts, access = self._workers()
            one = tuple(host for host in hosts if attempt.worker in (None, host.index))[:1]
            read_logs(
                one,
                access,
                sink=lambda _, data: said.extend(data),
                note=lambda _: None,
                job=attempt.job,
                tail=TAIL_LINES,
            )
        except TpuctlError:
            return ()
        return tuple(said.decode("utf-8", "replace").splitlines())

    def _node(self) -> Node:
        assert isinstance(self._thing, Node), "only a usable TPU is asked"
        return self._thing

    def _workers(self) -> tuple[tuple[Host, ...], Access]:
        """The workers of the TPU that was seen last; it gets to know our key once."""
        node, login = self._node(), self._login
        user = login.user if login.is_given else login_user(node, login.user)
        hosts = workers_of(node, user, internal_ip=login.internal_ip)
        if self._reach is None or self._reach[:2] != (node.id, hosts):
            access = open_access_to(self._api, node, user, key=login.key, jump=login.jump)
            self._reach = (node.id, hosts, access)
        return hosts, self._reach[2]
