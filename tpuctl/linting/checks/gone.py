"""Names that a library has dropped or will drop, and calls that it refuses."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tpuctl.linting.models import DATA, Edit, Hit, Severity
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument, beginning, root

_PREFIXES = {
    "tf.contrib": ("T101", "TensorFlow 2"),
    "tf.contrib.tpu.TPUEstimator": ("T104", "TensorFlow 2"),
    "tf.contrib.tpu.TPUEstimatorSpec": ("T104", "TensorFlow 2"),
    "tf.contrib.tpu.RunConfig": ("T104", "TensorFlow 2"),
    "tf.python.tpu.tpu_estimator": ("T104", "TensorFlow 2.16"),
    "tf.estimator": ("T104", "TensorFlow 2.16"),
    "tf.compat.v1.estimator": ("T104", "TensorFlow 2.16"),
    "jax.tools.colab_tpu": ("T106", "JAX 0.4.36"),
    "jax.device_put_sharded": ("T108", "JAX 0.10"),
    "jax.device_put_replicated": ("T108", "JAX 0.10"),
}
_OLD_STRATEGY = "tf.distribute.experimental.TPUStrategy"
# Names of modules that are written often enough to have a usual short one.
_SHORT_NAMES = {"torch_xla.runtime": "xr", "torch_xla.distributed.spmd": "xs"}
_SPAWNERS = ("torch_xla.distributed.xla_multiprocessing.spawn", "torch_xla.launch")
_DROPPED_ATTRIBUTES = ("device_buffers", "sharding_spec")
_GRAPH_MODE = ("Session", "InteractiveSession", "disable_v2_behavior", "disable_eager_execution")


@dataclass(frozen=True)
class Gone:
    """One name that is no longer there; `new` is its successor."""

    code: str
    library: str
    new: str | None = None
    same_arguments: bool = True
    still_works: bool = False


@cache
def gone_names() -> dict[str, Gone]:
    """Load the table of names, and of prefixes under which everything is gone."""
    document = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
    found = {prefix: Gone(*known) for prefix, known in _PREFIXES.items()}
    for table in document["tables"]:
        differ = set(table["arguments_differ"])
        for old, new in table["names"].items():
            found.setdefault(old, Gone(table["code"], table["library"], new, old not in differ))
    for old, new in document["renamed"]["names"].items():
        found[old] = Gone(document["renamed"]["code"], "JAX", new, still_works=True)
    new = "tf.distribute.TPUStrategy"
    found[_OLD_STRATEGY] = Gone("T109", "TensorFlow", new, still_works=True)
    return found


@cache
def only_in_tf_keras() -> frozenset[str]:
    """Return the names that tf.keras has and keras has not."""
    document = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
    return frozenset(document["only_in_tf_keras"]["names"])


@cache
def gone_options() -> frozenset[str]:
    """Return the names of options that JAX no longer knows."""
    document = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
    return frozenset(document["jax_options"]["names"])


def lookup(path: str) -> tuple[str, Gone] | None:
    """Find the longest beginning of a path that is gone."""
    table = gone_names()
    path = path.removeprefix("tf.") if path.startswith("tf.keras") else path
    # The names of sizes of a model, such as RegNetX002, are one entry.
    old = beginning(path, table) or beginning(path.rstrip("0123456789"), table)
    return (old, table[old]) if old else None


def keeps_keras_2(program: Program) -> bool:
    """Whether a program runs with tf_keras instead of Keras 3."""
    paths = [path for _, path in (*program.imports, *program.paths)]
    legacy = any(path == "tf_keras" or path.startswith("tf_keras.") for path in paths)
    return legacy or "TF_USE_LEGACY_KERAS" in program.document.text


def dropped_names(program: Program) -> Iterator[Hit]:
    """Look up every imported name in the table of what is gone."""
    imported, legacy = {path for _, path in program.imports}, keeps_keras_2(program)
    for node, path in (*program.imports, *program.paths):
        if found := lookup(path):
            old, gone = found
            if legacy and gone.code == "T116":
                continue
            # The import is reported, and to change it is enough.
            if gone.new and isinstance(node, ast.Name) and path in imported:
                continue
            rest = path.removeprefix("tf." if old.startswith("keras.") else "")[len(old) :]
            new = gone.new + rest if gone.new else None
            if new and path.startswith("tf.keras") and new.startswith("keras"):
                new = f"tf.{new}"
            guarded = program.is_guarded(node)
            severity: Severity | None = "warning" if gone.still_works else None
            edits = _renaming(program, node, new) if new and gone.same_arguments else ()
            yield Hit(
                gone.code,
                node,
                _gone_message(path, gone, new),
                "maybe" if guarded else severity,
                edits=edits,
            )


def dropped_options(program: Program) -> Iterator[Hit]:
    """Find options that jax.config refuses."""
    for call in program.calls_of("jax.config.update", "jax.config.config.update"):
        name = program.constant(call.args[0]) if call.args else None
        if name in gone_options():
            severity: Severity | None = "maybe" if program.is_guarded(call) else None
            yield Hit("T107", call, f"JAX has no option {name} any more.", severity)


def _gone_message(path: str, gone: Gone, new: str | None) -> str:
    if gone.still_works:
        return f"{path} is the old name of {new}, and warns." if new else f"{path} is deprecated."
    if new is None:
        return f"{path} is gone from {gone.library}."
    now = f"it is now {new}" if gone.same_arguments else f"{new} takes other arguments"
    return f"{path} is gone from {gone.library}; {now}."


def _renaming(program: Program, node: ast.AST, new: str) -> tuple[Edit, ...]:
    """Write the successor of a name with the alias that the program uses, if that is all."""
    first = root(node)
    if first is None or first is node:
        return ()
    base = program.path(first)
    if base == "tf" and new.startswith("keras."):
        new = f"tf.{new}"
    if new.startswith(f"{base}."):
        return (Edit(node, "replace", first.id + new[len(base) :]),)
    module, _, name = new.rpartition(".")
    if short := _SHORT_NAMES.get(module):
        known = program.alias(module)
        if not known and program.is_bound(short):
            return ()
        needs = () if known else (f"import {module} as {short}",)
        return (Edit(node, "replace", f"{known or short}.{name}", needs),)
    return ()


def sessions(program: Program) -> Iterator[Hit]:
    """Find what only a graph session understands, besides the names themselves."""
    used = (path for _, path in (*program.paths, *program.imports))
    if any(path.startswith("tf.compat.v1") for path in used):
        # This runs, but not on a TPU of today.
        for name in _GRAPH_MODE if program.aims_at_tpu else ():
            for call in program.calls_of(f"tf.compat.v1.{name}"):
                message = f"tf.compat.v1.{name} is graph mode, which reaches no TPU of today."
                yield Hit("T102", call, message, "warning")
        return
    if "tf" not in program.modules:
        return
    for call in program.methods("run", "eval"):
        for keyword in call.keywords:
            if keyword.arg == "feed_dict":
                yield Hit("T102", keyword, "feed_dict feeds a session, and there are none.")
    for call in program.methods("make_one_shot_iterator", "make_initializable_iterator"):
        if isinstance(call.func, ast.Attribute) and not program.path(call.func):
            message = f"Data sets have no {call.func.attr}() in TensorFlow 2; loop over them."
            yield Hit("T103", call, message)


def refused_jax_calls(program: Program) -> Iterator[Hit]:
    """Find calls that JAX refuses: dropped arguments, a pmap in a pmap, dropped attributes."""
    dropped = {
        "jax.pmap": ("global_arg_shapes",),
        "jax.experimental.pjit.pjit": ("in_axis_resources", "out_axis_resources"),
        "jax.shard_map": ("check_rep", "auto"),
    }
    for path, names in dropped.items():
        keywords = (k for call in program.calls_of(path) for k in call.keywords if k.arg in names)
        for keyword in keywords:
            yield Hit("T108", keyword, f"{path} has no argument {keyword.arg} any more.")
    for call in program.calls_of("jax.pmap"):
        if call.args and program.called(call.args[0]) == "jax.pmap":
            yield Hit("T108", call, "A pmap of a pmap is refused by JAX 0.10.")


def dropped_array_attributes(program: Program) -> Iterator[Hit]:
    """Find methods and attributes that JAX's arrays no longer have."""
    if "jax" not in program.modules:
        return
    for call in program.methods("block_host_until_ready"):
        edit = Edit(call.func, "replace", f"{ast.unparse(call.func)[:-23]}.block_until_ready")
        message = "Arrays have no block_host_until_ready(); it is block_until_ready()."
        yield Hit("T108", call, message, edits=(edit,))
    for node in program.references:
        if not isinstance(node, ast.Attribute) or node.attr not in _DROPPED_ATTRIBUTES:
            continue
        if not program.is_guarded(node) and not program.path(node):
            yield Hit("T108", node, f"Arrays have no {node.attr} any more; use addressable_shards.")


def spawned_processes(program: Program) -> Iterator[Hit]:
    """Find a number of processes given to torch_xla."""
    for call in program.calls_of(*_SPAWNERS):
        given = argument(call, 2 if program.called(call) == _SPAWNERS[0] else None, "nprocs")
        value = program.constant(given)
        if given is None or value == 1 or getattr(given, "value", 0) is None:
            continue
        by_name = value is not None and any(keyword.value is given for keyword in call.keywords)
        edits = (Edit(call, "keyword", "nprocs>"),) if by_name else ()
        message = f"nprocs={ast.unparse(given)} raises ValueError unless it is 1 or None."
        yield Hit("T111", given, message, "maybe" if value is None else None, edits=edits)


@cache
def equivalents() -> dict[str, str | None]:
    """Return what torch_xla's names are in torch_tpu; None if there is nothing yet."""
    document = json.loads((DATA / "moving.json").read_text(encoding="utf-8"))
    names: dict[str, str | None] = document["torch_tpu"]["names"]
    return names


def torch_xla(program: Program) -> Iterator[Hit]:
    """Say once per file what will change, and what has no equivalent yet."""
    first = next((a for a, path in program.imports if path.partition(".")[0] == "torch_xla"), None)
    if first is None:
        return
    table = equivalents()
    used = sorted({known for _, path in program.paths if (known := beginning(path, table))})
    lines = [f"{name} → {table[name] or 'nothing yet'}" for name in used]
    missing = [name.rpartition(".")[2] for name in used if table[name] is None]
    message = "torch_xla will be replaced by torch_tpu (TorchTPU)"
    message += f"; without an equivalent yet: {', '.join(missing)}." if missing else "."
    yield Hit("T201", first, message, fix="\n".join(lines) or None)


CHECKS = (
    dropped_names,
    dropped_options,
    sessions,
    refused_jax_calls,
    dropped_array_attributes,
    spawned_processes,
    torch_xla,
)
