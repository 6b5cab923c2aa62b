"""What to change, the predicted gain, and how. Pure.

A prediction removes CPU time from stages and divides the rest into the vCPU time that the pipeline
got. Advice without a predicted gain is not given. Rules for tf.data pipelines are in
`advice_tf_data`; this module has those for Python pipelines (PyTorch, Grain, any iterable) and the
shared ones.
"""

import math
from collections.abc import Callable

from tpuctl.profiling import advice_tf_data as tf_data
from tpuctl.profiling.case import PYTHON_KINDS, Situation
from tpuctl.profiling.models import Advice
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.whatif import Change

# More threads or workers cost memory and start-up time, and do not make storage faster.
MOST_WAITING_LANES = 32
# Advice that costs money: other or more machines.
COSTS_MONEY = ("more_vcpus", "data_service")
Rule = Callable[[Situation], Advice | None]


def advise(situation: Situation) -> tuple[Advice, ...]:
    """Collect the advice that fits the verdict: free advice first, then by gain.

    Gains beyond saturating the device count as equal; then the order of the rules decides.
    """
    measured = situation.case.measured
    is_python = measured.kind in PYTHON_KINDS or "loader" in measured.settings
    rules = (PYTHON_RULES if is_python else TF_DATA_RULES).get(situation.finding.verdict, ())
    given = [advice for rule in rules if (advice := rule(situation))]
    least = situation.case.examples_per_s * (1 + load_facts("relative_costs.json")["least_gain"])
    worth = [a for a in given if not (a.predicted_examples_per_s or least) < least]
    enough = situation.case.device_examples_per_s or math.inf
    return tuple(
        sorted(
            worth,
            key=lambda a: (a.code in COSTS_MONEY, -min(enough, a.predicted_examples_per_s or 0.0)),
        )
    )


def _more_vcpus(at: Situation) -> Advice | None:
    """A host with more vCPUs, if they are the bottleneck."""
    needed, device = at.vcpus.needed_to_saturate, at.case.device_examples_per_s
    if needed is None or device is None or needed <= at.usable_vcpus:
        return None
    high, used = at.vcpus.high or needed, at.vcpus.used or 0.0
    far = needed > at.case.limits.longest_extrapolation * used
    doubt = f", extrapolated far from {used:.2g}" if far else ""
    return at.advice(
        "more_vcpus",
        f"Use a host with {math.ceil(needed)} vCPUs: {at.vcpus.low:.1f} to {high:.1f} are needed"
        f"{doubt}.",
        "tpuctl types shows how many vCPUs each TPU host has",
        device,
    )


def _neighbours(at: Situation) -> Advice | None:
    """Fewer other processes."""
    cpu = at.case.own + at.case.others
    rate = at.case.examples_per_s * cpu / at.case.own if at.case.own else None
    return at.advice(
        "neighbours",
        f"Free the {at.case.others:.0%} of the vCPUs that other processes use.",
        "find them with top, then stop them or move the training",
        rate,
    )


def _quota(at: Situation) -> Advice | None:
    """A larger share of the machine for this container."""
    visible = at.case.free.signals.vcpus_visible
    return at.advice(
        "quota",
        f"Raise the CPU limit: the container may use {at.usable_vcpus:g} of {visible} vCPUs.",
        "raise the CPU limit of the container (docker --cpus, Kubernetes resources.limits.cpu)",
        at.case.examples_per_s * visible / at.usable_vcpus,
    )


def _workers(at: Situation) -> Advice | None:
    """More worker processes, if the existing ones leave vCPUs idle."""
    count = max(2, math.ceil(at.usable_vcpus))
    measured = at.case.measured
    in_processes = measured.settings.get("num_workers") or 0
    if not at.total_ms or in_processes >= count or at.case.own >= at.case.limits.busy:
        return None
    if not in_processes and at.finding.verdict == "stolen" and at.case.has_threads:
        return None
    line = {
        "torch": f"DataLoader(..., num_workers={count}, persistent_workers=True)",
        "grain": f"dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers={count}))",
        "py_dataset": f"super().__init__(workers={count}, use_multiprocessing=True) in "
        f"{measured.settings.get('loader_class')}",
    }.get(
        measured.settings.get("loader", measured.kind),
        "turn it into a tf.data.Dataset, a Grain data set or a PyTorch DataLoader and run its "
        f"functions in {count} workers",
    )
    names = ", ".join(s.name for s in at.stages if s.is_notable) or "the pipeline"
    return at.advice(
        "workers",
        f"Run {names} in {count} processes; one interpreter cannot use more than one vCPU.",
        line,
        at.usable_vcpus * max(0.0, 1 - at.case.others) * 1000 / at.total_ms,
        Change("workers", count) if measured.kind in ("torch", "grain") else None,
    )


def _wait_together(at: Situation) -> Advice | None:
    """More calls that wait at the same time, which needs no vCPU."""
    index = at.finding.bottleneck
    if index is None:
        return None
    stage, measured = at.stages[index], at.case.measured
    kind = measured.settings.get("loader", measured.kind)
    count = min(MOST_WAITING_LANES, 4 * (stage.parallelism or measured.lanes or 1))
    limits = [count * 1000 / sum(each.active_ms_per_example for each in at.stages)]
    if at.full_rate:
        limits.append(at.full_rate)
    lines = {
        "torch": f"DataLoader(..., num_workers={count})",
        "grain": f"to_iter_dataset(grain.ReadOptions(num_threads={count}))",
        "py_dataset": f"super().__init__(workers={count}) in "
        f"{measured.settings.get('loader_class')}",
    }
    threads = f"concurrent.futures.ThreadPoolExecutor({count}).map({stage.name}, ...)"
    return at.advice(
        "parallel_calls",
        f"Let {count} calls of {stage.name} wait at the same time; waiting needs no vCPU.",
        lines.get(kind, threads),
        min(limits),
        Change("workers", count) if kind == "torch" else None,
    )


def _buffer_batches(at: Situation) -> Advice | None:
    lines = {
        "torch": "DataLoader(..., num_workers=2, prefetch_factor=8)",
        "grain": "grain.ReadOptions(prefetch_buffer_size=...) with room for several batches",
    }
    return at.advice(
        "prefetch",
        "Batches arrive unevenly: buffer more of them.",
        lines.get(at.case.measured.kind, "read ahead in a thread with a queue of 8 batches"),
        None,
    )


def _cache_shards(at: Situation) -> Advice | None:
    """Run the functions once, or several times if they are random, and store the results."""
    kept = [s for s in at.stages if s.op not in ("Batch", "Transfer") and s.name != "collate"]
    share = sum(stage.share_of_cpu for stage in kept)
    if share < at.case.limits.residual or at.case.measured.kind == "iterable":
        return None
    saved = sum(stage.cpu_ms_per_example for stage in kept)
    names = ", ".join(s.name for s in kept if s.is_notable)
    random = ", ".join(s.name for s in kept if s.is_random)
    how = f"{tf_data.VARIANTS} times, since {random} is random," if random else "once"
    variants = f" --variants {tf_data.VARIANTS}" if random else ""
    return at.advice(
        "cached_variants",
        f"Run {names} {how} and keep the results.",
        f"tpuctl data cache {tf_data.function_of(at)} DST{variants}",
        at.rate_with(max(at.total_ms - saved, tf_data.READ_SHARE * at.total_ms)),
    )


def _fewer_bytes(at: Situation) -> Advice | None:
    """Convert to floats on the device."""
    return at.advice(
        "fewer_bytes",
        "Send the numbers as stored, one byte each, and convert them to floats on the device.",
        "keep arrays uint8 until the step; there: x.astype(jax.numpy.bfloat16) / 255"
        if at.case.measured.kind in PYTHON_KINDS
        else "end the pipeline in tf.uint8; in the step: tf.cast(images, tf.bfloat16) / 255",
        None,
    )


PYTHON_RULES: dict[str, tuple[Rule, ...]] = {
    "vcpu": (_cache_shards, _more_vcpus),
    "stolen": (_neighbours, _workers, _cache_shards, _more_vcpus),
    "throttled": (_quota, _cache_shards, _more_vcpus),
    "gil": (_workers,),
    "serial": (_workers,),
    "io": (_wait_together,),
    "threadpool": (_wait_together,),
    "bursty": (_buffer_batches,),
    "transfer": (_fewer_bytes,),
}
CPU_RULES: tuple[Rule, ...] = (
    tf_data.presize,
    tf_data.scaled_decode,
    tf_data.parallel_calls,
    tf_data.cache,
    tf_data.variants,
    tf_data.vectorise,
    tf_data.data_service,
    _more_vcpus,
    tf_data.order,
)
TF_DATA_RULES: dict[str, tuple[Rule, ...]] = {
    "vcpu": CPU_RULES,
    "stolen": (_neighbours, *CPU_RULES),
    "throttled": (_quota, *CPU_RULES),
    "gil": (tf_data.leave_python,),
    "io": (tf_data.threadpool,),
    "threadpool": (tf_data.threadpool,),
    "serial": (tf_data.parallel_calls, tf_data.prefetch),
    "transfer": (_fewer_bytes,),
    "bursty": (tf_data.smooth,),
    "unknown": (tf_data.vectorise,),
}
