"""Find, import and check a user function given as `module:function` or `path.py:function`."""

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    TargetError,
    Terminated,
    TpuctlError,
    UsageError,
)
from tpuctl.usercode.error_summary import describe


@dataclass(frozen=True)
class Function:
    """A function in a module (`package.module`) or in a file (a path that ends in `.py`)."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def parse_function(text: str) -> Function | None:
    """Read `module:function` or `path.py:function`; None for anything else.

    Raises NotFoundError for a missing file.
    """
    place, separator, name = text.rpartition(":")
    if not (separator and place and name.isidentifier()):
        return None
    if not place.endswith(".py"):
        return Function(place, name)
    if not os.path.isfile(place):
        raise NotFoundError(
            f"Could not load the function {name}: the file {place} does not exist.",
            hint=f"Use path.py:{name}, relative to {Path.cwd()}.",
        )
    return Function(str(Path(place).resolve()), name)


def target_of(target: object) -> str:
    """Return a target as text: a function as module:function or path.py:function.

    Raises UsageError for anything that another process cannot import.
    """
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    if not inspect.isfunction(target):
        raise UsageError(
            f"A {type(target).__name__} cannot be sent to another process.",
            hint="Pass the function that makes it, as pipeline.py:make_dataset or itself.",
        )
    name, place = target.__name__, target.__module__
    module = sys.modules.get(place)
    if module is None or place == "__main__" or getattr(module, name, None) is not target:
        raise UsageError(
            f"The function {name} runs in a process of its own, which cannot import it.",
            hint=f"Write it to a file, such as pipeline.py (%%writefile in a notebook), and pass "
            f'"pipeline.py:{name if name.isidentifier() else "make"}".',
        )
    return f"{place}:{name}" if "." in place else f"{module.__file__}:{name}"


def try_alone(function: Function, then: str = "{}") -> str:
    """Return a hint with a command that runs the user's function without tpuctl."""
    call = f"{function.name}()"
    start = f"from {function.place} import {function.name}"
    if function.place.endswith(".py"):
        start = "import runpy"
        call = f"runpy.run_path({json.dumps(function.place)})[{json.dumps(function.name)}]()"
    code = f"{start}; {then.format(call)}"
    return f"See its full output without tpuctl: python -c {shlex.quote(code)}"


def load_function(function: Function, *, given: Collection[str], caller: str) -> Callable[..., Any]:
    """Import a function that can be called with only the arguments in `given`.

    `caller` is the command that will call it. Raises TargetError if importing the module fails, and
    InvalidInputError if it has no such function or the function requires other arguments.
    """
    with user_code_errors(f"Importing {function.place} failed", function):
        module = _load_module(function.place)
    found = getattr(module, function.name, None)
    if not callable(found):
        raise InvalidInputError(
            f"{function.place} has no function {function.name}.",
            hint=f"It has: {', '.join(_functions(module)) or 'none'}.",
        )
    needed = [
        parameter.name
        for parameter in parameters(found).values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in given
    ]
    if needed:
        raise InvalidInputError(
            f"{function} requires arguments that {caller} does not pass: {', '.join(needed)}.",
            hint="Give them default values, or name a function that needs none.",
        )
    loaded: Callable[..., Any] = found
    return loaded


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, empty for a built-in without a signature."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


@contextlib.contextmanager
def user_code_errors(doing: str, function: Function, then: str = "{}") -> Iterator[None]:
    """Turn any exception of user code into a TargetError that says where it was raised."""
    try:
        yield
    except (TpuctlError, KeyboardInterrupt, Terminated):
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{doing}: {describe(error)}", hint=try_alone(function, then)) from error


def _load_module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        # Code in the current folder is loaded only if the user named it.
        if PathFinder.find_spec(place.partition(".")[0], [os.getcwd()]):
            sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place.partition(".")[0]:
                raise
            raise NotFoundError(
                f"Module {place} was not found in {os.getcwd()} or among the installed packages.",
                hint="Name the file instead: path.py:function",
            ) from error
    path = Path(place)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{place} cannot be loaded as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
