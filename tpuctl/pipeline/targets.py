"""What the word TARGET on the command line means."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.pipeline.shards import is_shard_folder

SUPPORTED = (
    "a folder of photographs, a folder of tpuctl shards, module:function or path.py:function"
)


@dataclass(frozen=True)
class Target:
    """A folder, or a function in a module or in a file."""

    kind: Literal["photos", "shards", "tf.data"]
    place: str
    function: str | None = None


def parse_target(text: str) -> Target:
    """Find out what to profile.

    Raises NotFoundError or InvalidInputError with what is supported.
    """
    path = Path(text)
    if text and path.is_dir():
        return Target("shards" if is_shard_folder(path) else "photos", str(path.resolve()))
    place, separator, function = text.rpartition(":")
    if separator and place and function.isidentifier():
        if place.endswith(".py") and not Path(place).is_file():
            raise NotFoundError(f"There is no file {place} to take the function {function} from.")
        return Target(
            "tf.data", str(Path(place).resolve()) if place.endswith(".py") else place, function
        )
    if path.is_file():
        hint = (
            f"Name the function that returns the data set: {text}:function"
            if path.suffix == ".py"
            else None
        )
        raise InvalidInputError(f"{text} is a file; profile run takes {SUPPORTED}.", hint=hint)
    raise NotFoundError(f"There is no {text!r} to profile.", hint=f"profile run takes {SUPPORTED}.")


def try_alone(target: Target, *, iterate: bool = False) -> str | None:
    """Say how to run the user's function without us, to see all that it says."""
    if target.function is None:
        return None
    call = f"{target.function}()"
    start = f"from {target.place} import {target.function}"
    if target.place.endswith(".py"):
        start = "import runpy"
        call = f"runpy.run_path({json.dumps(target.place)})[{json.dumps(target.function)}]()"
    if iterate:
        call = f"list({call}.take(1000))"
    return f"See all that it says without tpuctl: python -c {shlex.quote(f'{start}; {call}')}"
