"""Parse the compiler's final program (HLO text), as far as its cost depends on it. Pure.

https://openxla.org/xla/operation_semantics and the printer in xla/hlo/ir/hlo_instruction.cc.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BITS = {"pred": 8, "token": 0, "opaque": 0}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"\s*([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=\s]*)\](?:\{([\d,]*)([^{}]*)\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(calls|body|condition|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_FILE = re.compile(r'^(\d+) "(.*)"$')
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)")
_FRAME_OF = re.compile(r"stack_frame_id=(\d+)")
_TRUE_FALSE = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)")


@dataclass(frozen=True)
class Array:
    """The type of an array: element type, sizes, layout and memory space.

    Memory space 0 is HBM, 1 is the core's vector memory.
    """

    dtype: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    space: int = 0

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding."""
        digits = re.search(r"\d+", self.dtype)
        bits = BITS[self.dtype] if self.dtype in BITS else int(digits[0]) if digits else 32
        return -(-math.prod(self.sizes) * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """One instruction; `text` is what follows the operands."""

    name: str
    operation: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str
    is_root: bool = False

    def called(self, key: str) -> str | None:
        """Return the computation that is named as `key`: calls, body, condition."""
        return next((name for word, name in _CALLED.findall(self.text) if word == key), None)

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional."""
        if found := _BRANCHES.search(self.text):
            return tuple(name.strip().lstrip("%") for name in found[1].split(","))
        return tuple(_TRUE_FALSE.findall(self.text))

    @property
    def bytes(self) -> int:
        """The size of its results."""
        return sum(array.bytes for array in self.arrays)


@dataclass(frozen=True)
class Computation:
    """A sequence of instructions."""

    name: str
    instructions: tuple[Instruction, ...]
    by_name: dict[str, Instruction] = field(repr=False)

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the result."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    def parameter(self, position: int) -> Instruction | None:
        """Return the instruction that stands for an operand of the caller."""
        parameters = (i for i in self.instructions if i.operation == "parameter")
        return next((i for i in parameters if i.text.split()[0] == str(position)), None)

    def users(self, name: str) -> list[Instruction]:
        """Return the instructions that read a value."""
        return [i for i in self.instructions if name in i.operands]


@dataclass(frozen=True)
class Module:
    """A program: its computations by name, and its entry computation."""

    computations: dict[str, Computation]
    entry: Computation
    places: dict[str, str] = field(default_factory=dict, repr=False)

    def place_of(self, instruction: Instruction) -> str | None:
        """Return the line of source code that an instruction came from: `train.py:12`."""
        frame = _FRAME_OF.search(instruction.text)
        return self.places.get(frame[1]) if frame else None


def parse(text: str) -> Module:
    """Parse HLO text; raises ValueError if it has no entry computation."""
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    for name, lines, is_entry in _blocks(text):
        instructions = tuple(filter(None, map(_instruction, lines)))
        if instructions:
            computation = Computation(name, instructions, {i.name: i for i in instructions})
            computations[name] = computation
            entry = computation if is_entry else entry
    if entry is None:
        raise ValueError("the compiler's program has no entry computation")
    return Module(computations, entry, _read_places(text))


def read_arrays(text: str) -> tuple[Array, ...]:
    """Parse a type: one array, or every array of a tuple."""
    return tuple(_array(*match) for match in _ARRAY.findall(text))


def _blocks(text: str) -> Iterator[tuple[str, list[str], bool]]:
    name, lines, is_entry = "", list[str](), False
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, lines, is_entry = header[2], [], bool(header[1])
        elif line == "}" and name:
            yield name, lines, is_entry
            name = ""
        elif name:
            lines.append(line)


def _read_places(text: str) -> dict[str, str]:
    """Parse the tables before the program: files, lines in files, and stack frames."""
    files, lines, frames = dict[str, str](), dict[str, str](), dict[str, str]()
    section = ""
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")):
            break
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            section = line
        elif section == "FileNames" and (found := _FILE.match(line)):
            files[found[1]] = found[2].rsplit("/", 1)[-1]
        elif section == "FileLocations" and (found := _LOCATION.match(line)):
            lines[found[1]] = f"{files.get(found[2], '?')}:{found[3]}"
        elif section == "StackFrames" and (found := _FRAME.match(line)):
            frames[found[1]] = lines.get(found[2], "?")
    return frames


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    body = match[2]
    # A tuple type is in brackets, which can contain spaces.
    type_end = _closing(body, 0) + 1 if body.startswith("(") else body.find(" ")
    if type_end < 0:
        return None
    operation = _OPERATION.match(body, type_end)
    if not operation:
        return None
    operands_end = _closing(body, operation.end() - 1)
    inside = body[operation.end() : operands_end]
    text = body[operands_end + 1 :]
    if operation[1] in ("constant", "parameter"):
        text = f"{inside} {text}"
    return Instruction(
        name=match[1],
        operation=operation[1],
        arrays=read_arrays(body[:type_end]),
        operands=tuple(_OPERAND.findall(inside)),
        text=text,
        is_root=line.lstrip().startswith("ROOT "),
    )


def _closing(text: str, start: int) -> int:
    """Return where the bracket that opens at `start` closes."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "(":
            depth += 1
        elif text[index] == ")":
            depth -= 1
            if not depth:
                return index
    return len(text)


def _array(dtype: str, sizes: str, order: str, rest: str) -> Array:
    space = re.search(r"S\((\d+)\)", rest)
    return Array(
        dtype,
        tuple(int(size.strip(" <=")) for size in sizes.split(",") if size.strip(" <=")),
        tuple(int(index) for index in order.split(",") if index),
        int(space[1]) if space else 0,
    )
