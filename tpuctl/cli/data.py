"""`tpuctl data`: presize, cache, verify, show, serve."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tpuctl import data as data_sets
from tpuctl.cli import output
from tpuctl.cli.presizing import presize
from tpuctl.cli.progress import bars
from tpuctl.cli.serving import serve
from tpuctl.datasets.models import parse_shard_bytes, parse_size_of
from tpuctl.datasets.places import bucket_of
from tpuctl.errors import UsageError
from tpuctl.reporters import data as report

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def data() -> None:
    """Shrink photographs once instead of every epoch; verify and show what came out."""


app.command()(presize)


@app.command()
def cache(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function or path.py:function that returns a pipeline; or a data set, "
            "gs://BUCKET/FOLDER, to copy here."
        ),
    ],
    dst: Annotated[
        str | None,
        typer.Argument(
            help="Folder or gs://BUCKET/FOLDER for shards and manifest.json; of a data set by "
            "default a folder that all processes share.",
        ),
    ] = None,
    variants: Annotated[int, typer.Option(help="Run it this often, each with its own seed.")] = 1,
    elements: Annotated[int | None, typer.Option(help="Keep so many elements, not all.")] = None,
    shard_size: Annotated[str, typer.Option(help="Size to aim at.")] = "128MiB",
    seed: Annotated[int, typer.Option(help="Of the first variant.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another data set in DST.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Sample and predict only.")] = False,
    limit: Annotated[
        str | None,
        typer.Option(help="Largest size of all shared copies; the least recently used go."),
    ] = None,
) -> None:
    """Run an input pipeline once and keep what it gave; or keep a data set of a bucket here."""
    if address := bucket_of(target):
        limit_bytes = parse_size_of("--limit", limit) if limit else None
        with bars() as on_progress:
            copied = data_sets.copy_data_set(
                address, dst, limit_bytes=limit_bytes, overwrite=overwrite, on_progress=on_progress
            )
        output.show(copied, report.copied)
        return
    if dst is None:
        raise UsageError("Where to? Give a folder, or gs://BUCKET/FOLDER, after the pipeline.")
    options = data_sets.CacheOptions(
        variants, parse_shard_bytes(shard_size), elements, seed, overwrite, dry_run
    )
    with bars() as on_progress:
        result = data_sets.cache(target, dst, options, on_progress=on_progress)
    output.show(result, report.cache)


@app.command()
def verify(
    dst: Annotated[str, typer.Argument(help="Folder or gs://BUCKET/FOLDER of a data set.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record as well.")] = False,
) -> None:
    """Compare a data set with its manifest, every byte of it; exit 1 on damage."""
    with bars() as on_progress:
        result = data_sets.verify(dst, deep=deep, on_progress=on_progress)
    output.show(result, report.verify)


@app.command()
def show(
    dst: Annotated[str, typer.Argument(help="Folder or gs://BUCKET/FOLDER of a data set.")],
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet of up to 64 records to this PNG.")
    ] = None,
) -> None:
    """Show what a data set holds: totals, labels, sizes, what was left out."""
    drawn = None if sheet is None else str(data_sets.write_sheet(dst, sheet))
    output.show(replace(data_sets.describe(dst), sheet=drawn), report.show)


app.command()(serve)
