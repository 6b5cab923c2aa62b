"""Advice for tf.data pipelines: each rule returns a change and its prediction, or None. Pure."""

import math
import re
import shlex

from tpuctl.profiling.align import READERS, trunk
from tpuctl.profiling.called import is_generated, place_of
from tpuctl.profiling.case import AdviceInputs, serial_runs
from tpuctl.profiling.models import Advice, Stage
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.whatif import Change
from tpuctl.units import format_bytes

PRESIZE_SHARE, NOTABLE = 0.4, 0.15
CHANNELS = 3
VARIANTS, WORKER_VCPUS = 4, 8
# Sources that do not need a cache.
IN_MEMORY = ("Tensor", "TensorSlice", "Range")
# Reading a cached example costs at least this share of producing it.
READ_SHARE = 0.05
# module:function or path.py:function
_FUNCTION = re.compile(r".+:[^\W\d]\w*")


def presize(inputs: AdviceInputs) -> Advice | None:
    """Decode and resize images once, not in every epoch."""
    decode, resize = inputs.named("decode"), inputs.named("resize")
    if inputs.case.measured.kind != "photos" or not decode or not resize:
        return None
    share = decode.share_of_cpu + resize.share_of_cpu
    if share < PRESIZE_SHARE or not decode.bytes_per_example:
        return None
    facts = load_facts("relative_costs.json")
    photo_pixels = decode.bytes_per_example / CHANNELS
    record_pixels = inputs.image_size**2 * facts["record_decode_per_pixel"]
    record_pixels += facts["record_overhead_pixels"]
    record = decode.cpu_ms_per_example * min(1.0, record_pixels / photo_pixels)
    read = inputs.named("read")
    gone = decode.cpu_ms_per_example + resize.cpu_ms_per_example
    gone += read.cpu_ms_per_example if read else 0.0
    rate = inputs.rate_with(inputs.total_ms - gone + record, dropped=("read", "decode", "resize"))
    size, folder = inputs.image_size, inputs.target.rstrip("/")
    shards = f"{folder}-{size}"
    return inputs.advice(
        "presize",
        f"Resize the images once, not in every epoch: that takes {share:.0%} of the CPU time.",
        f"tpuctl data presize {shlex.quote(folder)} {shlex.quote(shards)} --size {size}",
        rate,
        Change("presize", size),
    )


def scaled_decode(inputs: AdviceInputs) -> Advice | None:
    """Let the JPEG decoder downscale large images."""
    stage = max(inputs.stages, key=lambda stage: stage.cpu_ms_per_example, default=None)
    if stage is None or not stage.decodes_jpeg or not stage.bytes_per_example:
        return None
    needed = _needed_side(inputs, stage)
    if needed is None or inputs.case.measured.kind == "shards":
        return None
    side = (stage.bytes_per_example / CHANNELS / 1.5) ** 0.5
    ratio = next((each for each in (8, 4, 2) if side / each >= needed), None)
    if ratio is None:
        return None
    factor = load_facts("relative_costs.json")["scaled_decode"][str(ratio)]
    saved = stage.cpu_ms_per_example * (1 - factor)
    return inputs.advice(
        "scaled_decode",
        f"Decode at 1/{ratio} of the size: only {needed} pixels are needed.",
        f"tf.io.decode_jpeg(content, channels=3, ratio={ratio}) in {stage.location or stage.name}",
        inputs.rate_with(inputs.total_ms - saved),
        Change("ratio", ratio),
    )


def _needed_side(inputs: AdviceInputs, decode: Stage) -> int | None:
    """The side length that is needed after decoding; None if that is random or unknown."""
    if inputs.case.measured.kind == "photos":
        return inputs.image_size
    small = (decode.bytes_per_example or 0.0) / 4
    later = inputs.stages[decode.index + 1 :]
    shrunk = next((each for each in later if 0 < (each.bytes_per_example or 0.0) < small), None)
    # A random box may be arbitrarily small, and is cut out of the whole image.
    if shrunk is None or any(
        each.is_random for each in inputs.stages[decode.index : shrunk.index + 1]
    ):
        return None
    # Assumes one byte per channel; with floats, it would be fewer pixels.
    return math.ceil(math.sqrt((shrunk.bytes_per_example or 0.0) / CHANNELS))


def cache(inputs: AdviceInputs) -> Advice | None:
    """Keep the data set in memory, if it fits."""
    examples, host = inputs.case.measured.input.examples, inputs.case.measured.host
    first = next((i for i, stage in enumerate(inputs.stages) if stage.is_random), None)
    if first is None:
        first = next((i for i, stage in enumerate(inputs.stages) if "Batch" in stage.op), None)
    if not first or not examples or inputs.named("cache"):
        return None
    before = inputs.stages[:first]
    passing = ("Prefetch", "Shuffle")
    stage = next((each for each in reversed(before) if each.op not in passing), before[-1])
    again = any("Shuffle" in each.op for each in before[: stage.index + 1])
    if again and len(trunk(inputs.case.measured.chain)[-1].inputs) > 1:
        # It would keep which elements of several shuffled data sets come together.
        return None
    share = load_facts("relative_costs.json")["cache_memory_share"]
    size = (stage.bytes_per_example or 0.0) * examples
    if not size or size > share * host.memory_available_bytes or stage.op in IN_MEMORY:
        return None
    saved = sum(each.cpu_ms_per_example for each in before)
    return inputs.advice(
        "cache",
        f"Keep the data set in memory after {stage.name}: {format_bytes(size)} of "
        f"{format_bytes(host.memory_available_bytes)}; helps from the second epoch on.",
        f"dataset.cache() after {place_of(stage)}"
        f"{', then shuffle: it keeps the order too' if again else ''}",
        inputs.rate_with(inputs.total_ms - saved, dropped=tuple(each.name for each in before)),
        Change("cache", location=stage.caller or stage.location)
        if stage.location and not is_generated(stage)
        else None,
    )


def leave_python(inputs: AdviceInputs) -> Advice | None:
    """Replace a Python function that holds the interpreter lock."""
    index = inputs.finding.bottleneck
    if index is None:
        return None
    stage = inputs.stages[index]
    return inputs.advice(
        "python_to_ops",
        f"{stage.name} holds the interpreter lock, so only one call runs at a time.",
        f"write {stage.location or stage.name} with TensorFlow operations, or run it in processes",
        inputs.full_rate,
    )


def threadpool(inputs: AdviceInputs) -> Advice | None:
    """More threads: for calls that wait, or one for each vCPU."""
    index = inputs.finding.bottleneck
    if index is None:
        return None
    if inputs.case.blocked < inputs.case.limits.blocked_share:
        threads = math.ceil(inputs.usable_vcpus)
        return inputs.advice(
            "threadpool",
            f"Use {threads} threads, one for each vCPU.",
            f"options.threading.private_threadpool_size = {threads}, or leave it unset",
            inputs.full_rate,
        )
    stage = inputs.stages[index]
    calls = max(16, stage.parallelism or 1)
    limits = [calls * 1000 / stage.active_ms_per_example]
    if inputs.full_rate:
        limits.append(inputs.full_rate)
    if is_generated(stage):
        return inputs.advice(
            "parallel_calls",
            f"Let {calls} calls of {stage.name} wait at the same time; waiting needs no vCPU.",
            f"concurrent.futures.ThreadPoolExecutor({calls}).map({stage.name}, ...) in "
            f"{place_of(stage)}",
            min(limits),
        )
    is_parallel = stage.parallelism is not None and stage.parallelism >= calls
    also = f" and num_parallel_calls={calls} in {place_of(stage)}"
    return inputs.advice(
        "threadpool" if is_parallel else "parallel_calls",
        f"Let {calls} calls of {stage.name} wait at the same time; waiting needs no vCPU.",
        f"options.threading.private_threadpool_size = {calls}{'' if is_parallel else also}",
        min(limits),
        Change("threads", calls, stage.caller or stage.location),
    )


def parallel_calls(inputs: AdviceInputs) -> Advice | None:
    """Run several calls of a serial stage at the same time, and of the maps in the same thread."""
    index = inputs.finding.bottleneck
    if index is None or (inputs.stages[index].parallelism or 1) > 1:
        return None
    stage = inputs.stages[index]
    runs = [indices for indices, _ in serial_runs(inputs.case)]
    mine = next((run for run in runs if index in run), [index])
    changed = [
        inputs.stages[i] for i in mine if i == index or _is_worth_it(inputs.stages[i], stage)
    ]
    if (change := _several_at_once(stage, changed)) is None:
        return None
    kept = [[inputs.stages[i].calls_in_flight for i in run] for run in runs if run is not mine]
    kept.append(
        [
            each.calls_in_flight
            for each in map(inputs.stages.__getitem__, mine)
            if each not in changed
        ]
    )
    limits = [inputs.case.examples_per_s / sum(run) for run in kept if sum(run)]
    names = ", ".join(each.name for each in changed)
    what = f"{names} {'run' if len(changed) > 1 else 'runs'} on one thread; let tf.data run several"
    if is_generated(stage):
        what = f"A generator makes one call of {stage.name} at a time; make several"
    return inputs.advice(
        "parallel_calls",
        f"{what} calls at the same time.",
        change,
        min([inputs.full_rate, *limits]) if inputs.full_rate else None,
        Change("calls") if _is_map(stage) or "Interleave" in stage.op else None,
    )


def _is_map(stage: Stage) -> bool:
    return "Map" in stage.op and "Flat" not in stage.op


def _is_worth_it(stage: Stage, longest: Stage) -> bool:
    """Whether a map takes long enough to be run in parallel together with the longest stage."""
    return _is_map(stage) and stage.active_ms_per_example > NOTABLE * longest.active_ms_per_example


def _several_at_once(stage: Stage, changed: list[Stage]) -> str | None:
    """The change that lets a stage, and the maps among the others, run several calls."""
    places = " and ".join(dict.fromkeys(place_of(each) for each in changed if _is_map(each)))
    also = f", and num_parallel_calls=tf.data.AUTOTUNE in {places}" if places else ""
    if stage.name.removesuffix("Dataset") in READERS:
        return f"tf.data.{stage.name}(paths, num_parallel_reads=tf.data.AUTOTUNE){also}"
    if is_generated(stage):
        return (
            f"yield only what {stage.name} needs; .map(lambda x: tf.numpy_function({stage.name}, "
            "[x], ...), num_parallel_calls=tf.data.AUTOTUNE)"
        )
    if _is_map(stage):
        return also.removeprefix(", and ")
    calls = "num_parallel_calls=tf.data.AUTOTUNE"
    if "FlatMap" in stage.op:
        return f"interleave(..., {calls}) instead of flat_map, which mixes the elements{also}"
    for op, method in (("Interleave", "interleave"), ("Batch", "batch")):
        if op in stage.op:
            return f"{method}(..., {calls}){also}"
    return None


def prefetch(inputs: AdviceInputs) -> Advice | None:
    """Prepare batches while the device computes."""
    if not inputs.stages or inputs.stages[-1].op == "Prefetch":
        return None
    return inputs.advice(
        "prefetch",
        "Prepare the next batch while the device computes this one.",
        "dataset.prefetch(tf.data.AUTOTUNE) at the end of the pipeline",
        None,
        Change("prefetch"),
    )


def smooth(inputs: AdviceInputs) -> Advice | None:
    """Buffer batches that arrive unevenly, or fill the shuffle buffer while it is drained."""
    shuffled = any("Shuffle" in stage.op for stage in inputs.stages)
    examples = inputs.case.measured.input.examples
    if shuffled and examples and inputs.case.free.examples > examples:
        return inputs.advice(
            "prefetch",
            "Every epoch starts by filling the shuffle buffer while the device waits: let the next "
            "epoch fill it while this one ends.",
            "dataset.shuffle(...).repeat() and, at the end, .prefetch(tf.data.AUTOTUNE)",
            None,
        )
    return inputs.advice(
        "prefetch",
        "Batches arrive unevenly: buffer more of them, and do not wait for slow ones in order.",
        "dataset.prefetch(8) and options.deterministic = False",
        None,
        Change("unordered", 8),
    )


def vectorise(inputs: AdviceInputs) -> Advice | None:
    """Process whole batches if most time is spent on passing single elements."""
    first = next((i for i, s in enumerate(inputs.stages) if "Batch" in s.op), len(inputs.stages))
    # A map and the batch after it may be one stage.
    functions = [s for s in inputs.stages[: first + 1] if "Map" in s.op or "Filter" in s.op]
    is_most = inputs.case.overhead >= inputs.case.limits.residual
    if not functions or not (is_most or inputs.case.hands_over):
        return None
    rest_ms = inputs.total_ms - inputs.case.parts.residual.cpu_ms_per_example
    return inputs.advice(
        "vectorise",
        "Most CPU time is spent on passing single elements between stages, not on processing them.",
        "batch first, then map and filter over whole batches",
        inputs.rate_with(rest_ms) if is_most else None,
    )


def variants(inputs: AdviceInputs) -> Advice | None:
    """Keep the output of random stages on disk, several variants of each example."""
    random = [stage for stage in inputs.stages if stage.is_random and stage.share_of_cpu > NOTABLE]
    # All that one transformation calls is kept together.
    last = next(
        (s for s in reversed(inputs.stages) if random and place_of(s) == place_of(random[-1])), None
    )
    examples = inputs.case.measured.input.examples
    if last is None or not last.bytes_per_example:
        return None
    saved = sum(each.cpu_ms_per_example for each in inputs.stages[: last.index + 1])
    size = last.bytes_per_example * examples * VARIANTS if examples else None
    disk = f" ({format_bytes(size)} of disk)" if size else ""
    kept = ", ".join(each.name for each in random)
    ends = ", without its repeat" if any("Repeat" in s.op for s in inputs.stages) else ""
    return inputs.advice(
        "cached_variants",
        f"Run everything up to {last.name} {VARIANTS} times and keep the results{disk}; {kept} "
        "then costs only a read.",
        f"tpuctl data cache {function_of(inputs)} DST --variants {VARIANTS}{ends}",
        inputs.rate_with(max(inputs.total_ms - saved, READ_SHARE * inputs.total_ms)),
    )


def function_of(inputs: AdviceInputs) -> str:
    """The target for `data cache`, which must be a function, not a program or a folder."""
    is_function = not inputs.case.measured.program and _FUNCTION.fullmatch(inputs.target)
    return shlex.quote(inputs.target) if is_function else "TARGET"


def data_service(inputs: AdviceInputs) -> Advice | None:
    """Let machines without a TPU do part of the work."""
    needed, device = inputs.vcpus.needed_to_saturate, inputs.case.device_examples_per_s
    if needed is None or device is None or needed <= inputs.usable_vcpus:
        return None
    if any(stage.runs_python for stage in inputs.stages):
        # Python functions stay in the process that created them.
        return None
    workers = math.ceil((needed - inputs.usable_vcpus) / WORKER_VCPUS)
    plural = "s" if workers > 1 else ""
    return inputs.advice(
        "data_service",
        f"Let {workers} more machine{plural} of {WORKER_VCPUS} vCPUs produce the batches that this "
        "host cannot (tf.data service).",
        "dataset.apply(tf.data.experimental.service.distribute(...)) with a dispatcher and "
        f"{workers} worker{plural}",
        device,
    )


def order(inputs: AdviceInputs) -> Advice | None:
    """Move a cache below shuffles and random stages, which it would freeze."""
    chain = trunk(inputs.case.measured.chain)
    position = next((i for i, node in enumerate(chain) if node.op == "Cache"), None)
    if position is None:
        return None
    frozen = [n.name for n in chain[position + 1 :] if n.op == "Shuffle" or n.is_random]
    if not frozen:
        return None
    names = " and ".join(frozen)
    return inputs.advice(
        "order",
        f"The cache keeps the first output of {names}: every epoch sees the same.",
        f"cache() before {names}, then shuffle, then random augmentation, then batch",
        None,
    )
