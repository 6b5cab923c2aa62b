"""A program ready for the compiler, whichever framework it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """A lowered program: `compile` takes the compiler's options, `text` is the program itself.

    `examples` is the global batch where it is known.
    """

    framework: str
    compile: Callable[[dict[str, str] | None], Any]
    text: str
    examples: int | None
    argument_bytes: int
    notes: tuple[str, ...] = ()
