"""What makes the input pipeline slower than the TPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.linting.models import Edit, Hit
from tpuctl.linting.pipelines import Pipeline, consumed
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument, has_keyword, has_stars

_FILES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", "/*/*", ".npy", ".wav", ".txt")
_FROM_DIRECTORY = (
    "tf.keras.utils.image_dataset_from_directory", "keras.utils.image_dataset_from_directory",
    "tf.keras.preprocessing.image_dataset_from_directory",
)  # fmt: skip
_LISTERS = (
    "tf.data.Dataset.list_files", "tf.io.gfile.glob", "tf.gfile.Glob", "tf.io.gfile.listdir",
)  # fmt: skip
_FLOATS = "Images become float32 on the host: four times the bytes to the device."


def _feeds_accelerator(program: Program) -> bool:
    """Whether the pipelines feed a TPU, or JAX, which is mostly run on one with tf.data."""
    return program.aims_at_tpu or bool({"jax", "flax"} & program.modules)


def serial_maps(program: Program) -> Iterator[Hit]:
    """Find maps that use one core."""
    feeds = _feeds_accelerator(program)
    for call, pipeline in program.pipelines.calls:
        name = pipeline.steps[-1].name
        if name not in ("map", "interleave") or has_stars(call) or "take" in pipeline.names:
            continue
        given = argument(call, 1 if name == "map" else 3, "num_parallel_calls")
        if given is not None and program.number(given) != 1:
            continue
        costly = name == "interleave" or bool(program.pipelines.work(call) - {"float"})
        if costly or feeds:
            edits = (
                _with_autotune(program, call, "keyword", "num_parallel_calls=") if not given else ()
            )
            message = f"{name}() without num_parallel_calls runs on one core."
            yield Hit("T401", call, message, None if feeds and costly else "maybe", edits=edits)


def _with_autotune(program: Program, call: ast.Call, kind: str, new: str) -> tuple[Edit, ...]:
    """Add an argument or a call with AUTOTUNE, if the program has a name for TensorFlow."""
    names = (alias.asname or "tensorflow" for alias, path in program.imports if path == "tf")
    tf = next(names, None)
    end = ")" if kind == "append" else ""
    return (Edit(call, kind, f"{new}{tf}.data.AUTOTUNE{end}"),) if tf else ()  # type: ignore[arg-type]


def missing_prefetch(program: Program) -> Iterator[Hit]:
    """Find trainings whose input is not prefetched."""
    if not _feeds_accelerator(program):
        return
    ends = {pipeline.steps[-1].call: pipeline for pipeline in consumed(program)}
    for last, pipeline in ends.items():
        names = set(pipeline.names)
        if (
            pipeline.is_whole
            and "batch" in names
            and not names & {"prefetch", "take", "with_options"}
        ):
            edits = _with_autotune(program, last, "append", ".prefetch(")
            yield Hit("T402", last, "The pipeline ends without prefetch().", edits=edits)


def wrong_order(program: Program) -> Iterator[Hit]:
    """Find shuffle, cache and augmentation in an order that loses what they are for."""
    for call, pipeline in program.pipelines.calls:
        step = pipeline.steps[-1]
        names = [each.name for each in pipeline.before(call)]
        if (
            step.name == "shuffle"
            and {"batch", "padded_batch"} & {*names}
            and "unbatch" not in names
        ):
            yield Hit("T403", call, "shuffle() after batch() shuffles batches, not examples.")
        elif step.name == "cache":
            for message in _cached_too_late(program, pipeline):
                yield Hit("T403", call, message)
        elif step.name == "map" and "cache" in names:
            work = program.pipelines.work(call)
            if "decode" in work and "augment" not in work:
                yield Hit(
                    "T404", call, "Images are decoded after cache(), so again in every epoch."
                )


def _cached_too_late(program: Program, pipeline: Pipeline) -> Iterator[str]:
    *before, _ = pipeline.steps
    if any(step.name == "shuffle" and not _keeps_order(step.call) for step in before):
        yield "cache() after shuffle() repeats one order every epoch."
    if any(step.name == "repeat" for step in before):
        yield "cache() after repeat() never ends, and never hits."
    maps = (step.call for step in before if step.name == "map")
    if any("augment" in program.pipelines.work(call) for call in maps):
        yield "cache() after a random map repeats the same augmentation every epoch."


def _keeps_order(call: ast.Call) -> bool:
    """Whether a shuffle is meant to give the same order in every epoch."""
    given = argument(call, 2, "reshuffle_each_iteration")
    return isinstance(given, ast.Constant) and given.value is False


def resized_every_epoch(program: Program) -> Iterator[Hit]:
    """Find images that are decoded and resized again in every epoch."""
    if not _feeds_accelerator(program):
        return
    found: dict[ast.Call, None] = {}
    for pipeline in consumed(program):
        for at, step in enumerate(pipeline.steps):
            if step.name == "map" and not {"cache"} & {*pipeline.names[at:]} | {"take"} & {
                *pipeline.names
            }:
                found.setdefault(step.call)
    for call in found:
        if {"decode", "resize"} <= program.pipelines.work(call):
            message = "Images are decoded and resized again in every epoch."
            yield Hit("T405", call, message, None if program.aims_at_tpu else "maybe")


def python_in_pipeline(program: Program) -> Iterator[Hit]:
    """Find Python that runs for every example."""
    if not _feeds_accelerator(program):
        return
    for call in program.calls_of("tf.data.Dataset.from_generator"):
        yield Hit("T406", call, "from_generator runs Python for every example, on one core.")
    for call, pipeline in program.pipelines.calls:
        if pipeline.steps[-1].name == "map" and "python" in program.pipelines.work(call):
            yield Hit("T406", call, "This map calls back into Python, which runs on one core.")


def float_images(program: Program) -> Iterator[Hit]:
    """Find images that are converted to float32 on the host."""
    if not program.aims_at_tpu:
        return
    for call, pipeline in program.pipelines.calls:
        is_map = pipeline.steps[-1].name == "map"
        if is_map and {"decode", "float"} <= program.pipelines.work(call):
            yield Hit("T412", call, _FLOATS, "maybe")
    for call in program.methods("astype"):
        divided = program.parents.get(call)
        kind = call.args[0] if call.args else None
        is_float = program.constant(kind) == "float32" or program.path(kind) == "numpy.float32"
        scaled = isinstance(divided, ast.BinOp) and program.constant(divided.right) == 255
        if is_float and scaled:
            yield Hit("T412", call, _FLOATS, "maybe")


def small_files(program: Program) -> Iterator[Hit]:
    """Find single images and the like read from a bucket."""
    for call in program.calls_of(*_LISTERS, *_FROM_DIRECTORY):
        name = program.text(argument(call, 0, "directory")) or ""
        single = name.endswith(_FILES) or program.path(call.func) in _FROM_DIRECTORY
        if single and name.startswith("gs://"):
            message = "Many small files in a bucket: each one is a request with its own delay."
            yield Hit("T416", call, message)


def host_loaders(program: Program) -> Iterator[Hit]:
    """Find PyTorch loaders without workers in programs for a TPU."""
    if "torch_xla" not in program.modules:
        return
    for call in program.calls_of("torch.utils.data.DataLoader"):
        workers = argument(call, 5, "num_workers")
        missing = workers is None and not has_keyword(call, "num_workers")
        if missing or program.number(workers) == 0:
            message = "DataLoader without num_workers loads in the training process."
            yield Hit("T401", call, message, "maybe")


CHECKS = (
    serial_maps,
    missing_prefetch,
    wrong_order,
    resized_every_epoch,
    python_in_pipeline,
    float_images,
    small_files,
    host_loaders,
)
