"""What to change, the predicted gain, and how. Pure.

A prediction removes CPU time from stages and divides the rest into the vCPU time that the pipeline
got. Advice without a predicted gain is not given. Rules for tf.data pipelines are in
`advice_tf_data`; this module has those for Python pipelines (PyTorch, Grain, any iterable) and the
shared ones.
"""

import math
from collections.abc import Callable

from tpuctl.profiling import advice_tf_data as tf_data
from tpuctl.profiling.called import place_of
from tpuctl.profiling.case import PYTHON_KINDS, AdviceInputs, lock_is_held
from tpuctl.profiling.models import Advice
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.whatif import Change

# More threads or workers cost memory and start-up time, and do not make storage faster.
MOST_WAITING_LANES = 32
# Advice that costs money: other or more machines.
COSTS_MONEY = ("more_vcpus", "data_service")
Rule = Callable[[AdviceInputs], Advice | None]


def advise(inputs: AdviceInputs) -> tuple[Advice, ...]:
    """Collect the advice that fits the verdict: free advice first, then by gain.

    Gains beyond saturating the device count as equal; then the order of the rules decides.
    """
    measured = inputs.case.measured
    is_python = measured.kind in PYTHON_KINDS or "loader" in measured.settings
    rules = (PYTHON_RULES if is_python else TF_DATA_RULES).get(inputs.finding.verdict, ())
    given = [advice for rule in rules if (advice := rule(inputs))]
    least = inputs.case.examples_per_s * (1 + load_facts("relative_costs.json")["least_gain"])
    worth = [a for a in given if not (a.predicted_examples_per_s or least) < least]
    enough = inputs.case.device_examples_per_s or math.inf
    return tuple(
        sorted(
            worth,
            key=lambda a: (a.code in COSTS_MONEY, -min(enough, a.predicted_examples_per_s or 0.0)),
        )
    )


def _more_vcpus(inputs: AdviceInputs) -> Advice | None:
    """A host with more vCPUs, if they are the bottleneck."""
    needed, device = inputs.vcpus.needed_to_saturate, inputs.case.device_examples_per_s
    if needed is None or device is None or needed <= inputs.usable_vcpus:
        return None
    high, used = inputs.vcpus.high or needed, inputs.vcpus.used or 0.0
    far = needed > inputs.case.limits.longest_extrapolation * used
    doubt = f", extrapolated far from {used:.2g}" if far else ""
    count, lanes = math.ceil(needed), max((s.parallelism or 1 for s in inputs.stages), default=1)
    few = inputs.case.measured.kind in PYTHON_KINDS and lanes < count
    workers = f" and {count} workers instead of {lanes}" if few else ""
    return inputs.advice(
        "more_vcpus",
        f"Use a host with {count} vCPUs{workers}: {inputs.vcpus.low:.1f} to {high:.1f} vCPUs "
        f"are needed{doubt}.",
        "tpuctl types shows how many vCPUs each TPU host has",
        device,
    )


def _neighbours(inputs: AdviceInputs) -> Advice | None:
    """Fewer other processes."""
    used = inputs.case.own * inputs.usable_vcpus
    free = used + inputs.case.others * inputs.usable_vcpus
    # Threads that are not there cannot use what becomes free.
    gets = min(free, max(used, inputs.case.demand or free))
    rate = inputs.case.examples_per_s * gets / used if used else None
    return inputs.advice(
        "neighbours",
        f"Free the {inputs.case.others:.0%} of the vCPUs that other processes use.",
        "find them with top, then stop them or move the training",
        rate,
    )


def _quota(inputs: AdviceInputs) -> Advice | None:
    """A larger share of the machine for this container."""
    visible = inputs.case.free.signals.vcpus_visible
    return inputs.advice(
        "quota",
        f"Raise the CPU limit: the container may use {inputs.usable_vcpus:g} of {visible} vCPUs.",
        "raise the CPU limit of the container (docker --cpus, Kubernetes resources.limits.cpu)",
        inputs.case.examples_per_s * visible / inputs.usable_vcpus,
    )


def _workers(inputs: AdviceInputs) -> Advice | None:
    """More worker processes, if the existing ones leave vCPUs idle."""
    count = max(2, math.ceil(inputs.usable_vcpus))
    measured = inputs.case.measured
    in_processes = measured.settings.get("num_workers") or 0
    loader = measured.settings.get("loader", measured.kind)
    if not inputs.total_ms or in_processes >= count or inputs.case.own >= inputs.case.limits.busy:
        return None
    if not in_processes and inputs.finding.verdict == "stolen" and inputs.case.has_threads:
        return None
    in_threads = loader == "py_dataset" and not lock_is_held(inputs.case)
    name = measured.settings.get("loader_class")
    also = "" if in_threads else " and .use_multiprocessing = True"
    line = {
        "torch": f"DataLoader(..., num_workers={count}, persistent_workers=True)",
        "grain": f"dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers={count}))",
        "grain_loader": f"grain.DataLoader(..., worker_count={count})",
        "py_dataset": f"set .workers = {count}{also} on the {name} before fit",
    }.get(
        loader,
        "turn it into a tf.data.Dataset, a Grain data set or a PyTorch DataLoader and run its "
        f"functions in {count} workers",
    )
    names = ", ".join(s.name for s in inputs.stages if s.is_notable) or "the pipeline"
    how = "processes; one interpreter cannot use more than one vCPU"
    return inputs.advice(
        "workers",
        f"Run {names} in {count} {'threads, since the lock is free' if in_threads else how}.",
        line,
        inputs.usable_vcpus * max(0.0, 1 - inputs.case.others) * 1000 / inputs.total_ms,
        Change("workers", count) if loader in ("torch", "grain") else None,
    )


def _wait_together(inputs: AdviceInputs) -> Advice | None:
    """More calls that wait at the same time, which needs no vCPU."""
    index = inputs.finding.bottleneck
    if index is None:
        return None
    stage, measured = inputs.stages[index], inputs.case.measured
    kind = measured.settings.get("loader", measured.kind)
    name = measured.settings.get("loader_class")
    count = min(MOST_WAITING_LANES, 4 * (stage.parallelism or measured.lanes or 1))
    limits = [count * 1000 / sum(each.active_ms_per_example for each in inputs.stages)]
    if (stage.parallelism or 1) > 1:
        alone = [s.active_ms_per_example for s in inputs.stages if s.parallelism == 1]
        limits += [1000 / sum(alone)] if sum(alone) else []
    if inputs.full_rate:
        limits.append(inputs.full_rate)
    options = f"grain.ReadOptions(num_threads={count})"
    lines = {
        "torch": f"DataLoader(..., num_workers={count})",
        "grain": f"to_iter_dataset({options})",
        "grain_loader": f"grain.DataLoader(..., read_options={options})",
        "py_dataset": f"set .workers = {count} on the {name} before fit",
    }
    threads = f"concurrent.futures.ThreadPoolExecutor({count}).map({stage.name}, ...)"
    return inputs.advice(
        "parallel_calls",
        f"Let {count} calls of {stage.name} wait at the same time; waiting needs no vCPU.",
        lines.get(kind, threads),
        min(limits),
        Change("workers", count) if kind == "torch" else None,
    )


def _buffer_batches(inputs: AdviceInputs) -> Advice | None:
    lines = {
        "torch": "DataLoader(..., num_workers=2, prefetch_factor=8)",
        "grain": "grain.ReadOptions(prefetch_buffer_size=...) with room for several batches",
    }
    return inputs.advice(
        "prefetch",
        "Batches arrive unevenly: buffer more of them.",
        lines.get(inputs.case.measured.kind, "read ahead in a thread with a queue of 8 batches"),
        None,
    )


def _cache_shards(inputs: AdviceInputs) -> Advice | None:
    """Run the functions once, or several times if they are random, and store the results."""
    kept = [s for s in inputs.stages if s.op not in ("Batch", "Transfer") and s.name != "collate"]
    share = sum(stage.share_of_cpu for stage in kept)
    if share < inputs.case.limits.residual or inputs.case.measured.kind == "iterable":
        return None
    saved = sum(stage.cpu_ms_per_example for stage in kept)
    names = ", ".join(s.name for s in kept if s.is_notable)
    drawn = [s for s in kept if s.is_random]
    random = ", ".join(s.name for s in drawn)
    if len({place_of(s) for s in drawn}) < len(drawn):
        # Of the functions of one transformation, it is not known which are.
        random = "part of it"
    how = f"{tf_data.VARIANTS} times, since {random} is random," if random else "once"
    variants = f" --variants {tf_data.VARIANTS}" if random else ""
    return inputs.advice(
        "cached_variants",
        f"Run {names} {how} and keep the results.",
        f"tpuctl data cache {tf_data.function_of(inputs)} DST{variants}",
        inputs.rate_with(max(inputs.total_ms - saved, tf_data.READ_SHARE * inputs.total_ms)),
    )


def _fewer_bytes(inputs: AdviceInputs) -> Advice | None:
    """Convert to floats on the device."""
    return inputs.advice(
        "fewer_bytes",
        "Send the numbers as stored, one byte each, and convert them to floats on the device.",
        "keep arrays uint8 until the step; there: x.astype(jax.numpy.bfloat16) / 255"
        if inputs.case.measured.kind in PYTHON_KINDS
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
    "serial": (tf_data.parallel_calls, tf_data.vectorise, tf_data.prefetch),
    "transfer": (_fewer_bytes,),
    "bursty": (tf_data.smooth,),
    "unknown": (tf_data.vectorise,),
}
