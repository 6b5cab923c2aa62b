"""Data sets as text: what was presized, cached, verified, and what is in them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tpuctl.reporters import layout
from tpuctl.reporters.layout import list_some
from tpuctl.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from tpuctl.datasets.models import (
        CacheResult,
        CopyResult,
        Description,
        LabelCount,
        Prediction,
        PresizeResult,
        VerifyResult,
    )
    from tpuctl.datasets.serve import Service

_SHOWN_FILES = 20
_BAR_WIDTH = 30


def render_presized(result: PresizeResult) -> RenderableType:
    """Say what was written, what was left out and why, and the next command."""
    lines = [_headline(result)]
    if result.classes:
        lines.append(
            f"{format_count(len(result.classes), 'class', 'classes')}: {list_some(result.classes)}"
        )
    if result.salvaged:
        lines.append(f"{result.salvaged} salvaged: complete images in truncated files")
    if result.ignored:
        kinds = [f"{count} {kind}" for kind, count in result.ignored.items()]
        lines.append(f"Ignored files that are not images: {list_some(kinds)}")
    parts: list[RenderableType] = [layout.text("\n".join(lines))]
    if result.quarantined:
        parts.append(_left_out(result))
    parts += [layout.text(f"{one.manifest}: {format_bytes(one.bytes_out)}") for one in result.sizes]
    if not result.dry_run and not result.shards_missing:
        folder = result.manifest.rpartition("/")[0]
        parts.append(layout.command(f"Next: tpuctl data verify {shlex.quote(folder)}"))
    return layout.stack(*parts)


def _headline(result: PresizeResult) -> str:
    amount = f"{format_bytes(result.bytes_in)} → {format_bytes(result.bytes_out)}"
    pictures, shards = format_count(result.images, "image"), format_count(result.shards, "shard")
    if result.dry_run:
        return f"Would presize {pictures} into {shards} (about {amount}): {result.manifest}"
    if result.resumed and not result.written:
        done = f"{format_count(result.skipped, 'record')} in {shards} are complete"
        return f"Nothing to do: {done} ({amount}): {result.manifest}"
    if result.shards_missing:
        return (
            f"Presized {format_count(result.written, 'image')} as machine {result.host} of "
            f"{result.hosts}; {result.shards - result.shards_missing} of {shards} are complete: "
            f"{result.manifest} is not written yet"
        )
    kept = f", {result.skipped:,} kept from an earlier run" if result.skipped else ""
    took = f"{format_duration(result.seconds)} ({format_rate(result.images_per_s, 'images')})"
    return (
        f"Presized {result.written:,} of {pictures}{kept}, in {shards} ({amount}), in {took}: "
        f"{result.manifest}"
    )


def _left_out(result: PresizeResult) -> Table:
    table = layout.table("left out", "reason", "detail")
    for bad in result.quarantined[:_SHOWN_FILES]:
        table.add_row(layout.text(bad.path), bad.reason, layout.text(bad.detail))
    if len(result.quarantined) > _SHOWN_FILES:
        more = len(result.quarantined) - _SHOWN_FILES
        table.add_row(f"and {more} more", "", "see quarantine.jsonl next to the manifest")
    return table


def render_cached(result: CacheResult | CopyResult) -> RenderableType:
    """Say what was cached or copied, how near the prediction was, and how to read it."""
    from tpuctl.datasets.models import CopyResult

    return _copied(result) if isinstance(result, CopyResult) else _cached(result)


def _cached(result: CacheResult) -> RenderableType:
    expected = [_prediction(result.predicted)] if result.predicted else []
    if result.dry_run:
        return layout.text("\n".join(expected))
    variants = f" in {format_count(result.variants, 'variant')}" if result.variants > 1 else ""
    done = f"{format_count(result.elements, 'element')}{variants}, {format_bytes(result.bytes_out)}"
    if result.kept_variants == result.variants:
        lines = [f"Nothing to do: {done}: {result.manifest}"]
    else:
        took = format_duration(result.seconds)
        lines = [f"Cached {done}, in {took}: {result.manifest}", *expected]
    folder = result.manifest.rpartition("/")[0]
    following = f"Next: tpuctl.data.open_cache({folder!r}).epoch(0)"
    return layout.stack(layout.text("\n".join(lines)), layout.command(following))


def _prediction(predicted: Prediction) -> str:
    size, time_s = predicted.bytes, predicted.seconds
    if size is None or time_s is None:
        return "No prediction: the number of elements is unknown."
    sizes = " to ".join(format_bytes(int(end)) for end in (size.low, size.high))
    times = " to ".join(format_duration(end) for end in (time_s.low, time_s.high))
    elements = format_count(predicted.elements or 0, "element")
    return f"Predicted for {elements}: {sizes}, {times}, from a sample of {predicted.sample}"


def _copied(result: CopyResult) -> RenderableType:
    what = f"{format_count(result.records, 'record')}, {format_bytes(result.bytes)}"
    lines = [f"Nothing to do: {what} of {result.address}: {result.path}"]
    if result.fetched_bytes:
        fetched = f"{format_bytes(result.fetched_bytes)} in {format_duration(result.seconds)}"
        lines = [f"Copied {what} of {result.address} ({fetched}): {result.path}"]
    if result.evicted:
        lines.append(f"Deleted to make room: {list_some(result.evicted)}")
    reader = "open_tf_dataset" if result.format == "tfrecord" else "open_batches"
    following = f"Next: tpuctl.data.{reader}({result.address!r}, 64) reads the copy"
    return layout.stack(layout.text("\n".join(lines)), layout.command(following))


def render_service(service: Service) -> str:
    """Say that a tf.data service runs, and the line of code that uses it."""
    workers = format_count(len(service.servers) - 1, "worker")
    clients = "" if service.is_open else " Only you can use it, on this machine and on its own."
    return (
        f"A tf.data service with {workers} runs at {service.target}.{clients} In the training, "
        f"before the model:\n\n    {service.line}\n\nCtrl-C stops it."
    )


def render_verified(result: VerifyResult) -> RenderableType:
    """Say that the data set is intact, or list the damage."""
    if not result.damage:
        amount = (
            f"{format_count(result.records, 'record')} in {format_count(result.shards, 'shard')}"
        )
        depth = "every record decoded" if result.depth == "records" else "every byte read"
        took = format_duration(result.seconds)
        size = format_bytes(result.bytes)
        return layout.text(f"{result.path} is intact: {amount}, {size}, {depth} in {took}.")
    table = layout.table("file", "what", "detail")
    for damage in result.damage:
        table.add_row(layout.text(damage.path), damage.kind, layout.text(damage.detail))
    findings = format_count(len(result.damage), "finding")
    return layout.stack(layout.text(f"{result.path} is damaged ({findings}):", "bold"), table)


def render_description(description: Description) -> RenderableType:
    """Show totals, labels, sizes of the originals and what was left out."""
    sizes = []
    for size in description.sizes:
        upto = "and more" if size.to_megapixels is None else f"– {size.to_megapixels:g}"
        sizes.append((f"{size.from_megapixels:g} {upto}", size.records))
    if description.options.get("encode") == "elements":
        parts: list[RenderableType] = list(_cache_parts(description))
    else:
        labels = ((_name(count), count.records) for count in description.labels)
        parts = [
            layout.text(_totals(description)),
            _histogram("label", labels),
            _histogram("originals, megapixels", sizes),
        ]
    if description.flags:
        parts.append(_histogram("treated", description.flags.items()))
    if description.quarantined:
        parts.append(_histogram("left out", description.quarantined.items()))
    if description.sheet:
        parts.append(layout.text(f"Contact sheet: {description.sheet}"))
    return layout.stack(*parts)


def _cache_parts(description: Description) -> Iterable[RenderableType]:
    """Say how many elements a pipeline left, in how many variants, and what is in one."""
    options = description.options
    variants, records = options.get("variants", 1), description.totals.get("records", 0)
    many = isinstance(variants, int) and variants > 1
    size = format_bytes(description.totals.get("bytes_out", 0))
    yield layout.text(
        f"{description.path}: {format_count(records, 'element')} of {options.get('target')}"
        f"{f' in {variants} variants, another one in each epoch' if many else ''}; {size}, "
        f"{format_bytes(description.record_bytes.get('median', 0))} per element (median)"
    )
    yield layout.text(f"An element: {_structure(options.get('structure'), description.shapes)}.")


def _structure(structure: Any, shapes: Mapping[str, tuple[int | None, ...]]) -> str:
    match structure:
        case {"items": dict(items)}:
            inner = (f"{key}: {_structure(item, shapes)}" for key, item in items.items())
            return f"{{{', '.join(inner)}}}"
        case {"items": list(items)}:
            return f"({', '.join(_structure(item, shapes) for item in items)})"
        case {"name": name, "dtype": dtype}:
            sizes = ", ".join("?" if size is None else str(size) for size in shapes.get(name, ()))
            return f"{dtype}[{sizes}]" if sizes else str(dtype)
    return "unknown"


def _totals(description: Description) -> str:
    totals, options = description.totals, description.options
    size = options.get("size")
    written = "x".join(map(str, size)) if isinstance(size, list) else "?"
    records = format_count(totals.get("records", 0), "record")
    bytes_out, bytes_in = (format_bytes(totals.get(key, 0)) for key in ("bytes_out", "bytes_in"))
    median = format_bytes(description.record_bytes.get("median", 0))
    return (
        f"{description.path}: {records} of {written} ({options.get('mode')}, "
        f"{options.get('encode')}) in {format_count(description.shards, 'shard')}, "
        f"{bytes_out} from {bytes_in}; {median} per record (median)"
    )


def _name(count: LabelCount) -> str:
    return count.name or ("none" if count.label == -1 else str(count.label))


def _histogram(title: str, rows: Iterable[tuple[str, int]]) -> Table:
    table = layout.table(title, "records", "")
    counted = list(rows)
    most = max((count for _, count in counted), default=1) or 1
    for name, count in counted:
        bar = "█" * max(1 if count else 0, round(_BAR_WIDTH * count / most))
        table.add_row(layout.text(name), f"{count:,}", bar)
    return table
