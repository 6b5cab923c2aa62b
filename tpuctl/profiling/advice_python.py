"""What to change in a pipeline of Python functions: PyTorch, Grain, or any iterable. Pure."""

import math

from tpuctl.profiling.models import Advice
from tpuctl.profiling.rule_inputs import Rule, Situation, more_vcpus, neighbours, quota
from tpuctl.profiling.whatif import Change

MOST_WAITING_LANES = 32


def _lanes(at: Situation) -> int:
    return at.case.measured.lanes or 1


def _workers_line(at: Situation, count: int) -> str:
    """The line that makes a pipeline run in so many processes."""
    kind = at.case.measured.kind
    if kind == "torch":
        return f"DataLoader(..., num_workers={count}, persistent_workers=True)"
    if kind == "grain":
        return f"dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers={count}))"
    return (
        "make it a tf.data.Dataset, a Grain data set or a PyTorch DataLoader and run its "
        f"functions in {count} workers"
    )


def _workers(at: Situation) -> Advice | None:
    """More processes, where those that there are leave vCPUs idle."""
    usable = at.case.free.signals.vcpus_usable
    count = max(2, math.ceil(usable))
    in_processes = at.case.measured.settings.get("num_workers") or 0
    if not at.total_ms or in_processes >= count or at.case.own >= at.case.limits.busy:
        return None
    idle = max(0.0, usable * (1 - at.case.others))
    names = ", ".join(s.name for s in at.stages if s.is_notable) or "the pipeline"
    return at.advice(
        "workers",
        f"Run {names} in {count} processes; one interpreter cannot use more than one vCPU.",
        _workers_line(at, count),
        idle * 1000 / at.total_ms,
        Change("workers", count) if at.case.measured.kind != "iterable" else None,
    )


def _wait_together(at: Situation) -> Advice | None:
    """More calls that wait at the same time; they need no vCPU."""
    index = at.finding.bottleneck
    if index is None:
        return None
    stage, lanes = at.stages[index], _lanes(at)
    count = min(MOST_WAITING_LANES, 4 * lanes)
    active_ms = sum(each.active_ms_per_example for each in at.stages)
    limits = [count * 1000 / active_ms]
    if at.total_ms:
        limits.append(at.case.free.signals.vcpus_usable * 1000 / at.total_ms)
    lines = {
        "torch": f"DataLoader(..., num_workers={count})",
        "grain": f"to_iter_dataset(grain.ReadOptions(num_threads={count}))",
    }
    threads = f"concurrent.futures.ThreadPoolExecutor({count}).map({stage.name}, ...)"
    return at.advice(
        "parallel_calls",
        f"Let {count} calls of {stage.name} wait at the same time; they need no vCPU for that.",
        lines.get(at.case.measured.kind, threads),
        min(limits),
        Change("workers", count) if at.case.measured.kind == "torch" else None,
    )


def _ready_batches(at: Situation) -> Advice | None:
    lines = {
        "torch": "DataLoader(..., num_workers=2, prefetch_factor=8)",
        "grain": "grain.ReadOptions(prefetch_buffer_size=...) with room for several batches",
    }
    return at.advice(
        "prefetch",
        "Batches come unevenly: keep more of them ready.",
        lines.get(at.case.measured.kind, "read ahead in a thread with a queue of 8 batches"),
        None,
    )


def _cache(at: Situation) -> Advice | None:
    """Decode once: write what comes before the random part to shards."""
    deterministic = [s for s in at.stages if not s.is_random and s.op not in ("Batch", "Transfer")]
    share = sum(stage.share_of_cpu for stage in deterministic)
    if share < at.case.limits.residual or at.case.measured.kind == "iterable":
        return None
    saved = sum(stage.cpu_ms_per_example for stage in deterministic)
    names = ", ".join(s.name for s in deterministic if s.is_notable)
    return at.advice(
        "cached_variants",
        f"Run {names} once and keep the elements, some variants of each where there is chance "
        "in it.",
        "tpuctl data cache TARGET DST --variants 4",
        at.rate_with(max(at.total_ms - saved, 0.05 * at.total_ms)),
    )


def _fewer_bytes(at: Situation) -> Advice | None:
    return at.advice(
        "fewer_bytes",
        "Send the numbers as they were stored, one byte each, and make them floats on the device.",
        "keep arrays uint8 until the step; there: x.astype(jax.numpy.bfloat16) / 255",
        None,
    )


PYTHON_RULES: dict[str, tuple[Rule, ...]] = {
    "vcpu": (_cache, more_vcpus),
    "stolen": (neighbours, _cache, more_vcpus),
    "throttled": (quota, _cache, more_vcpus),
    "gil": (_workers,),
    "serial": (_workers,),
    "io": (_wait_together,),
    "threadpool": (_wait_together,),
    "bursty": (_ready_batches,),
    "transfer": (_fewer_bytes,),
}
