"""Find the trace files of a capture and open them, or say what else a file is."""

import contextlib
import io
import re
import shlex
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.profiling.trace.xspace import Space, read_space
from tpuctl.units import GIB, format_bytes

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
# Files are read into memory, and a compressed one could expand to any size.
LARGEST_BYTES = 4 * GIB
HINT = "Take one: jax.profiler.trace(DIR) or tf.profiler.experimental.start(DIR), then give DIR."
REPLACED = "�".encode()
_CHUNK = 1 << 20
# Traces shrink to a tenth or a thirtieth; what a bomb of some megabytes may take.
_MOST_EXPANSION, _ALWAYS_BYTES = 60, 128 << 20
_STAMP = re.compile(r"\d{4}(_\d\d){5}")
# The zlib setting for gzip files.
ZIPPED = 16 + zlib.MAX_WBITS
SHORTER = "Trace a few steps only; a second or two is enough."
_KNOWN = (
    (b"{", "it looks like JSON; the trace next to it ends with .xplane.pb"),
    (b"[", "it looks like JSON; the trace next to it ends with .xplane.pb"),
    (b"<", "it looks like a web page"),
    (b"PK\x03\x04", "it is a zip archive"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; unpack it first"),
    (b"version https://git-lfs", "it is a Git LFS pointer; fetch the file with git lfs pull"),
)


@dataclass(frozen=True)
class Capture:
    """The traces of one run, a file for each host; `others` are further runs in the folder."""

    files: tuple[Path, ...]
    others: tuple[Path, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Which runs were not read."""
        if not self.others:
            return ()
        names = ", ".join(map(str, self.others[:3]))
        more = f" and {len(self.others) - 3} more" if len(self.others) > 3 else ""
        run = self.files[0].parent
        return (f"Only the newest capture, {run}, was read; not read: {names}{more}.",)


def find_capture(path: Path) -> Capture:
    """Find the newest capture below a folder, or take the file as it is.

    Raises NotFoundError if there is none and InvalidInputError if it cannot be read.
    """
    try:
        if not path.exists():
            raise NotFoundError(f"The trace {path} does not exist.", hint=HINT)
        if path.is_dir():
            return _newest(path)
        if not path.is_file():
            raise InvalidInputError(f"{path} is a device or a pipe, not a trace.", hint=HINT)
    except OSError as error:
        raise InvalidInputError(f"Could not read {path}: {error.strerror}.") from error
    return Capture((path,))


def _newest(folder: Path) -> Capture:
    runs: dict[Path, list[Path]] = defaultdict(list)
    for file in folder.rglob("*"):
        if file.name.endswith(SUFFIXES) and file.is_file():
            runs[file.parent].append(file)
    if not runs:
        raise NotFoundError(f"No .xplane.pb file found in {folder}.", hint=HINT)
    newest, *others = sorted(runs, key=lambda run: _age(run, runs[run]), reverse=True)
    return Capture(tuple(sorted(runs[newest])), tuple(others))


def _age(run: Path, files: list[Path]) -> tuple[str, float]:
    """When a run was captured: its folder's name is a timestamp; else, when it was written."""
    stamp = run.name if _STAMP.fullmatch(run.name) else ""
    return stamp, max(file.stat().st_mtime for file in files)


def open_trace(file: Path) -> Space:
    """Read one trace.

    Raises InvalidInputError, which says what the file is, if it is not a trace. A damaged trace is
    read as far as possible, and the result lists the damage.
    """
    data = _content(file)
    if REPLACED in data and _was_text(data):
        count = data.count(REPLACED)
        raise InvalidInputError(
            f"{file} is a trace that was converted to text: {count:,} of its bytes were replaced "
            "by U+FFFD and are lost.",
            hint="Copy the original again as a binary file.",
        )
    space = read_space(data)
    if not any(plane.name and (plane.lines or plane.stat_spans) for plane in space.planes):
        raise InvalidInputError(f"{file} is not a trace: {_what_it_is(data)}.", hint=HINT)
    return space


def _content(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
        if size <= LARGEST_BYTES:
            return _unzip(file, size) if zipped else file.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"Could not read {file}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise InvalidInputError(f"{file} does not fit in memory.", hint=SHORTER) from error
    raise InvalidInputError(
        f"{file} has {format_bytes(size)}; the largest trace that can be read has "
        f"{format_bytes(LARGEST_BYTES)}.",
        hint=SHORTER,
    )


def _unzip(file: Path, size: int) -> bytes:
    """Unzip as far as possible; the reader notices if the end is missing."""
    limit = min(LARGEST_BYTES, max(_ALWAYS_BYTES, _MOST_EXPANSION * size))
    content, unzip = io.BytesIO(), zlib.decompressobj(wbits=ZIPPED)
    with file.open("rb") as stream, contextlib.suppress(zlib.error):
        while chunk := unzip.unconsumed_tail or stream.read(_CHUNK):
            content.write(unzip.decompress(chunk, 64 * _CHUNK))
            if content.tell() > limit:
                raise InvalidInputError(
                    f"{file} has {format_bytes(size)}, and more than {format_bytes(limit)} "
                    "unpacked; such a file is not a trace.",
                    hint=f"If it is one, unpack it first: gunzip -k {shlex.quote(str(file))}",
                )
    return content.getvalue()


def _was_text(data: bytes) -> bool:
    """Whether everything is valid UTF-8, which a binary trace never is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _what_it_is(data: bytes) -> str:
    if not data.strip(b"\0 \r\n"):
        return "it is empty"
    for start, what in _KNOWN:
        if data.lstrip().startswith(start):
            return what
    return "it has another format"
