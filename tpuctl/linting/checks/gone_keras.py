"""Methods and arguments that Keras 3 has dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.linting.checks.gone import keeps_keras_2
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
# Who refuses an argument, which one, and its new name: none, or "" where it had no effect.
_ARGUMENTS = {
    ("an optimizer", "lr"): "learning_rate",
    ("an optimizer", "decay"): None,
    ("ModelCheckpoint()", "period"): None,
    ("compile()", "experimental_steps_per_execution"): "steps_per_execution",
    ("compile()", "experimental_run_tf_function"): "",
    ("compile()", "sample_weight_mode"): "",
}


def uses_keras(program: Program) -> bool:
    """Whether a program imports Keras, alone or with TensorFlow, and not Keras 2."""
    paths = [path for _, path in (*program.imports, *program.paths)]
    return not keeps_keras_2(program) and any(
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
        owner = _owner(program, call)
        for keyword in call.keywords:
            if (owner, keyword.arg) not in _ARGUMENTS:
                continue
            new = _ARGUMENTS[owner, keyword.arg or ""]
            if isinstance(keyword.value, ast.Constant) and keyword.value.value == 0:
                new = new or ""
            edit = Edit(call, "keyword", f"{keyword.arg}>{new}")
            message = f"{keyword.arg}= of {owner} is refused by Keras 3"
            message += f"; the name is {new}." if new else "."
            yield Hit("T116", keyword, message, edits=() if new is None else (edit,))


def _owner(program: Program, call: ast.Call) -> str:
    path = program.path(call.func)
    if path.startswith(("tf.keras.optimizers.", "keras.optimizers.")):
        return "" if ".schedules." in path or ".legacy." in path else "an optimizer"
    if path.endswith("callbacks.ModelCheckpoint"):
        return "ModelCheckpoint()"
    return "compile()" if getattr(call.func, "attr", "") == "compile" else ""


def checkpoint_names(program: Program) -> Iterator[Hit]:
    """Find names of checkpoints that Keras 3 refuses."""
    for call in program.calls:
        if not program.path(call.func).endswith("keras.callbacks.ModelCheckpoint"):
            continue
        name = program.constant(argument(call, 0, "filepath"))
        weights = program.constant(argument(call, None, "save_weights_only")) is True
        wanted = (".weights.h5",) if weights else (".keras", ".h5")
        if isinstance(name, str) and not name.endswith(wanted) and uses_keras(program):
            message = f"Keras 3 wants a file name that ends in {wanted[0]} here."
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


CHECKS = (dropped_methods, dropped_arguments, checkpoint_names, file_names)
