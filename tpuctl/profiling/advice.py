"""What to change, what it should bring, and how. Pure.

A prediction takes CPU time away from stages and divides what is left into the vCPU time that the
pipeline got; one that would not gain anything is not given.
"""

import math
import re
import shlex

from tpuctl.profiling.advice_python import PYTHON_RULES
from tpuctl.profiling.attribution import trunk
from tpuctl.profiling.models import Advice
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.rule_inputs import Rule, Situation, more_vcpus, neighbours, quota, serial_runs
from tpuctl.profiling.whatif import Change
from tpuctl.units import format_bytes

SHARE_WORTH_A_RULE = 0.4
CHANNELS = 3
NOTABLE = 0.15
VARIANTS, WORKER_VCPUS = 4, 8
# What reading a kept example costs of what making it did, at least: nothing is free.
READ_SHARE = 0.05
# module:function or path.py:function
_FUNCTION = re.compile(r".+:[^\W\d]\w*")


def advise(situation: Situation) -> tuple[Advice, ...]:
    """Collect the advice that fits the verdict, the greatest predicted gain first.

    What feeds the device is worth the same however far beyond; the order of the rules then counts.
    """
    python = situation.case.measured.kind in ("torch", "grain", "iterable")
    rules = (PYTHON_RULES if python else RULES).get(situation.finding.verdict, ())
    given = [advice for rule in rules if (advice := rule(situation))]
    least = situation.case.examples_per_s * (1 + load_facts("relative_costs.json")["least_gain"])
    worth = [a for a in given if not (a.predicted_examples_per_s or least) < least]
    enough = situation.case.device_examples_per_s or math.inf
    return tuple(sorted(worth, key=lambda a: -min(enough, a.predicted_examples_per_s or 0.0)))


def _presize(at: Situation) -> Advice | None:
    decode, resize = at.named("decode"), at.named("resize")
    if at.case.measured.kind != "photos" or not decode or not resize:
        return None
    share = decode.share_of_cpu + resize.share_of_cpu
    if share < SHARE_WORTH_A_RULE or not decode.bytes_per_example:
        return None
    facts = load_facts("relative_costs.json")
    photo_pixels = decode.bytes_per_example / CHANNELS
    record_pixels = at.image_size**2 * facts["record_decode_per_pixel"]
    record_pixels += facts["record_overhead_pixels"]
    record = decode.cpu_ms_per_example * min(1.0, record_pixels / photo_pixels)
    read = at.named("read")
    gone = decode.cpu_ms_per_example + resize.cpu_ms_per_example
    gone += read.cpu_ms_per_example if read else 0.0
    rate = at.rate_with(at.total_ms - gone + record, dropped=("read", "decode", "resize"))
    size, folder = at.image_size, at.target.rstrip("/")
    shards = f"{folder}-{size}"
    return at.advice(
        "presize",
        f"Resize the photographs once, not every epoch: that is {share:.0%} of the CPU time.",
        f"tpuctl data presize {shlex.quote(folder)} {shlex.quote(shards)} --size {size}",
        rate,
        Change("presize", size),
    )


def _scaled_decode(at: Situation) -> Advice | None:
    stage = max(at.stages, key=lambda stage: stage.cpu_ms_per_example, default=None)
    if stage is None or not stage.decodes_jpeg or not stage.bytes_per_example:
        return None
    side = (stage.bytes_per_example / CHANNELS / 1.5) ** 0.5
    ratio = next((each for each in (8, 4, 2) if side / each >= at.image_size), None)
    if ratio is None or at.case.measured.kind == "shards":
        return None
    factor = load_facts("relative_costs.json")["scaled_decode"][str(ratio)]
    saved = stage.cpu_ms_per_example * (1 - factor)
    return at.advice(
        "scaled_decode",
        f"Decode at 1/{ratio} of the size: {at.image_size} pixels are all that is needed.",
        f"tf.io.decode_jpeg(content, channels=3, ratio={ratio}) in {stage.location or stage.name}",
        at.rate_with(at.total_ms - saved),
        Change("ratio", ratio),
    )


def _cache(at: Situation) -> Advice | None:
    examples, host = at.case.measured.input.examples, at.case.measured.host
    last = next((i - 1 for i, stage in enumerate(at.stages) if stage.is_random), None)
    batches = next((i - 1 for i, stage in enumerate(at.stages) if "Batch" in stage.op), None)
    position = last if last is not None else batches
    if position is None or position < 0 or not examples or at.named("cache"):
        return None
    stage, before = at.stages[position], at.stages[: position + 1]
    share = load_facts("relative_costs.json")["cache_memory_share"]
    size = (stage.bytes_per_example or 0.0) * examples
    if not size or size > share * host.memory_available_bytes:
        return None
    saved = sum(each.cpu_ms_per_example for each in before)
    return at.advice(
        "cache",
        f"Keep the data set in memory after {stage.name}: {format_bytes(size)} of "
        f"{format_bytes(host.memory_available_bytes)}; from the second epoch on.",
        f"dataset.cache() after {stage.location or stage.name}",
        at.rate_with(at.total_ms - saved, dropped=tuple(each.name for each in before)),
        Change("cache", location=stage.location) if stage.location else None,
    )


def _leave_python(at: Situation) -> Advice | None:
    index = at.finding.bottleneck
    if index is None:
        return None
    stage, usable = at.stages[index], at.case.free.signals.vcpus_usable
    return at.advice(
        "python_to_ops",
        f"{stage.name} holds the interpreter lock, so only one of its calls runs at a time.",
        f"write {stage.location or stage.name} with TensorFlow operations, or run it in processes",
        usable * 1000 / at.total_ms if at.total_ms else None,
    )


def _threadpool(at: Situation) -> Advice | None:
    index = at.finding.bottleneck
    if index is None:
        return None
    if at.case.blocked < at.case.limits.blocked_share:
        return _thread_for_each_vcpu(at)
    stage = at.stages[index]
    calls = max(16, stage.parallelism or 1)
    limits = [calls * 1000 / stage.active_ms_per_example]
    if at.total_ms:
        limits.append(at.case.free.signals.vcpus_usable * 1000 / at.total_ms)
    parallel = stage.parallelism is not None and stage.parallelism >= calls
    also = "" if parallel else f" and num_parallel_calls={calls} in {stage.location or stage.name}"
    return at.advice(
        "threadpool" if parallel else "parallel_calls",
        f"Let {calls} calls of {stage.name} wait at the same time; they need no vCPU for that.",
        f"options.threading.private_threadpool_size = {calls}{also}",
        min(limits),
        Change("threads", calls, stage.location),
    )


def _thread_for_each_vcpu(at: Situation) -> Advice | None:
    usable = at.case.free.signals.vcpus_usable
    threads = math.ceil(usable)
    return at.advice(
        "threadpool",
        f"Let {threads} threads work, one for each vCPU.",
        f"options.threading.private_threadpool_size = {threads}, or none",
        usable * 1000 / at.total_ms if at.total_ms else None,
    )


def _parallelise(at: Situation) -> Advice | None:
    index = at.finding.bottleneck
    if index is None or at.stages[index].op == "Prefetch":
        return None
    stage = at.stages[index]
    rate = at.case.free.signals.vcpus_usable * 1000 / at.total_ms if at.total_ms else None
    others = [active for indices, active in serial_runs(at.case) if index not in indices and active]
    caps = [at.case.examples_per_s / active for active in others]
    if stage.name == "from_generator":
        change = "read the files with tf.data itself, or make one generator per process"
    elif "Map" in stage.op:
        change = f"num_parallel_calls=tf.data.AUTOTUNE in {stage.location or stage.name}"
    elif "Interleave" in stage.op:
        change = "interleave(..., num_parallel_calls=tf.data.AUTOTUNE)"
    else:
        return None
    return at.advice(
        "parallel_calls",
        f"{stage.name} runs on one thread; let tf.data run several calls of it.",
        change,
        min([rate, *caps]) if rate else None,
        None if stage.name == "from_generator" else Change("calls"),
    )


def _prefetch(at: Situation) -> Advice | None:
    if not at.stages or at.stages[-1].op == "Prefetch":
        return None
    return at.advice(
        "prefetch",
        "Prepare the next batch while the device computes this one.",
        "dataset.prefetch(tf.data.AUTOTUNE) at the end of the pipeline",
        None,
        Change("prefetch"),
    )


def _smooth(at: Situation) -> Advice | None:
    return at.advice(
        "prefetch",
        "Batches come unevenly: keep more of them ready, and let early ones overtake late ones.",
        "dataset.prefetch(8) and options.deterministic = False",
        None,
        Change("unordered", 8),
    )


def _vectorise(at: Situation) -> Advice | None:
    if at.case.parts.residual.share_of_cpu < at.case.limits.residual:
        return None
    return at.advice(
        "vectorise",
        "Most CPU time goes into handing single elements on, not into work on them.",
        "batch first, then map and filter over whole batches",
        at.rate_with(at.total_ms - at.case.parts.residual.cpu_ms_per_example),
    )


def _variants(at: Situation) -> Advice | None:
    """Keep what random stages made, some variants of each example, on disk."""
    random = [stage for stage in at.stages if stage.is_random and stage.share_of_cpu > NOTABLE]
    last = random[-1] if random else None
    examples = at.case.measured.input.examples
    if last is None or not last.bytes_per_example:
        return None
    saved = sum(each.cpu_ms_per_example for each in at.stages[: last.index + 1])
    size = last.bytes_per_example * examples * VARIANTS if examples else None
    disk = f", {format_bytes(size)} of disk" if size else ""
    kept = ", ".join(each.name for each in random)
    # `data cache` runs functions; a program or a folder of pictures has to be made one first.
    is_function = not at.case.measured.program and _FUNCTION.fullmatch(at.target)
    target = shlex.quote(at.target) if is_function else "TARGET"
    return at.advice(
        "cached_variants",
        f"Run everything up to {last.name} {VARIANTS} times and keep it{disk}: {kept} then costs a "
        "read.",
        f"tpuctl data cache {target} DST --variants {VARIANTS}",
        at.rate_with(max(at.total_ms - saved, READ_SHARE * at.total_ms)),
    )


def _service(at: Situation) -> Advice | None:
    """Machines without a TPU do a part of the work."""
    needed, used = at.vcpus.needed_to_saturate, at.case.free.signals.vcpus_usable
    device = at.case.device_examples_per_s
    if needed is None or device is None or needed <= used:
        return None
    workers = math.ceil((needed - used) / WORKER_VCPUS)
    return at.advice(
        "data_service",
        f"{workers} more machine{'s' if workers > 1 else ''} of {WORKER_VCPUS} vCPUs could make "
        "the batches that this host cannot (tf.data service).",
        "dataset.apply(tf.data.experimental.service.distribute(...)) with a dispatcher and "
        f"{workers} worker{'s' if workers > 1 else ''}",
        device,
    )


def _order(at: Situation) -> Advice | None:
    """A cache above a shuffle or a random stage keeps one order, one augmentation, for ever."""
    chain = trunk(at.case.measured.chain)
    cache = next((i for i, node in enumerate(chain) if node.op == "Cache"), None)
    if cache is None:
        return None
    below = [node.name for node in chain[cache + 1 :] if node.op == "Shuffle" or node.is_random]
    if not below:
        return None
    names = " and ".join(below)
    return at.advice(
        "order",
        f"The cache keeps what {names} did the first time; every epoch sees the same.",
        f"cache() before {names}, then shuffle, then random augmentation, then batch",
        None,
    )


def _fewer_bytes(at: Situation) -> Advice | None:
    return at.advice(
        "fewer_bytes",
        "Send the numbers as they were stored, one byte each, and make them floats on the device.",
        "end the pipeline in tf.uint8; in the step: tf.cast(images, tf.bfloat16) / 255",
        None,
    )


CPU_RULES: tuple[Rule, ...] = (
    _presize,
    _scaled_decode,
    _cache,
    _variants,
    _vectorise,
    _service,
    more_vcpus,
    _order,
)
RULES: dict[str, tuple[Rule, ...]] = {
    "vcpu": CPU_RULES,
    "stolen": (neighbours, *CPU_RULES),
    "throttled": (quota, *CPU_RULES),
    "gil": (_leave_python,),
    "io": (_threadpool,),
    "threadpool": (_threadpool,),
    "serial": (_parallelise, _prefetch),
    "transfer": (_fewer_bytes,),
    "bursty": (_smooth,),
    "unknown": (_vectorise,),
}
