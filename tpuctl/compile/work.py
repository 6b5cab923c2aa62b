"""A program ready for the compiler, whichever framework it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import InvalidInputError


def refuse_uneven(examples: int, devices: int) -> None:
    """Raise InvalidInputError where a batch does not divide among the devices."""
    if examples % devices:
        below, above = examples // devices * devices, -(-examples // devices) * devices
        near = f"--batch {below} or --batch {above}" if below else f"--batch {above}"
        raise InvalidInputError(
            f"A batch of {examples:,} does not divide among {devices} devices.", hint=near
        )


@dataclass(frozen=True)
class Work:
    """A lowered program: `compile` takes the compiler's options, `text` is the program itself.

    `examples` is the global batch where it is known; `fixed_bytes` are those of the arguments that
    do not grow with it, on one device. `layers` are the names that the user gave, where they are
    known apart from the program.
    """

    framework: str
    compile: Callable[[dict[str, str] | None], Any]
    text: str
    examples: int | None
    fixed_bytes: int
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
