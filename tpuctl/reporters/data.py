"""Data sets as text: what a presize did, what is damaged, what is inside."""

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.datasets.models import (
    CacheResult,
    CopyResult,
    Description,
    Prediction,
    PresizeResult,
    VerifyResult,
)
from tpuctl.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from tpuctl.datasets.serve import Service

_SHOWN_FILES = 20
_BAR_WIDTH = 30


def presize(result: PresizeResult) -> Group:
    """Say what came out, what was left out and why, and the next command."""
    lines = [_headline(result)]
    if result.classes:
        lines.append(Text(f"{len(result.classes)} classes: {_shortened(result.classes)}"))
    if result.salvaged:
        lines.append(Text(f"{result.salvaged} salvaged: complete pictures with a torn file end"))
    if result.ignored:
        kinds = (f"{count} {kind}" for kind, count in result.ignored.items())
        lines.append(Text(f"Ignored what is no picture: {_shortened(tuple(kinds))}"))
    parts: list[RenderableType] = [*lines]
    if result.quarantined:
        parts.append(_left_out(result))
    parts += [Text(f"{one.manifest}: {format_bytes(one.bytes_out)}") for one in result.sizes]
    if not result.dry_run and not result.shards_missing:
        folder = result.manifest.rpartition("/")[0]
        parts.append(Text(f"Next: tpuctl data verify {shlex.quote(folder)}", style="dim"))
    return Group(*parts)


def _headline(result: PresizeResult) -> Text:
    amount = f"{format_bytes(result.bytes_in)} → {format_bytes(result.bytes_out)}"
    if result.dry_run:
        return Text(
            f"Would presize {_count(result.images, 'picture')} into "
            f"{_count(result.shards, 'shard')} (about {amount}): {result.manifest}"
        )
    if result.resumed and not result.written:
        return Text(
            f"Nothing to do: {_count(result.skipped, 'record')} in "
            f"{_count(result.shards, 'shard')} are complete ({amount}): {result.manifest}"
        )
    if result.shards_missing:
        done = result.shards - result.shards_missing
        return Text(
            f"Presized {_count(result.written, 'picture')} as machine {result.host} of "
            f"{result.hosts}; {done} of {_count(result.shards, 'shard')} are complete: "
            f"{result.manifest} is not there yet"
        )
    kept = f", {result.skipped:,} kept from an earlier run" if result.skipped else ""
    return Text(
        f"Presized {result.written:,} of {_count(result.images, 'picture')}{kept}, in "
        f"{_count(result.shards, 'shard')} ({amount}), in {format_duration(result.seconds)} "
        f"({format_rate(result.images_per_s, 'images')}): {result.manifest}"
    )


def _left_out(result: PresizeResult) -> Table:
    table = _table("left out", "reason", "detail")
    for bad in result.quarantined[:_SHOWN_FILES]:
        table.add_row(Text(bad.path), bad.reason, Text(bad.detail))
    if len(result.quarantined) > _SHOWN_FILES:
        more = len(result.quarantined) - _SHOWN_FILES
        table.add_row(f"and {more} more", "", "see quarantine.jsonl beside the manifest")
    return table


def cache(result: CacheResult) -> Group:
    """Say what was kept, how near the prediction was, and how to read it."""
    variants = f" in {_count(result.variants, 'variant')}" if result.variants > 1 else ""
    lines = [_prediction(result.predicted)] if result.predicted else []
    if result.dry_run:
        return Group(*lines)
    done = f"{_count(result.elements, 'element')}{variants}, {format_bytes(result.bytes_out)}"
    if result.kept_variants == result.variants:
        lines.append(Text(f"Nothing to do: {done}: {result.manifest}"))
    else:
        lines.append(Text(f"Kept {done}, in {format_duration(result.seconds)}: {result.manifest}"))
    folder = result.manifest.rpartition("/")[0]
    lines.append(Text(f"Next: tpuctl.datasets.open_cache({folder!r}).epoch(0)", style="dim"))
    return Group(*lines)


def copied(result: CopyResult) -> Group:
    """Say where the copy is, what had to go for it, and how to read it."""
    what = f"{_count(result.records, 'record')}, {format_bytes(result.bytes)}"
    if not result.fetched_bytes:
        lines = [Text(f"Nothing to do: {what} of {result.address}: {result.path}")]
    else:
        fetched = f"{format_bytes(result.fetched_bytes)} in {format_duration(result.seconds)}"
        lines = [Text(f"Copied {what} of {result.address} ({fetched}): {result.path}")]
    if result.evicted:
        lines.append(Text(f"Deleted to make room: {_shortened(result.evicted)}"))
    reader = "open_tf_dataset" if result.format == "tfrecord" else "open_batches"
    next_ = f"Next: tpuctl.datasets.{reader}({result.address!r}, 64) reads the copy"
    return Group(*lines, Text(next_, style="dim"))


def served(service: "Service") -> str:
    """Say that a tf.data service runs, and the line of code that uses it."""
    workers = _count(len(service.servers) - 1, "worker")
    return (
        f"A tf.data service with {workers} runs at {service.target}. In the training, before the "
        f"model:\n\n    {service.line}\n\nCtrl-C ends it."
    )


def _prediction(predicted: Prediction) -> Text:
    size, time_s = predicted.bytes, predicted.seconds
    if size is None or time_s is None:
        return Text("Nobody knows how many elements there will be: no prediction.")
    sizes = " to ".join(format_bytes(int(end)) for end in (size.low, size.high))
    times = " to ".join(format_duration(end) for end in (time_s.low, time_s.high))
    elements = _count(predicted.elements or 0, "element")
    return Text(f"Predicted for {elements}: {sizes}, {times}, from a sample of {predicted.sample}")


def verify(result: VerifyResult) -> RenderableType:
    """Say that all is well, or list what is not."""
    amount = f"{_count(result.records, 'record')} in {_count(result.shards, 'shard')}"
    if not result.damage:
        looked_at = "every record decoded" if result.depth == "records" else "every byte read"
        return Text(
            f"{result.path} is intact: {amount}, {format_bytes(result.bytes)}, {looked_at} in "
            f"{format_duration(result.seconds)}."
        )
    table = _table("file", "what", "detail")
    for damage in result.damage:
        table.add_row(Text(damage.path), damage.kind, Text(damage.detail))
    headline = Text(
        f"{result.path} is damaged ({_count(len(result.damage), 'finding')}):", style="bold"
    )
    return Group(headline, table)


def show(description: Description) -> Group:
    """Show totals, labels, sizes of the originals and what was left out."""
    parts: list[RenderableType] = [_totals(description)]
    parts.append(_histogram("label", ((_name(c), c.records) for c in description.labels)))
    parts.append(
        _histogram(
            "originals, megapixels",
            (
                (
                    f"{size.from_megapixels:g} – {size.to_megapixels:g}"
                    if size.to_megapixels is not None
                    else f"{size.from_megapixels:g} and more",
                    size.records,
                )
                for size in description.sizes
            ),
        )
    )
    if description.flags:
        parts.append(_histogram("treated", description.flags.items()))
    if description.quarantined:
        parts.append(_histogram("left out", description.quarantined.items()))
    if description.sheet:
        parts.append(Text(f"Contact sheet: {description.sheet}"))
    return Group(*parts)


def _totals(description: Description) -> Text:
    totals, options = description.totals, description.options
    size = options.get("size")
    written = "x".join(map(str, size)) if isinstance(size, list) else "?"
    median = description.record_bytes.get("median", 0)
    return Text(
        f"{description.path}: {_count(totals.get('records', 0), 'record')} of {written} "
        f"({options.get('mode')}, {options.get('encode')}) in "
        f"{_count(description.shards, 'shard')}, "
        f"{format_bytes(totals.get('bytes_out', 0))} from "
        f"{format_bytes(totals.get('bytes_in', 0))}; {format_bytes(median)} per record (median)"
    )


def _name(count: object) -> str:
    name, label = getattr(count, "name", ""), getattr(count, "label", -1)
    return name or ("none" if label == -1 else str(label))


def _histogram(title: str, rows: Iterable[tuple[str, int]]) -> Table:
    table = _table(title, "records", "")
    counted = list(rows)
    most = max((count for _, count in counted), default=1) or 1
    for name, count in counted:
        bar = "█" * max(1 if count else 0, round(_BAR_WIDTH * count / most))
        table.add_row(Text(name), f"{count:,}", bar)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _shortened(words: tuple[str, ...], most: int = 8) -> str:
    more = f", and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
