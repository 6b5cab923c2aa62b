"""Import a function of the user's; what goes wrong in their code is said to be theirs."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.errors import InvalidInputError, TargetError
from tpuctl.usercode.complaint import describe
from tpuctl.usercode.function import Function, try_alone


def load_function(function: Function, *, given: Collection[str], caller: str) -> Callable[..., Any]:
    """Import a function that can be called with no more than the arguments in `given`.

    `caller` is the command that calls it. Raises TargetError where the module fails, and
    InvalidInputError where there is no such function or it needs other arguments.
    """
    with users_errors(f"Importing {function.place} failed", function):
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
            f"{function} needs arguments ({', '.join(needed)}); {caller} calls it without.",
            hint="Give them defaults, or name a function that calls it.",
        )
    loaded: Callable[..., Any] = found
    return loaded


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function; none where it does not tell."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


@contextlib.contextmanager
def users_errors(doing: str, function: Function) -> Iterator[None]:
    """Turn whatever the user's code raises into a TargetError that says where."""
    try:
        yield
    except (InvalidInputError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{doing}: {describe(error)}", hint=try_alone(function)) from error


def _load_module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
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
