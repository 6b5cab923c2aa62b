"""What a data set holds: totals, labels, sizes, what was left out; and a sheet of thumbnails."""

import io
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tpuctl.datasets import manifest
from tpuctl.datasets.formats import open_container
from tpuctl.datasets.formats.records import Preview, decode_example, decode_leading_features
from tpuctl.datasets.images.geometry import Flag
from tpuctl.datasets.local_copies import local_copy
from tpuctl.datasets.manifest import DataSet
from tpuctl.datasets.models import Description, LabelCount, SizeBin
from tpuctl.datasets.reading import need_images_extra, to_record, translated_damage
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.progress import silent
from tpuctl.storage.local import write_atomically

# Elements of a cache whose shapes are compared.
_LOOKED_AT = 1000
_MEGAPIXELS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 50.0)


def describe(dst: str | Path) -> Description:
    """Read labels and sizes of all records without their images; of a cache, what it holds.

    Raises NotFoundError and InvalidInputError.
    """
    need_images_extra()
    with local_copy(dst, on_progress=silent) as folder:
        return _describe(manifest.load(folder), str(dst))


def _describe(data_set: DataSet, name: str) -> Description:
    labels: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    flags: Counter[str] = Counter()
    lengths: list[int] = []
    for preview in _all(data_set):
        lengths.append(preview.length)
        if data_set.encode == manifest.ELEMENTS:
            continue
        record = to_record(decode_leading_features(preview.head), data_set)
        labels[record.label] += 1
        sizes[bisect(_MEGAPIXELS, record.orig_height * record.orig_width / 1e6) - 1] += 1
        flags.update(flag.name.lower() for flag in Flag if record.flags & flag and flag.name)
    lengths.sort()
    # Every class, also an empty one, then other labels.
    names = dict(enumerate(data_set.classes))
    spread = {}
    if lengths:
        spread = {"min": lengths[0], "median": lengths[len(lengths) // 2], "max": lengths[-1]}
    return Description(
        path=name,
        plan_id=data_set.plan_id,
        options=data_set.options,
        totals=data_set.totals,
        shards=len(data_set.shards),
        labels=tuple(
            LabelCount(label, names.get(label, ""), labels[label])
            for label in sorted({*names, *labels})
        ),
        sizes=tuple(
            SizeBin(_MEGAPIXELS[index], (*_MEGAPIXELS[1:], None)[index], sizes[index])
            for index in sorted(sizes)
        ),
        quarantined=data_set.quarantined,
        record_bytes=spread,
        flags=dict(sorted(flags.items())),
        shapes=_shapes(data_set) if data_set.encode == manifest.ELEMENTS else {},
    )


def _shapes(data_set: DataSet) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of a cache's arrays by name, without those whose rank differs."""
    from tpuctl.datasets._elements import leaves_of
    from tpuctl.datasets.readers import open_cache

    structure = data_set.options["structure"]
    found: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for element in islice(open_cache(data_set.folder, shuffle=False).epoch(0), _LOOKED_AT):
        for name, leaf in leaves_of(element, structure):
            found[name].add(getattr(leaf, "shape", ()))
    return {
        name: tuple(a.pop() if len(a) == 1 else None for a in map(set, zip(*shapes, strict=True)))
        for name, shapes in found.items()
        if len(set(map(len, shapes))) == 1
    }


def write_sheet(dst: str | Path, path: str | Path, *, most: int = 64) -> Path:
    """Write a PNG with up to `most` records, spread evenly over the data set, with their labels.

    The same data set gives the same sheet. Raises UsageError for a path without .png,
    NotFoundError, InvalidInputError and WriteError.
    """
    if not str(path).lower().endswith(".png"):
        raise UsageError(
            f"--sheet {path} does not end in .png; a contact sheet is a PNG file.",
            hint="Write --sheet sheet.png.",
        )
    write_atomically(Path(path), contact_sheet(dst, most=most))
    return Path(path)


def contact_sheet(dst: str | Path, *, most: int = 64, kind: str = "PNG") -> bytes:
    """Draw the picture of `write_sheet`; of a cache, its images, as many of every variant.

    `kind` may be JPEG, which is much smaller. Raises NotFoundError and InvalidInputError.
    """
    need_images_extra()
    from tpuctl.datasets.images._rasters import draw_sheet

    sheet = io.BytesIO()
    with local_copy(dst, on_progress=silent) as folder:
        data_set = manifest.load(folder)
        if data_set.encode == manifest.ELEMENTS:
            cached: list[Any] = list(_cached_pictures(folder, most))
            draw_sheet(cached, len(cached), (), *_heading(data_set, dst)).save(sheet, kind)
            return sheet.getvalue()
        count = min(most, data_set.records)
        wanted = {index * data_set.records // count for index in range(count)}
        chosen = (preview for index, preview in enumerate(_all(data_set)) if index in wanted)
        records = (to_record(decode_example(preview.whole()), data_set) for preview in chosen)
        heading = _heading(data_set, dst)
        draw_sheet(records, count, data_set.classes, *heading).save(sheet, kind)
    return sheet.getvalue()


def _heading(data_set: DataSet, dst: str | Path) -> tuple[str, str]:
    """Return what is written above a sheet: the same for the same data set, wherever it is."""
    options, size = data_set.options, data_set.options.get("size")
    shape = f" of {'x'.join(map(str, size))} ({options.get('mode')})" if size else ""
    name = str(dst).rstrip("/").rpartition("/")[2]
    about = f"{data_set.encode}, in {len(data_set.shards)} shards; data set {data_set.plan_id[:8]}"
    return f"{name}: {data_set.records:,} records{shape}", about


@dataclass(frozen=True)
class _Cached:
    """An image among the elements of a cache; it is drawn as a record is."""

    pixels: Any
    key: str
    label: int = -1

    def array(self) -> Any:
        """Return height x width x 3 of uint8."""
        return self.pixels if self.pixels.shape[-1] == 3 else self.pixels[..., [0, 0, 0]]


def _cached_pictures(folder: Path, most: int) -> Iterator[_Cached]:
    from tpuctl.datasets._elements import leaves_of
    from tpuctl.datasets.readers import open_cache

    cache = open_cache(folder, shuffle=False)
    structure = cache.data_set.options["structure"]
    each = max(1, most // cache.variants)
    for variant in range(min(cache.variants, most)):
        for number, element in enumerate(islice(cache.epoch(variant), each)):
            leaves = (leaf for _, leaf in leaves_of(element, structure))
            for pixels in filter(_is_picture, leaves):
                yield _Cached(pixels, f"{number}, variant {variant}")
                break
            else:
                raise InvalidInputError(
                    f"The elements in {folder} have no image (uint8, height x width x 1 or 3).",
                    hint="Describe them without --sheet.",
                )


def _is_picture(leaf: Any) -> bool:
    shape: tuple[int, ...] = getattr(leaf, "shape", ())
    return len(shape) == 3 and shape[2] in (1, 3) and leaf.dtype == "uint8" and 0 not in shape


def _all(data_set: DataSet) -> Iterator[Preview]:
    """Yield a preview of every record; raises InvalidInputError if a shard is damaged."""
    container = open_container(data_set.format, data_set.encode)
    for shard in data_set.shards:
        with translated_damage(data_set, shard):
            yield from container.preview(data_set.path(shard))
