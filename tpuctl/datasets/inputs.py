"""Which files of a folder are pictures to presize, and which class each belongs to.

A file counts as a picture when its first bytes say so, whatever its name; a file whose name
promises a picture counts too, so that a broken one is reported and not overlooked. Everything else,
and whatever is hidden, is ignored and counted.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.datasets import magic
from tpuctl.datasets.models import Labels
from tpuctl.datasets.quarantine import readable
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.storage.local import open_regular

UNREADABLE = -1


@dataclass(frozen=True)
class Input:
    """A picture below the source; `bytes` is `UNREADABLE` when its state cannot be read."""

    key: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Inputs:
    """All pictures, sorted by key, and how many files of which kind were ignored."""

    folder: Path
    pictures: tuple[Input, ...]
    ignored: dict[str, int]


def scan(folder: Path) -> Inputs:
    """Find every picture below a folder; raises NotFoundError and InvalidInputError."""
    if not folder.exists():
        raise NotFoundError(f"There is no folder {folder}.", hint="Check the path of the pictures.")
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder} is a file; presize reads a folder of pictures.",
            hint=f"Try: tpuctl data presize {folder.parent} DST",
        )
    ignored: Counter[str] = Counter()
    try:
        found = [found for path in _files(folder, ignored) if (found := _look(folder, path))]
        for path, is_picture in found:
            if not is_picture:
                ignored[_sort_of(path.name)] += 1
        pictures = [_state(folder, path) for path, is_picture in found if is_picture]
    except OSError as error:
        raise InvalidInputError(f"Could not read the folder {folder}: {error}.") from error
    pictures.sort(key=lambda picture: os.fsencode(picture.key))
    return Inputs(folder, tuple(pictures), dict(sorted(ignored.items())))


def assign_labels(
    pictures: tuple[Input, ...], labels: Labels
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the classes in sorted order and each picture's index among them (-1: no label).

    `auto` takes the first-level folders as classes when every picture lies in one and there are at
    least two. Raises InvalidInputError when `folder` is asked for and cannot be had.
    """
    tops = [key.partition("/")[0] if "/" in key else None for key in (p.key for p in pictures)]
    folders = sorted({top for top in tops if top is not None}, key=os.fsencode)
    loose = next((p.key for p, top in zip(pictures, tops, strict=True) if top is None), None)
    if labels == "folder" and loose is not None:
        raise InvalidInputError(
            f"--labels folder needs every picture in a class folder; {readable(loose)} is in none.",
            hint="Move it into the folder of its class, or use --labels none.",
        )
    if labels == "none" or (labels == "auto" and (loose is not None or len(folders) < 2)):
        return (), (-1,) * len(pictures)
    index = {name: number for number, name in enumerate(folders)}
    return tuple(folders), tuple(index[top] for top in tops if top is not None)


def _files(folder: Path, ignored: Counter[str]) -> Iterator[Path]:
    """Yield the files below a folder; each real folder once, by its own name if it has one here."""
    seen: set[tuple[int, int]] = set()
    linked: list[Path] = []
    pending = [folder]
    while pending or linked:
        place = pending.pop() if pending else linked.pop(0)
        state = place.stat()
        if (state.st_dev, state.st_ino) in seen:
            ignored["link to a folder that is read already"] += 1
            continue
        seen.add((state.st_dev, state.st_ino))
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                if entry.name.startswith("."):
                    ignored["hidden"] += 1
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.is_symlink() and _leads_to_a_folder(entry):
                    linked.append(Path(entry.path))
                else:
                    yield Path(entry.path)


def _leads_to_a_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _look(folder: Path, path: Path) -> tuple[Path, bool] | None:
    """Say whether a file is a picture or promises to be one."""
    if magic.claims_to_be_an_image(path.name):
        return path, True
    try:
        with open_regular(path) as file:
            return path, magic.sniff(file.read(magic.HEAD_BYTES)) is not None
    except OSError:
        return path, False


def _sort_of(name: str) -> str:
    return readable(Path(name).suffix.lower()) or "no suffix"


def _state(folder: Path, path: Path) -> Input:
    key = path.relative_to(folder).as_posix()
    try:
        state = path.stat()
    except OSError:
        return Input(key, UNREADABLE, 0)
    if not stat.S_ISREG(state.st_mode):
        return Input(key, UNREADABLE, 0)
    return Input(key, state.st_size, state.st_mtime_ns)
