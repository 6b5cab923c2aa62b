"""A function of the user's, as it is named on the command line."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import NotFoundError


@dataclass(frozen=True)
class Function:
    """A function in a module (`package.module`) or in a file (a path that ends in `.py`)."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def parse_function(text: str) -> Function | None:
    """Read `module:function` or `path.py:function`; None for anything else.

    Raises NotFoundError for a file that is not there.
    """
    place, separator, name = text.rpartition(":")
    if not (separator and place and name.isidentifier()):
        return None
    if not place.endswith(".py"):
        return Function(place, name)
    if not Path(place).is_file():
        raise NotFoundError(
            f"There is no file {place} to take the function {name} from.",
            hint=f"Write it as path.py:{name}, seen from the folder {Path.cwd()}.",
        )
    return Function(str(Path(place).resolve()), name)


def try_alone(function: Function, then: str = "{}") -> str:
    """Say how to run the user's function without us, to see all that it says."""
    call = f"{function.name}()"
    start = f"from {function.place} import {function.name}"
    if function.place.endswith(".py"):
        start = "import runpy"
        call = f"runpy.run_path({json.dumps(function.place)})[{json.dumps(function.name)}]()"
    code = f"{start}; {then.format(call)}"
    return f"See all that it says without tpuctl: python -c {shlex.quote(code)}"
