"""Which class each picture belongs to: by its folder, by a CSV file, or none."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tpuctl.datasets.inputs import Input
from tpuctl.datasets.quarantine import readable
from tpuctl.errors import InvalidInputError, NotFoundError

NO_LABEL = -1

_PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_id", "key", "id")
_LABEL_COLUMNS = ("label", "class", "category", "target", "labels", "class_name", "label_id")
_MOST_BYTES = 1 << 30
_SHOWN = 3


@dataclass(frozen=True)
class Labelling:
    """The classes in order, each picture's index among them (-1: no label), and what to say."""

    classes: tuple[str, ...]
    labels: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()


def assign_labels(pictures: Sequence[Input], how: str) -> Labelling:
    """Label pictures by `folder`, by a file `*.csv`, not at all (`none`), or as fits (`auto`).

    `auto` takes the first-level folders as classes when every picture lies in one and there are at
    least two. Raises InvalidInputError and NotFoundError when what is asked for cannot be had.
    """
    if is_csv(how):
        return _by_file(pictures, Path(how))
    tops = [key.partition("/")[0] if "/" in key else None for key in (p.key for p in pictures)]
    folders = sorted({top for top in tops if top is not None}, key=os.fsencode)
    loose = next((p.key for p, top in zip(pictures, tops, strict=True) if top is None), None)
    if how == "folder" and loose is not None:
        raise InvalidInputError(
            f"--labels folder needs every picture in a class folder; {readable(loose)} is in none.",
            hint="Move it into the folder of its class, or use --labels none.",
        )
    if how == "none" or (how == "auto" and (loose is not None or len(folders) < 2)):
        return Labelling((), (NO_LABEL,) * len(pictures), "none")
    index = {name: number for number, name in enumerate(folders)}
    return Labelling(tuple(folders), tuple(index[top] for top in tops if top is not None), "folder")


def is_csv(how: str) -> bool:
    """Whether `--labels` names a file."""
    return how.lower().endswith(".csv")


def _by_file(pictures: Sequence[Input], path: Path) -> Labelling:
    """Match lines with pictures by path, or by a name or stem that only one picture has."""
    rows = list(_read_rows(path))
    keys = {picture.key for picture in pictures}
    nicknames = _nicknames(pictures)
    named: dict[str, str] = {}
    strangers = []
    for line, name, label in rows:
        key = name if name in keys else nicknames.get(name)
        if key is None:
            strangers.append(name)
        elif named.setdefault(key, label) != label:
            raise InvalidInputError(
                f"{path}, line {line}: {readable(key)} is {label!r} here and {named[key]!r} before."
            )
    missing = [picture.key for picture in pictures if picture.key not in named]
    if missing:
        raise InvalidInputError(
            f"{len(missing)} of {len(pictures)} pictures have no line in {path}: {_some(missing)}.",
            hint="Give each a line `path,label`, the path as seen from SRC, or move them away.",
        )
    classes = _in_order(set(named.values()))
    index = {name: number for number, name in enumerate(classes)}
    notes = (f"{len(strangers)} lines of {path} name no picture: {_some(strangers)}.",)
    labels = tuple(index[named[picture.key]] for picture in pictures)
    return Labelling(classes, labels, "csv", notes if strangers else ())


def _read_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, path and label; a header is recognised by the names of its columns."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidInputError(f"{path} is too large for a list of labels.")
        text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path} to take labels from.") from None
    except OSError as error:
        raise InvalidInputError(f"Could not read {path}: {error.strerror or error}.") from error
    columns: tuple[int, int] | None = None
    # Not by its lines: a name in quotes may have several.
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if not any(row):
                continue
            header = _header(row) if columns is None else None
            columns = columns or header or (0, 1)
            if header is None:
                yield reader.line_num, *_pick(row, columns, path, reader.line_num)
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line {reader.line_num}: {error}.") from error


def _header(row: list[str]) -> tuple[int, int] | None:
    words = [word.strip().lower() for word in row]
    places = next((words.index(name) for name in _PATH_COLUMNS if name in words), None)
    labels = next((words.index(name) for name in _LABEL_COLUMNS if name in words), None)
    return None if places is None or labels is None else (places, labels)


def _pick(row: list[str], columns: tuple[int, int], path: Path, line: int) -> tuple[str, str]:
    cells = [row[column].strip() if column < len(row) else "" for column in columns]
    if not all(cells):
        raise InvalidInputError(
            f"{path}, line {line}: a path and a label are needed, there is {','.join(row)!r}.",
            hint="Write `path,label`, or a header with columns of these names.",
        )
    return cells[0].removeprefix("./"), cells[1]


def _nicknames(pictures: Sequence[Input]) -> dict[str, str]:
    """Map what lists commonly call a picture to its key, where it can mean only one."""
    names: dict[str, str | None] = {}
    for picture in pictures:
        path = PurePosixPath(picture.key)
        for name in {path.name, path.stem, str(path.with_suffix(""))}:
            names[name] = None if name in names else picture.key
    return {name: key for name, key in names.items() if key is not None}


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """Sort numbers as numbers, so that labels 0 to n-1 keep their values."""
    if all(label.isascii() and label.isdigit() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels, key=os.fsencode))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(readable(name) for name in names[:_SHOWN]) + more
