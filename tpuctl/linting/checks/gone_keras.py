"""Methods and arguments that Keras 3 has dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.linting.models import Edit, Hit
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument

_METHODS = {
    "fit_generator": "fit",
    "evaluate_generator": "evaluate",
    "predict_generator": "predict",
    "predict_classes": None,
    "sync_to_cpu": None,
}
_COMPILE = {
    "experimental_steps_per_execution": "steps_per_execution",
    "experimental_run_tf_function": "",
    "sample_weight_mode": "",
}
_OPTIMIZERS = ("tf.keras.optimizers.", "keras.optimizers.")


def uses_keras(program: Program) -> bool:
    """Whether a program imports Keras, alone or with TensorFlow, and not Keras 2."""
    paths = [path for _, path in (*program.imports, *program.paths)]
    legacy = any(path == "tf_keras" or path.startswith("tf_keras.") for path in paths)
    legacy = legacy or "TF_USE_LEGACY_KERAS" in program.document.text
    return not legacy and any(
        path == "keras" or path.startswith(("keras.", "tf.keras")) for path in paths
    )


def dropped_methods(program: Program) -> Iterator[Hit]:
    """Find methods of models that Keras 3 lacks."""
    if not uses_keras(program):
        return
    for name, new in _METHODS.items():
        for call in program.methods(name):
            assert isinstance(call.func, ast.Attribute)
            message = f"Models have no {name}() in Keras 3" + (f"; use {new}()." if new else ".")
            edits: tuple[Edit, ...] = ()
            if name == "sync_to_cpu":
                edits = (Edit(call, "replace", ast.unparse(call.func.value)),)
            elif new and len(call.args) < 2:
                model = ast.unparse(call.func.value)
                edits = (Edit(call.func, "replace", f"{model}.{new}"),)
            yield Hit("T116", call, message, edits=edits)


def dropped_arguments(program: Program) -> Iterator[Hit]:
    """Find arguments that Keras 3 refuses."""
    if not uses_keras(program):
        return
    for call in program.calls:
        path = program.path(call.func)
        if path.startswith(_OPTIMIZERS) and ".schedules." not in path and ".legacy." not in path:
            yield from _optimizer(call, path)
        elif path.endswith("callbacks.ModelCheckpoint"):
            yield from _checkpoint(program, call)
    for call in program.methods("compile"):
        for keyword in call.keywords:
            if keyword.arg in _COMPILE:
                change = f"{keyword.arg}>{_COMPILE[keyword.arg]}"
                message = f"compile() has no argument {keyword.arg} in Keras 3."
                yield Hit("T116", keyword, message, edits=(Edit(call, "keyword", change),))


def _optimizer(call: ast.Call, path: str) -> Iterator[Hit]:
    name = path.rpartition(".")[2]
    for keyword in call.keywords:
        if keyword.arg == "lr":
            message = f"{name}(lr=...) is refused by Keras 3; the name is learning_rate."
            edit = Edit(call, "keyword", "lr>learning_rate")
            yield Hit("T116", keyword, message, edits=(edit,))
        elif keyword.arg == "decay":
            message = f"{name}(decay=...) is refused by Keras 3; use a learning rate schedule."
            zero = isinstance(keyword.value, ast.Constant) and keyword.value.value == 0
            edits = (Edit(call, "keyword", "decay>"),) if zero else ()
            yield Hit("T116", keyword, message, edits=edits)


def _checkpoint(program: Program, call: ast.Call) -> Iterator[Hit]:
    for keyword in call.keywords:
        if keyword.arg == "period":
            yield Hit("T116", keyword, "ModelCheckpoint has no argument period; use save_freq.")
    name = program.constant(argument(call, 0, "filepath"))
    weights = program.constant(argument(call, None, "save_weights_only")) is True
    wanted = ".weights.h5" if weights else ".keras"
    if isinstance(name, str) and not name.endswith((wanted, ".h5" if not weights else wanted)):
        message = f"Keras 3 wants a file name that ends in {wanted} here."
        yield Hit("T116", call, message, "maybe")


def file_names(program: Program) -> Iterator[Hit]:
    """Find names of files that Keras 3 does not save to."""
    if not uses_keras(program):
        return
    saved: dict[str, str] = {}
    for call in program.methods("save_weights"):
        given = argument(call, 0, "filepath")
        name = program.text(given)
        if given is None or name is None or name.endswith(".weights.h5"):
            continue
        stem = name.removesuffix(".h5").removesuffix(".hdf5").removesuffix(".ckpt")
        if isinstance(given, ast.Constant):
            saved[name] = f"{stem}.weights.h5"
        edits = (Edit(given, "replace", repr(saved[name])),) if name in saved else ()
        message = f"save_weights({name!r}) is refused: the name must end in .weights.h5."
        yield Hit("T116", given, message, None if edits else "maybe", edits=edits)
    for call in program.methods("load_weights"):
        given = argument(call, 0, "filepath")
        if isinstance(given, ast.Constant) and given.value in saved:
            message = f"These weights are saved as {saved[given.value]} in Keras 3."
            edit = Edit(given, "replace", repr(saved[given.value]))
            yield Hit("T116", given, message, edits=(edit,))
    for call in program.methods("save"):
        if any(keyword.arg == "save_format" for keyword in call.keywords):
            yield Hit("T116", call, "save() has no argument save_format in Keras 3.", "maybe")


CHECKS = (dropped_methods, dropped_arguments, file_names)
