"""Read the text to explain from files, streams and notebooks: lines, workers, time stamps."""

import codecs
import gzip
import html
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader, BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tpuctl.errors import InvalidInputError

_LOG_NAME = re.compile(r"[^\s\0]+\.(?:log|txt|out|err|ipynb)(?:\.gz)?")
_PIECE = 1 << 20
_LARGEST_NOTEBOOK = 256 << 20
_NOTEBOOK = re.compile(rb'\s*\{\s*"(?:cells|metadata|nbformat)"\s*:')
_BEGINNING = 512
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][AB0])")
_ENTITY = re.compile(r"&(?:#x?[0-9a-fA-F]{1,6}|quot|apos|amp|lt|gt|nbsp);")
# A message in a line of JSON, and the repr of a text.
_JSON = re.compile(
    r'("(?:textPayload|message|msg|log|error|stderr|stdout|traceback)": *")((?:[^"\\]|\\.)+)"'
)
_REPR = re.compile(r"""(\bb)?(["'])((?:(?!\2)[^\\]|\\.)*)\2""")
# A quotation, an exception group's bar, a box around a traceback.
_FRAME = re.compile(r"\s{0,80}(?:(?:> )+|[|│┃║] )(.*?)(?:\s{0,200}[│┃║]\s*)?")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\")
# A shorter one is rather code in a traceback.
_SHORT_REPR = 40
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))")
_ESCAPED = {"n": "\n", "r": "\n", "t": "\t", "b": "", "f": ""}
# `tpuctl logs`, torchrun, xla_dist, Ray and vLLM, `kubectl logs --prefix`, "worker 3: ", mpirun,
# addresses and names of TPU hosts, Docker Compose.
_WORKER = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +[\d.]+ )?(?:"
    r"\[ *(?:worker[ -]?|rank|host[ -]?)?(?P<number>\d{1,5})\]:? "
    r"|(?P<several>(?:all \d+|\d+ of \d+) workers(?: \([^)\n]{1,80}\))?): "
    r"|(?:worker|host|w)[ -]?(?P<named>\d{1,5}): "
    r"|\[(?P<pod>pod/[^\]\n]{1,120})\] "
    r"|\[1,(?P<rank>\d{1,5})\]<std(?:out|err)>: ?"
    r"|\[?(?P<host>(?:\d{1,3}\.){3}\d{1,3}|[a-z][\w-]{0,60}-w-\d{1,5})(?:\]:?|:) "
    r"|(?P<service>[a-z][\w.-]{0,60}-\d{1,5}) +\| "
    r"|\((?P<actor>[A-Za-z_]\w{0,60}(?: [A-Z]{1,3}\d{1,3})? pid=\d+(?:, ip=[\d.]+)?)\) ?)"
)
# Other prefixes, like ordinary words: torchrun's [default0]:, `srun -l`, SkyPilot, pdsh and
# host names, stern, the names of pods in the JSON of Cloud Logging.
_MAYBE_WORKER = re.compile(
    r" *[\[(]? *(?i:(?:worker|rank|host|process|proc|task|node|default|tpu|w|p)[ =:/-]{0,2})?"
    r"(?P<number>\d{1,5})(?:\]:? ?|\) |: | ?\| ?|\t)"
    r"|\((?:[\w-]{1,60}, )?rank=(?P<rank>\d{1,5}),[^)\n]{0,80}\) ?"
    r"|\((?P<task>[\w-]{1,60}, pid=\d+)\) ?"
    r"|(?P<name>[a-z][\w.-]{0,60}-\d{1,5})(?:: |\t)"
    r"|(?P<pod>[a-z][a-z0-9-]{0,60}-\d{1,5}-[a-z0-9]{5}) "
    r'|(?=\{.{0,2000}"pod_name": ?"(?P<json>[\w.-]{1,120})")'
)
# The prefix that a logger repeats in each line of a message of several lines.
_LOGGER = re.compile(r"(?:ERROR|INFO|WARNING|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[\S{1,80}\] ?")
_UNLABELLED, _LINES_EACH = 0.7, 2
_TIME = re.compile(
    r"\b[IWEF](?P<day>\d{4}) (?P<absl>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?:\d{4}-)?(?P<date>\d\d-\d\d)[ T](?P<iso>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)


def looks_like_file(word: str) -> bool:
    """Whether a word is the name of a log or notebook rather than an error."""
    return len(word) < 256 and _LOG_NAME.fullmatch(word) is not None


def read_pieces(stream: BinaryIO) -> Iterator[str]:
    """Decode a stream piece by piece; bytes that are not text become a replacement character."""
    first = stream.read(_PIECE)
    coding = "utf-16" if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
    decoder = codecs.getincrementaldecoder(coding)(errors="replace")
    while first:
        yield decoder.decode(first)
        first = stream.read(_PIECE)
    yield decoder.decode(b"", final=True)


def read_file(path: Path) -> Iterator[str]:
    """Read a log in pieces, also a compressed one, or the error outputs of a notebook."""
    with path.open("rb") as stream:
        if path.suffix == ".ipynb":
            yield notebook_errors(stream, str(path))
        else:
            yield from read_stream(stream, str(path))


def read_stream(raw: BinaryIO, name: str) -> Iterator[str]:
    """Read a log in pieces, also a compressed one, or the error outputs of a notebook."""
    stream = raw if isinstance(raw, BufferedReader) else BufferedReader(raw)  # type: ignore[type-var]
    if _NOTEBOOK.match(stream.peek(_BEGINNING)):
        start = stream.read(_LARGEST_NOTEBOOK)
        try:
            text = notebook_errors(BytesIO(start), name)
        except InvalidInputError:  # a log in JSON may begin alike
            text = start.decode(errors="replace")
        yield text
    if stream.peek(2)[:2] != b"\x1f\x8b":
        yield from read_pieces(stream)
        return
    try:
        yield from read_pieces(gzip.GzipFile(fileobj=stream))  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInputError(
            f"Could not decompress {name}: {error}.",
            hint="Decompress what can be read: zcat FILE | tpuctl explain -",
        ) from error


def notebook_errors(stream: BinaryIO, name: str) -> str:
    """Return the stderr output of a notebook's cells, and the errors that ended them.

    Raises InvalidInputError if the stream is not a notebook.
    """
    content = stream.read(_LARGEST_NOTEBOOK + 1)
    if len(content) > _LARGEST_NOTEBOOK:
        raise InvalidInputError(
            f"Could not read the notebook {name}: it is larger than {_LARGEST_NOTEBOOK >> 20} MiB.",
            hint="Save it without images, or copy the error into a text file.",
        )
    try:
        cells = json.loads(content)["cells"]
        outputs = [out for cell in cells for out in cell.get("outputs", ())]
        return "\n".join(text for out in outputs if (text := _error_text(out)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(
            f"Could not read the notebook {name}: it is not a notebook of format 4.",
            hint="Copy the error into a text file and run: tpuctl explain error.txt",
        ) from error


def _error_text(output: dict[str, object]) -> str:
    kind = output.get("output_type")
    if kind == "error":
        trace = output.get("traceback") or ()
        last = f"{output.get('ename')}: {output.get('evalue')}"
        return "\n".join([*map(str, trace if isinstance(trace, list) else ()), last])
    # The errors of a program that a cell starts with `!` are in stdout.
    text = output.get("text") if kind == "stream" else ""
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


def split_lines(pieces: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without escape sequences; a long line comes in parts."""
    number, rest = 1, ""
    for piece in chain(pieces, [None]):
        text = rest + (piece or "")
        # An escape sequence, or \r\n, may continue in the next piece.
        cut = text.rfind("\x1b", -300) if piece is not None else -1
        rest = text[cut:] if cut >= 0 else "\r" * (text.endswith("\r") and piece is not None)
        text = text[: len(text) - len(rest)]
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        if "&" in text:
            text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
        *lines, last = text.split("\n")
        for line in lines:
            yield number, line
            number += 1
        yield number, last


def unfold(line: str) -> list[str]:
    """Return the lines that a line holds in JSON or as a repr, without the frame around it."""
    if line.lstrip()[:1] in ">|│┃║" and (framed := _FRAME.fullmatch(line)):
        line = framed[1]
    if '": "' in line or '":"' in line:
        line = _JSON.sub(lambda found: f'{found[1]}\n{_unescape(found[2])}\n"', line)
    if "\\n" in line or "b'" in line or 'b"' in line:
        line = _REPR.sub(_unfold_repr, line)
    # A part of such a text, without its quotes; a short text in quotes is code.
    if "\\n" in line and "\\n" in _REPR.sub("", line) and not _WINDOWS_PATH.search(line):
        line = line.replace("\\n", "\n")
    return line.split("\n")


def _unfold_repr(found: re.Match[str]) -> str:
    is_message = found[1] or ("\\n" in found[3] and len(found[3]) >= _SHORT_REPR)
    return f"\n{_unescape(found[3])}\n" if is_message else found[0]


def _unescape(text: str) -> str:
    text = _ESCAPE.sub(
        lambda found: (
            chr(int(found[1] or found[2], 16))
            if found[1] or found[2]
            else _ESCAPED.get(found[3], found[3])
        ),
        text,
    )
    try:  # the bytes of UTF-8
        text = text.encode("latin-1").decode()
    except UnicodeError:  # JSON writes a character beyond U+FFFF as two surrogates
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _ESCAPES.sub("", text)


def worker_of(line: str, form: re.Pattern[str] = _WORKER) -> tuple[str | None, str]:
    """Split a line into its worker, if it names one, and the rest."""
    found = form.match(line)
    if not found:
        return None, line
    name = next(group for group in found.groups() if group)
    return name, _LOGGER.sub("", line[found.end() :], 1)


def label_form(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return the form of the workers' names before most lines of a log; None if they have none."""
    for form in (_WORKER, _MAYBE_WORKER):
        labels = Counter(worker_of(line, form)[0] for line in lines)
        unlabelled = labels.pop(None, 0)
        # Numbers that rise with each line, as of steps, name no workers.
        recur = form is _WORKER or labels.total() >= _LINES_EACH * len(labels)
        if len(labels) > 1 and unlabelled <= _UNLABELLED * len(lines) and recur:
            return form
    return None


def time_in(line: str) -> tuple[str, str] | None:
    """Return the day (MM-DD) and the time in a line's time stamp."""
    found = _TIME.search(line[:200])
    if not found:
        return None
    day = found["date"] or f"{found['day'][:2]}-{found['day'][2:]}"
    return day, (found["iso"] or found["absl"]).replace(",", ".")
