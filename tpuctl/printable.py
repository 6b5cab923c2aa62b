"""Text for a terminal: what data contains is shown, and never acts on the terminal.

Names, labels and messages come from workers, services and files. In them, a control character, a
change of the writing direction or a line break would let a stranger write on the screen.
"""

import codecs
import copy
import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

_BREAKS = "\n\t"
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, also the 8-bit ones
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # direction, lines
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # invisible
    "\ud800-\udfff"  # bytes that are not UTF-8
)
_IN_LINES = re.compile(f"[{_UNSAFE}]")
_IN_ONE_LINE = re.compile(f"[{_BREAKS}{_UNSAFE}]")
_COLOUR_OR_UNSAFE = re.compile(f"(\x1b\\[[0-9;:]*m)|(?!\r)[{_UNSAFE}]")
_CUT_OFF = re.compile("\x1b(\\[[0-9;:]{0,40})?$")
_NO_COLOUR = "\x1b[0m"


def printable(text: str, *, lines: bool = False) -> str:
    """Write unprintable characters as escapes, such as `\\x1b`; `lines` keeps line breaks."""
    if text.isascii() and text.isprintable():
        return text
    return (_IN_LINES if lines else _IN_ONE_LINE).sub(_escaped, text)


def _escaped(match: "re.Match[str]") -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def printable_json(document: str, *, ascii_only: bool = False) -> str:
    """Write unprintable characters in a JSON document as JSON escapes, which mean the same."""
    unsafe = re.compile("[^\x00-\x7f]|\x7f") if ascii_only else _IN_LINES
    return unsafe.sub(lambda match: json.dumps(match[0])[1:-1], document)


def printable_result(result: T) -> T:
    """Copy a result with every text in it in one printable line; without such text, return it.

    A field whose metadata says `lines` may have line breaks.
    """
    return _shown(result, lines=False)  # type: ignore[no-any-return]


def _shown(value: Any, *, lines: bool) -> Any:
    if type(value) is str:
        return printable(value, lines=lines)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _shown_fields(value)
    if isinstance(value, PurePath):
        shown = printable(str(value))
        return value if shown == str(value) else type(value)(shown)
    if isinstance(value, Mapping):
        pairs = {_shown(k, lines=False): _shown(v, lines=lines) for k, v in value.items()}
        return value if pairs == value else pairs
    if type(value) in (tuple, list, set, frozenset):
        items = [_shown(item, lines=lines) for item in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else type(value)(items)
    return value


def _shown_fields(value: Any) -> Any:
    changed = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = _shown(old, lines=bool(field.metadata.get("lines")))
        if new is not old:
            changed[field.name] = new
    if not changed:
        return value
    shown = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(shown, name, new)
    return shown


@functools.lru_cache(maxsize=4)
def worker_text(file: TextIO) -> "WorkerText":
    """Return what writes the output of workers to a file, always the same for one file."""
    return WorkerText(file)


class WorkerText:
    """Writes the output of workers: unchanged to a file or pipe, to a terminal only text.

    There, colours stay, up to the end of a line, and `\\r`, with which progress bars return to its
    beginning; everything else that would act on the terminal is written as an escape.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def write(self, data: bytes) -> None:
        """Write a piece of output; it may end within a character or an escape sequence."""
        if self._file.isatty():
            self._file.write(self._shown(self._rest + self._decoder.decode(data)))
        elif hasattr(self._file, "buffer"):
            self._file.buffer.write(data)
        else:
            self._file.write(self._decoder.decode(data))
        self._file.flush()

    def _shown(self, text: str) -> str:
        cut_off = _CUT_OFF.search(text)
        self._rest = cut_off[0] if cut_off else ""
        text = text[: len(text) - len(self._rest)]
        shown = _COLOUR_OR_UNSAFE.sub(lambda match: match[1] or _escaped(match), text)
        return shown.replace("\n", f"{_NO_COLOUR}\n") if _NO_COLOUR[:2] in shown else shown
