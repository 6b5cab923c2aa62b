"""What makes the input pipeline slower than the TPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.linting.models import Edit, Hit, Severity
from tpuctl.linting.pipelines import (
    Pipelines,
    augments,
    decodes,
    loops_over,
    resizes,
    runs_python,
)
from tpuctl.linting.program import Program, argument, has_keyword, has_stars

_PARALLEL = ("map", "interleave")
_FILES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", "/*/*", ".npy", ".wav", ".txt")
_LISTERS = (
    "tf.data.Dataset.list_files", "tf.io.gfile.glob", "tf.gfile.Glob", "tf.io.gfile.listdir",
    "tf.keras.utils.image_dataset_from_directory", "keras.utils.image_dataset_from_directory",
    "tf.keras.preprocessing.image_dataset_from_directory",
)  # fmt: skip


def _feeds_accelerator(program: Program) -> bool:
    """Whether the pipelines feed a TPU, or JAX, which is mostly run on one with tf.data."""
    return program.aims_at_tpu or bool({"jax", "flax"} & program.modules)


def serial_maps(program: Program) -> Iterator[Hit]:
    """Find maps that use one core."""
    pipelines = Pipelines(program)
    feeds = _feeds_accelerator(program)
    for call, pipeline in pipelines.calls:
        name = pipeline.steps[-1].name
        if name not in _PARALLEL or has_stars(call):
            continue
        position = 1 if name == "map" else 3
        if argument(call, position, "num_parallel_calls") is not None:
            continue
        called = pipelines.called_in(call)
        costly = decodes(called) or resizes(called) or runs_python(called) or augments(called)
        reads = name == "interleave"
        if not (costly or reads or feeds) or "take" in pipeline.names:
            continue
        severity: Severity | None = None if feeds and (costly or reads) else "maybe"
        tf = _alias(program)
        edit = Edit(call, "keyword", f"num_parallel_calls={tf}.data.AUTOTUNE") if tf else None
        message = f"{name}() without num_parallel_calls runs on one core."
        yield Hit("T401", call, message, severity, edits=(edit,) if edit else ())


def _alias(program: Program) -> str | None:
    """Return the name under which the program knows TensorFlow."""
    for alias, path in program.imports:
        if path == "tf":
            return alias.asname or "tensorflow"
    return None


def missing_prefetch(program: Program) -> Iterator[Hit]:
    """Find trainings whose input is not prefetched."""
    if not _feeds_accelerator(program):
        return
    pipelines = Pipelines(program)
    seen: set[ast.AST] = set()
    for _, pipeline in loops_over(program, pipelines):
        if not pipeline.is_whole or "batch" not in pipeline.names:
            continue
        if {"prefetch", "take", "with_options"} & set(pipeline.names):
            continue
        last = pipeline.steps[-1].call
        if last not in seen:
            seen.add(last)
            yield Hit(
                "T402", last, "The pipeline ends without prefetch().", edits=_append(program, last)
            )


def _append(program: Program, call: ast.Call) -> tuple[Edit, ...]:
    tf = _alias(program)
    return (Edit(call, "append", f".prefetch({tf}.data.AUTOTUNE)"),) if tf else ()


def wrong_order(program: Program) -> Iterator[Hit]:
    """Find shuffle, cache and augmentation in an order that loses what they are for."""
    pipelines = Pipelines(program)
    for call, pipeline in pipelines.calls:
        step = pipeline.steps[-1]
        before = pipeline.before(call)
        names = [each.name for each in before]
        if step.name == "shuffle" and ("batch" in names or "padded_batch" in names):
            if "unbatch" not in names:
                yield Hit("T403", call, "shuffle() after batch() shuffles batches, not examples.")
        elif step.name == "cache":
            if any(each.name == "shuffle" and not _keeps_order(each.call) for each in before):
                yield Hit("T403", call, "cache() after shuffle() repeats one order every epoch.")
            if _repeats(before):
                yield Hit("T403", call, "cache() after repeat() never ends, and never hits.")
            if any(e.name == "map" and augments(pipelines.called_in(e.call)) for e in before):
                message = "cache() after a random map repeats the same augmentation every epoch."
                yield Hit("T403", call, message)
        elif (
            step.name == "map" and "cache" in names and _could_be_cached(pipelines.called_in(call))
        ):
            yield Hit("T404", call, "Images are decoded after cache(), so again in every epoch.")


def _keeps_order(call: ast.Call) -> bool:
    """Whether a shuffle is meant to give the same order in every epoch."""
    given = argument(call, 2, "reshuffle_each_iteration")
    return isinstance(given, ast.Constant) and given.value is False


def _could_be_cached(called: set[str]) -> bool:
    """Whether a map decodes, and gives the same result in every epoch."""
    return decodes(called) and not augments(called)


def _repeats(steps: tuple[object, ...]) -> bool:
    return any(getattr(step, "name", "") == "repeat" for step in steps)


def resized_every_epoch(program: Program) -> Iterator[Hit]:
    """Find images that are decoded and resized again in every epoch."""
    if not _feeds_accelerator(program):
        return
    pipelines = Pipelines(program)
    seen: set[ast.AST] = set()
    for _, pipeline in loops_over(program, pipelines):
        names = pipeline.names
        for at, step in enumerate(pipeline.steps):
            if step.name != "map" or "cache" in names[at:] or "take" in names or step.call in seen:
                continue
            called = pipelines.called_in(step.call)
            if decodes(called) and resizes(called):
                seen.add(step.call)
                message = "Images are decoded and resized again in every epoch."
                yield Hit("T405", step.call, message, None if program.aims_at_tpu else "maybe")


def python_in_pipeline(program: Program) -> Iterator[Hit]:
    """Find Python that runs for every example."""
    if not _feeds_accelerator(program):
        return
    for call in program.calls_of("tf.data.Dataset.from_generator"):
        yield Hit("T406", call, "from_generator runs Python for every example, on one core.")
    pipelines = Pipelines(program)
    for call, pipeline in pipelines.calls:
        if pipeline.steps[-1].name == "map" and runs_python(pipelines.called_in(call)):
            message = "This map calls back into Python, which runs on one core."
            yield Hit("T406", call, message)


def float_images(program: Program) -> Iterator[Hit]:
    """Find images that are converted to float32 on the host."""
    if not program.aims_at_tpu:
        return
    pipelines = Pipelines(program)
    for call, pipeline in pipelines.calls:
        if pipeline.steps[-1].name != "map":
            continue
        called = pipelines.called_in(call)
        if decodes(called) and _makes_floats(program, call, called):
            message = "Images become float32 on the host: four times the bytes to the device."
            yield Hit("T412", call, message, "maybe")
    for node in program.by_method.get("astype", ()):
        parent = program.parents.get(node)
        kind = node.args[0] if node.args else None
        is_float = program.constant(kind) == "float32" or program.path(kind) == "numpy.float32"
        if (
            is_float
            and isinstance(parent, ast.BinOp)
            and program.constant(parent.right) in (255, 255.0)
        ):
            message = "Images become float32 on the host: four times the bytes to the device."
            yield Hit("T412", node, message, "maybe")


def _makes_floats(program: Program, call: ast.Call, called: set[str]) -> bool:
    if "tf.image.convert_image_dtype" in called:
        return True
    for definition in program.definitions(call.args[0]) if call.args else ():
        casts = (child for child in ast.walk(definition) if program.called(child) == "tf.cast")
        kinds = (argument(cast, 1, "dtype") for cast in casts if isinstance(cast, ast.Call))
        if any(program.path(kind) == "tf.float32" for kind in kinds):
            return True
    return False


def small_files(program: Program) -> Iterator[Hit]:
    """Find single images and the like read from a bucket."""
    for call in program.calls_of(*_LISTERS):
        name = program.text(argument(call, 0, "directory"))
        if not name or not name.startswith("gs://"):
            continue
        path = program.path(call.func)
        if name.endswith(_FILES) or path.endswith("from_directory"):
            message = "Many small files in a bucket: each one is a request with its own delay."
            yield Hit("T416", call, message)


def host_loaders(program: Program) -> Iterator[Hit]:
    """Find PyTorch loaders without workers in programs for a TPU."""
    if "torch_xla" not in program.modules:
        return
    for call in program.calls_of("torch.utils.data.DataLoader"):
        workers = argument(call, 5, "num_workers")
        if (workers is None and not has_keyword(call, "num_workers")) or program.number(
            workers
        ) == 0:
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
