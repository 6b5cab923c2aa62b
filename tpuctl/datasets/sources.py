"""`module:function` or `path.py:function`: what makes the elements that `data cache` keeps."""

import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.errors import InvalidInputError, NotFoundError, TargetError, UsageError

_INFINITE = -1


@dataclass(frozen=True)
class Source:
    """A function of the user's that returns a tf.data pipeline or any other iterable."""

    text: str
    function: Callable[..., Any]
    code_sha256: str

    @property
    def takes_seed(self) -> bool:
        """Whether it can be told which variant to make."""
        return "seed" in inspect.signature(self.function).parameters

    def open(self, seed: int) -> Iterable[Any]:
        """Make the pipeline for one variant; raises TargetError."""
        _seed_everything(seed)
        try:
            made = self.function(seed=seed) if self.takes_seed else self.function()
        except Exception as error:
            raise self.failed(error, "calling it") from error
        if not isinstance(made, Iterable):
            raise InvalidInputError(
                f"{self.text} returned a {type(made).__name__}, which has no elements.",
                hint="Return a tf.data.Dataset or anything else that can be iterated over.",
            )
        return made

    def failed(self, error: Exception, doing: str) -> TargetError:
        """Turn an exception of the user's code into our error."""
        first = str(error).strip().splitlines()[:1]
        detail = f"{type(error).__name__}: {''.join(first)}"
        return TargetError(f"{self.text} failed while {doing}: {detail}")


def load_source(text: str) -> Source:
    """Import the module or file and find the function in it.

    Raises UsageError, NotFoundError, InvalidInputError and TargetError.
    """
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise UsageError(
            f"{text!r} is no pipeline; data cache takes module:function or path.py:function.",
            hint="For a folder of photographs: tpuctl data presize SRC DST",
        )
    module = _load(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(f"{place} has no function {name}.")
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name != "seed"
    ]
    if needed:
        raise InvalidInputError(
            f"{text} needs arguments ({', '.join(needed)}); data cache gives it at most a seed.",
            hint="Give them defaults, or name a function that calls it.",
        )
    code = Path(module.__file__).read_bytes() if module.__file__ else b""
    return Source(text, function, hashlib.sha256(code).hexdigest())


def count_elements(made: Iterable[Any], *, at_most: int | None) -> int | None:
    """Say how many elements there will be; None when nobody knows.

    Raises UsageError for a pipeline that never ends, unless it is cut off.
    """
    cardinality = getattr(made, "cardinality", None)
    count = int(cardinality()) if cardinality is not None else None
    if count == _INFINITE and at_most is None:
        raise UsageError(
            "The pipeline never ends; say how much of it to keep.",
            hint="Write --elements N, or remove .repeat().",
        )
    if count is None and isinstance(made, Sized):
        count = len(made)
    if count is None or count < 0:
        return at_most
    return count if at_most is None else min(count, at_most)


def _load(place: str) -> ModuleType:
    if place.endswith(".py") and not Path(place).is_file():
        raise NotFoundError(f"There is no file {place}.", hint="Check the path.")
    try:
        return _run_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name == place.partition(".")[0]:
            raise NotFoundError(
                f"There is no module {place}.", hint="Write path.py:function."
            ) from error
        raise TargetError(f"Importing {place} failed: {error}") from error
    except Exception as error:
        raise TargetError(f"Importing {place} failed: {type(error).__name__}: {error}") from error


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _seed_everything(seed: int) -> None:
    """Seed whatever random numbers the pipeline may draw; only what it has imported itself."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
