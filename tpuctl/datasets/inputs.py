"""Which files of a folder are images to presize.

A file counts as an image if its first bytes say so, whatever its name. If only its name promises an
image it counts too, so that a broken one is reported and not overlooked. All other files, and
hidden ones, are ignored and counted.
"""

import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.codec import open_regular
from tpuctl.datasets.images import file_type
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.printable import printable
from tpuctl.storage.port import Storage, StoredObject

UNREADABLE = -1

_SHOWN_LINKS = 5
_NOT_FOLLOWED = "link to a folder around the source or the target"


# With slots, because there may be a million of them.
@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image below the source; `bytes` is `UNREADABLE` if it could not be looked at.

    `version` changes with its content: its mtime in ns in a folder, its generation in a bucket.
    """

    key: str
    bytes: int
    version: int


@dataclass(frozen=True)
class ScanResult:
    """All images, sorted by key, how many files of which kind were ignored, and notes.

    `lists` and `reads` count the requests that it took to find them in a bucket.
    """

    pictures: tuple[ImageFile, ...]
    ignored: dict[str, int]
    notes: tuple[str, ...] = ()
    lists: int = 0
    reads: int = 0


@dataclass
class _Walk:
    """One walk over the source, and what it ignored."""

    folder: Path
    target: Path | None
    ignored: Counter[str] = field(default_factory=Counter)
    not_followed: list[str] = field(default_factory=list)


def scan(folder: Path, target: Path | None = None) -> ScanResult:
    """Find every image below a folder; raises NotFoundError and InvalidInputError.

    A link to a folder is followed unless `folder` or `target` is inside it: that would read files
    outside the source, or the results of the last run. Both paths must be free of links.
    """
    if not folder.exists():
        raise NotFoundError(
            f"The folder {folder} does not exist.", hint="Check the path of the images."
        )
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder} is a file; presize reads a folder of images.",
            hint=f"Try: tpuctl data presize {shlex.quote(str(folder.parent))} DST",
        )
    walk = _Walk(folder, target)
    above = len(os.path.join(folder, ""))
    pictures = []
    try:
        for path in _files(walk):
            if _is_picture(path):
                pictures.append(_state(path, path[above:]))
            else:
                walk.ignored[sort_of(path)] += 1
    except OSError as error:
        raise InvalidInputError(f"Could not read the folder {folder}: {error}.") from error
    pictures.sort(key=lambda picture: os.fsencode(picture.key))
    return ScanResult(tuple(pictures), dict(sorted(walk.ignored.items())), _notes(walk))


def _files(walk: _Walk) -> Iterator[str]:
    """Yield the files below a folder; each real folder once, by its own name if it has one here.

    As text: with a million files, pathlib takes longer than everything else.
    """
    seen: set[tuple[int, int]] = set()
    linked: list[Path] = []
    pending = [walk.folder]
    while pending or linked:
        place = pending.pop() if pending else linked.pop(0)
        state = place.stat()
        if (identity := (state.st_dev, state.st_ino)) in seen:
            walk.ignored["link to a folder that is read already"] += 1
            continue
        if _is_off_limits(place, walk):
            walk.ignored[_NOT_FOLLOWED] += 1
            walk.not_followed.append(place.relative_to(walk.folder).as_posix())
            continue
        seen.add(identity)
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                if entry.name.startswith("."):
                    walk.ignored["hidden"] += 1
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.is_symlink() and _leads_to_a_folder(entry):
                    linked.append(Path(entry.path))
                else:
                    yield entry.path


def _is_off_limits(place: Path, walk: _Walk) -> bool:
    """Whether the source or the target is in a linked folder, or the folder in the target."""
    real = Path(os.path.realpath(place))
    if walk.folder in (real, *real.parents):
        return False
    if real in walk.folder.parents:
        return True
    target = walk.target
    return target is not None and (
        real == target or real in target.parents or target in real.parents
    )


def _notes(walk: _Walk) -> tuple[str, ...]:
    links = [printable(link) for link in sorted(walk.not_followed, key=os.fsencode)]
    if not links:
        return ()
    shown = ", ".join(links[:_SHOWN_LINKS])
    more = f" and {len(links) - _SHOWN_LINKS} more" if len(links) > _SHOWN_LINKS else ""
    return (f"Not followed: links around or into the source or the target: {shown}{more}.",)


def _leads_to_a_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_picture(path: str) -> bool:
    """Whether a file is an image, or its name says so."""
    if file_type.has_image_suffix(os.path.basename(path)):
        return True
    try:
        with open_regular(Path(path)) as file:
            return file_type.sniff(file.read(file_type.HEAD_BYTES)) is not None
    except OSError:
        return False


def sort_of(name: str) -> str:
    """Name the kind of an ignored file."""
    return printable(Path(name).suffix.lower()) or "no suffix"


def _state(path: str, key: str) -> ImageFile:
    with suppress(OSError):
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode):
            return ImageFile(key, state.st_size, state.st_mtime_ns)
    return ImageFile(key, UNREADABLE, 0)


_PAGE = 1000
_CONNECTIONS = 16


def scan_bucket(storage: Storage) -> ScanResult:
    """Find every image below an address: one request for a thousand names.

    Objects whose name does not promise an image are looked at, 64 bytes of each. Raises
    NotFoundError where nothing is.
    """
    ignored: Counter[str] = Counter()
    found = []
    for entry in storage.list():
        if any(part.startswith(".") for part in entry.name.split("/")):
            ignored["hidden"] += 1
        else:
            found.append(entry)
    if not found and not ignored:
        raise NotFoundError(
            f"{storage.address} is empty or does not exist.",
            hint=f"See what there is: gcloud storage ls {'/'.join(storage.address.split('/')[:3])}",
        )
    unnamed = [entry for entry in found if not file_type.has_image_suffix(entry.name)]
    others = {
        entry.name for entry, sniffed in zip(unnamed, _sniff(storage, unnamed), strict=True)
        if not sniffed
    }  # fmt: skip
    ignored.update(sort_of(name) for name in others)
    pictures = [
        ImageFile(entry.name, entry.size_bytes, int(entry.version))
        for entry in found
        if entry.name not in others
    ]
    pictures.sort(key=lambda picture: os.fsencode(picture.key))
    pages = 1 + (len(found) + ignored["hidden"]) // _PAGE
    return ScanResult(
        tuple(pictures),
        dict(sorted(ignored.items())),
        lists=pages,
        reads=len(unnamed),
    )


def _sniff(storage: Storage, entries: Sequence[StoredObject]) -> list[bool]:
    """Whether each object begins like an image; one that was deleted meanwhile does not."""

    def sniff(entry: StoredObject) -> bool:
        if not entry.size_bytes:
            return False
        try:
            head = storage.read(entry.name, length=file_type.HEAD_BYTES)
        except (NotFoundError, InvalidInputError):
            return False
        return file_type.sniff(head) is not None

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        return list(threads.map(sniff, entries))
