"""Follow a job on GKE to its end: the logs of all its pods, its attempts, its exit code."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tpuctl.cloud.error_table import checks_replies
from tpuctl.errors import (
    DeadlineError,
    InvalidInputError,
    JobLostError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    ScriptFailedError,
    StoppedError,
    TpuctlError,
    TryAgainError,
)
from tpuctl.outcome import Outcome
from tpuctl.providers.gke.client import CORE, Cluster, Json
from tpuctl.providers.gke.manifest import NODES
from tpuctl.providers.gke.runs import CONTAINER_KINDS, Note, find, run_store, why_waiting
from tpuctl.remote.output import Output, Sink
from tpuctl.units import format_duration

T = TypeVar("T")
_MAX_COUNT = 10_000
_POLL_S = 10.0
_JOBSET = "jobset.sigs.k8s.io"
_INDEX = "batch.kubernetes.io/job-completion-index"
_OOM = "OOMKilled"
_TRIES = 5
# The control plane of a zonal cluster is away for minutes during an upgrade.
_GIVE_UP_S = 3600.0
_NO_ANSWER = (TryAgainError, NotLoggedInError)
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT")


@dataclass(frozen=True)
class Attempt:
    """One attempt and how it ended; `exit_code` is the first that is not zero, by worker."""

    cause: Literal["preempted", "crash", "done", "time_limit", "running"]
    exit_code: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class StartedClusterRun(Outcome):
    """A job that keeps running without us."""

    name: str
    provider: str
    context: str
    chips: int


@dataclass(frozen=True)
class ClusterRun(Outcome):
    """A job on GKE that has ended: its exit code, and the outcome of each attempt."""

    name: str
    provider: str
    context: str
    state: str
    returncode: int | None
    attempts: tuple[Attempt, ...]
    why: str = field(default="", metadata={"internal": True})

    @property
    def exit_code(self) -> int:
        """The job's exit code; our own error's where it is unknown."""
        is_limit = bool(self.failures) and isinstance(self.failures[0], DeadlineError)
        return super().exit_code if is_limit or self.returncode is None else self.returncode

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why the job failed."""
        if self.state == "Completed":
            return ()
        if self.attempts[-1].cause == "time_limit":
            hint = "Run it again with a longer --ttl, from its checkpoints."
            return (DeadlineError(f"{self.name} reached its time limit.", hint=hint),)
        if self.returncode is None:
            text = f"{self.name} is {self.state}, and its exit code is unknown. {self.why}".strip()
            return (JobLostError(text, hint=f"kubectl describe jobset {self.name}"),)
        last = self.attempts[-1]
        text = f"{self.name} failed on worker {last.worker} with exit code {self.returncode}."
        return (ScriptFailedError(f"{text} {self.why}".strip()),)


def pods_of(cluster: Cluster, name: str) -> list[Json]:
    """Read the pods of a job, in the order of its workers."""
    selector = f"{_JOBSET}/jobset-name={name}"
    found = cluster.list(f"{CORE}/{cluster.namespace}/pods", labelSelector=selector)
    return sorted(found, key=worker_of)


def worker_of(pod: Json) -> int:
    """Return the number of a pod among all workers: slice by slice."""
    meta = pod.get("metadata") or {}
    labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    spec = pod.get("spec") or {}
    index, part = labels.get(_INDEX, "0"), labels.get(f"{_JOBSET}/job-index", "0")
    count = labels.get(NODES, "1")
    return int(part) * int(count) + int(index) if spec else 0


def exit_of(pods: list[Json]) -> tuple[int | None, int | None]:
    """Return the first exit code that is not zero and its worker; 0 where all have ended well.

    A job ends with its first failure, so that pods which were stopped for it count last.
    """
    codes = [(worker_of(pod), code) for pod in pods if (code := _code(pod)) is not None]
    failed = [each for each in codes if each[1]]
    own = [each for each in failed if each[1] not in (137, 143)]
    own = own or [each for each in failed if each[1] == 137] or failed
    if own:
        return own[0][1], own[0][0]
    return (0, None) if codes and len(codes) == len(pods) else (None, None)


def _code(pod: Json) -> int | None:
    status = pod.get("status") or {}
    states = [
        each.get("state") or {} for kind in CONTAINER_KINDS for each in status.get(kind) or ()
    ]
    codes = [state["terminated"].get("exitCode") for state in states if state.get("terminated")]
    known = [code for code in codes if isinstance(code, int)]
    is_over = status.get("phase") in ("Succeeded", "Failed")
    return next((code for code in known if code), 0 if known and is_over else None)


def terminal_state(job_set: Json) -> tuple[str, str]:
    """Return Completed or Failed and why, or nothing while it has not ended."""
    for each in (job_set.get("status") or {}).get("conditions") or ():
        if each.get("type") in ("Completed", "Failed") and each.get("status") == "True":
            return str(each["type"]), f"{each.get('message') or ''} ({each.get('reason')})"
    return "", ""


def _why_ended(pods: list[Json]) -> str:
    """Return what Kubernetes says about the end of pods beyond their exit codes."""
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("reason"):
            return f"{status['reason']}: {status.get('message') or 'no reason given'}"
        states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
        if any((state.get("terminated") or {}).get("reason") == _OOM for state in states):
            return f"{_OOM}: worker {worker_of(pod)} used more memory than it may"
    return ""


async def _in_thread(action: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread that is not waited for when this ends by Ctrl-C."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(set_it: Callable[..., None], value: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(lambda: None if future.done() else set_it(value))

    def act() -> None:
        try:
            result = action(*arguments)
        except BaseException as error:
            resolve(future.set_exception, error)
        else:
            resolve(future.set_result, result)

    threading.Thread(target=act, daemon=True).start()
    return await future


class Follower:
    """Passes on the logs of a job's pods while it watches the job, across its attempts."""

    def __init__(self, cluster: Cluster, name: str, sink: Sink, note: Note) -> None:
        self._cluster, self._name, self._note = cluster, name, note
        self._sink = sink
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._attempts: list[Attempt] = []
        self._last: list[Json] = []
        self.waits = self._uid = ""
        self._is_unread = False

    async def run(self) -> ClusterRun:
        """Follow the job to its end."""
        job_set = await self._read()
        count = _size(job_set)
        async with Output(tuple(range(count)), self._sink) as output:
            while True:
                state, why = terminal_state(job_set)
                pods = await self._ask(pods_of)
                self._observe(job_set, pods)
                for pod in pods:
                    self._follow_pod(output, pod)
                if state:
                    break
                await self._note_wait(job_set, pods)
                await _in_thread(self._cluster.clock.sleep, _POLL_S)
                job_set = await self._read()
            await asyncio.gather(*self._readers.values())
        return self._conclude(job_set, state, why)

    async def _read(self) -> Json:
        found = await self._ask(find)
        uid = str(found["metadata"]["uid"]) if found else ""
        self._uid = self._uid or uid
        if found is None or uid != self._uid:
            text = f"{self._name} was deleted while it was followed."
            raise NotFoundError(text, hint="tpuctl list --provider gke")
        return found

    async def _ask(self, action: Callable[[Cluster, str], T]) -> T:
        """Ask about the job until the cluster answers; the job keeps running without it."""
        clock, has_warned = self._cluster.clock, False
        began_s = clock.elapsed_s()
        while True:
            try:
                found = await _in_thread(action, self._cluster, self._name)
            except _NO_ANSWER as error:
                if clock.elapsed_s() - began_s > _GIVE_UP_S:
                    raise
                if not has_warned:
                    hint = f" {error.hint}." if isinstance(error, NotLoggedInError) else ""
                    most = f"Trying again for {format_duration(_GIVE_UP_S)}"
                    self._note(f"Warning: {error}{hint} {most}; {self._name} is not affected.")
                has_warned = True
                await _in_thread(clock.sleep, _POLL_S)
            else:
                if has_warned:
                    self._note(f"The cluster {self._cluster.context.name} answers again.")
                return found

    def _follow_pod(self, output: Output, pod: Json) -> None:
        uid, status = str(pod["metadata"]["uid"]), pod.get("status") or {}
        for kind in CONTAINER_KINDS:
            for each in status.get(kind) or ():
                key, state = f"{uid}/{each['name']}", each.get("state") or {}
                ended = state.get("terminated")
                # What fetches the code says something only where it fails.
                silent = kind == "initContainerStatuses" and not (ended and ended.get("exitCode"))
                if key not in self._readers and not silent and (ended or "running" in state):
                    reading = self._read_log(output, pod, str(each["name"]))
                    self._readers[key] = asyncio.create_task(reading)

    async def _read_log(self, output: Output, pod: Json, container: str) -> None:
        loop, worker = asyncio.get_running_loop(), worker_of(pod)

        def read() -> None:
            try:
                for line in log_lines(self._cluster, pod, container, follow=True, note=self._note):
                    asyncio.run_coroutine_threadsafe(output.take(worker, 1, line), loop).result()
            except TpuctlError as error:
                # The job and its exit code do not depend on who may read its output.
                if not self._is_unread:
                    self._note(f"Warning: the output is not shown: {error}")
                self._is_unread = True

        await _in_thread(read)

    def _observe(self, job_set: Json, pods: list[Json]) -> None:
        """Count the restarts, and how the attempt before each has ended."""
        status = job_set.get("status") or {}
        restarts = _count(status.get("restarts") or 0)
        counted = int(status.get("restartsCountTowardsMax") or 0)
        seen = sum(each.cause == "crash" for each in self._attempts)
        while len(self._attempts) < restarts:
            crashed = counted > seen
            code, worker = exit_of(self._last) if crashed else (None, None)
            self._attempts.append(Attempt("crash" if crashed else "preempted", code, worker))
            seen += crashed
            why = "it crashed" if crashed else "it was disrupted"
            said = _why_ended(self._last)
            why += f" ({said})" if said else ""
            self._note(f"{self._name} restarts, attempt {len(self._attempts) + 1}: {why}.")
        attempt = str(restarts)
        label = f"{_JOBSET}/restart-attempt"
        self._last = [
            pod
            for pod in pods
            if (pod["metadata"].get("labels") or {}).get(label, attempt) == attempt
        ]

    async def _note_wait(self, job_set: Json, pods: list[Json]) -> None:
        """Report once what a job waits for."""
        why = await self._ask(lambda cluster, _: why_waiting(cluster, job_set, pods))
        waits = why.rstrip(".")
        if waits and waits != self.waits:
            self._note(f"{self._name} waits: {waits}. To end it: tpuctl delete {self._name}")
        self.waits = waits

    def _conclude(self, job_set: Json, state: str, why: str) -> ClusterRun:
        code, worker = exit_of(self._last)
        cause = "done" if state == "Completed" else "crash"
        cause = "time_limit" if "FailJobSet" in why else cause
        if run := run_store().find(self._name):
            run_store().write(run, phase="home", exit_code=code)
        return ClusterRun(
            name=self._name,
            provider="gke",
            context=self._cluster.context.name,
            state=state,
            returncode=0 if state == "Completed" else code,
            attempts=(*self._attempts, Attempt(cause, code, worker)),  # type: ignore[arg-type]
            why=". ".join(filter(None, (_why_ended(self._last), why))),
        )


@checks_replies("GKE")
def follow(cluster: Cluster, name: str, *, sink: Sink, note: Note) -> ClusterRun:
    """Follow a job to its end."""
    follower = Follower(cluster, name, sink, note)
    try:
        return asyncio.run(follower.run())
    except KeyboardInterrupt:
        what = "waiting" if follower.waits else "running"
        raise StoppedError(
            f"Interrupted; {name} keeps {what} in the cluster {cluster.context.name}.",
            hint=f"Follow it: tpuctl logs {name} --follow. Stop it: tpuctl stop {name}",
        ) from None
    except (TryAgainError, NotLoggedInError, PermissionDeniedError) as error:
        first = "" if isinstance(error, TryAgainError) else f"{error.hint}. "
        error.hint = (
            f"{first}{name} is not affected. To follow it again: tpuctl logs {name} --follow"
        )
        raise


def log_lines(
    cluster: Cluster, pod: Json, container: str, *, follow: bool, note: Note
) -> Iterator[bytes]:
    """Read a log line by line, and resume after a broken connection."""
    name, last, failures = str(pod["metadata"]["name"]), b"", 0
    path = f"{CORE}/{cluster.namespace}/pods/{name}/log"
    query: dict[str, Any] = {"container": container, "timestamps": "true"}
    query |= {"follow": "true"} if follow else {}
    while True:
        since = {"sinceTime": f"{last[:19].decode()}Z"} if last else {}
        why: TpuctlError | None = None
        try:
            try:
                for stamp, text in _stamped(cluster.lines(path, **query, **since), last):
                    last, failures = max(last, stamp), 0
                    yield text
            except _NO_ANSWER as error:
                if not follow and isinstance(error, NotLoggedInError):
                    raise
                why, failures = error, failures + 1
            # A job may be silent for hours, and a stream may end before its container does.
            if follow and _is_running(cluster, name, container):
                failures = 0
            elif not why:
                return
        except (NotFoundError, InvalidInputError):
            # Its pod is gone, or has not started.
            return
        except _NO_ANSWER:
            failures = 0 if follow else failures  # `Follower._ask` decides when to stop.
        if failures >= _TRIES:
            note(f"Warning: the end of the log of {name} is missing: {why}")
            return
        cluster.clock.sleep(_POLL_S)


def _stamped(lines: Iterator[bytes], seen: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield times and texts after a time: the API goes back to the whole second."""
    for line in lines:
        stamp, _, text = line.partition(b" ")
        if not _STAMP.match(stamp):
            yield seen, line  # A message of the kubelet itself, such as that a file is gone.
        elif stamp > seen:
            yield stamp, text


def _is_running(cluster: Cluster, pod: str, container: str) -> bool:
    status = cluster.get(f"{CORE}/{cluster.namespace}/pods/{pod}").get("status") or {}
    containers = (each for kind in CONTAINER_KINDS for each in status.get(kind) or ())
    states = (each.get("state") or {} for each in containers if each.get("name") == container)
    return any("running" in state for state in states)


def _size(job_set: Json) -> int:
    jobs = (job_set.get("spec") or {}).get("replicatedJobs") or ()
    pods = (
        (each.get("replicas") or 1, each["template"]["spec"].get("parallelism") or 1)
        for each in jobs
    )
    return _count(sum(int(replicas) * int(parallelism) for replicas, parallelism in pods))


def _count(number: Any) -> int:
    """Read a number of restarts or pods, all of which are kept in memory."""
    return min(int(number), _MAX_COUNT)
