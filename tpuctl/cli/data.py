"""`tpuctl data`: presize, cache, verify, show, serve."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from tpuctl import datasets
from tpuctl.cli import here, output
from tpuctl.cli.progress import bars
from tpuctl.cli.serving import serve
from tpuctl.datasets.geometry import Fidelity, Mode
from tpuctl.datasets.models import (
    Container,
    Encode,
    Engine,
    parse_shard_bytes,
    parse_size_of,
    parse_sizes,
)
from tpuctl.datasets.places import bucket_of
from tpuctl.errors import UsageError
from tpuctl.reporters import data as report

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def data() -> None:
    """Shrink photographs once instead of every epoch; verify and show what came out."""


@app.command()
def presize(
    src: Annotated[
        str, typer.Argument(help="Folder of pictures, at any depth, or gs://BUCKET/FOLDER.")
    ],
    dst: Annotated[
        str, typer.Argument(help="Folder or gs://BUCKET/FOLDER for shards and manifest.json.")
    ],
    size: Annotated[
        str,
        typer.Option(
            help="224, or 256x192 for height x width; 224,384 makes both, in DST/224x224 and "
            "DST/384x384."
        ),
    ] = "224",
    mode: Annotated[
        str,
        typer.Option(
            help="cover (fill, cut the longer side), contain (all of it, on black), stretch, "
            "or short (shorter side fixed, nothing cut)."
        ),
    ] = "cover",
    fidelity: Annotated[
        str, typer.Option(help="fast, balanced, high, or exact (full decode).")
    ] = "balanced",
    encode: Annotated[
        str,
        typer.Option(
            help="jpeg, webp (small), png (exact), raw, or yuv420 (raw, half the bytes; fast)."
        ),
    ] = "jpeg",
    container: Annotated[
        str, typer.Option("--format", help="tfrecord, wds (webdataset's tar), or arrayrecord.")
    ] = "tfrecord",
    quality: Annotated[int, typer.Option(help="Of jpeg and webp, 1 to 100.")] = 95,
    labels: Annotated[
        str,
        typer.Option(
            help="folder (first-level folders), FILE.csv of path,label, none, or auto: folder "
            "where it fits."
        ),
    ] = "auto",
    shard_size: Annotated[str, typer.Option(help="Largest size to aim at.")] = "128MiB",
    workers: Annotated[int | None, typer.Option(help="Processes; default: all vCPUs.")] = None,
    max_bad: Annotated[
        str,
        typer.Option(
            help="Unusable pictures to accept: 1%, 3, or auto (1 % or 3, less than half)."
        ),
    ] = "auto",
    retry_quarantined: Annotated[
        bool, typer.Option("--retry-quarantined", help="Try what was left out once more.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another data set in DST.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    hosts: Annotated[
        str,
        typer.Option(
            help="i/n: do every n-th shard; auto: as this worker of a TPU slice, into a bucket."
        ),
    ] = "auto",
    steal: Annotated[
        bool,
        typer.Option("--steal", help="Go on with shards that no other machine is at."),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="processes of this machine, or beam (see --beam).")
    ] = "processes",
    beam: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of Beam: runner=DataflowRunner, ..."),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Where the TPU is, to warn of buckets elsewhere.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only, write nothing.")] = False,
) -> None:
    """Decode and shrink pictures once into shards with a manifest and checksums."""
    sizes = parse_sizes(size)
    options = datasets.PresizeOptions(
        sizes[0],
        cast(Mode, mode),
        cast(Fidelity, fidelity),
        cast(Encode, encode),
        quality,
        cast(Container, container),
        labels,
        parse_shard_bytes(shard_size),
        workers,
        max_bad,
        retry_quarantined,
        overwrite,
        seed,
        dry_run,
        here.zone(zone, src, dst),
        cast(Engine, engine),
        tuple(beam or ()),
        sizes if len(sizes) > 1 else (),
        steal,
    )
    part = here.part(hosts, dst)
    with bars() as on_progress:
        result = datasets.presize(src, dst, options, part=part, on_progress=on_progress)
    output.show(result, report.presize)


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
            copied = datasets.copy_data_set(
                address, dst, limit_bytes=limit_bytes, overwrite=overwrite, on_progress=on_progress
            )
        output.show(copied, report.copied)
        return
    if dst is None:
        raise UsageError("Where to? Give a folder, or gs://BUCKET/FOLDER, after the pipeline.")
    options = datasets.CacheOptions(
        variants, parse_shard_bytes(shard_size), elements, seed, overwrite, dry_run
    )
    with bars() as on_progress:
        result = datasets.cache(target, dst, options, on_progress=on_progress)
    output.show(result, report.cache)


@app.command()
def verify(
    dst: Annotated[str, typer.Argument(help="Folder or gs://BUCKET/FOLDER of a data set.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record as well.")] = False,
) -> None:
    """Compare a data set with its manifest, every byte of it; exit 1 on damage."""
    with bars() as on_progress:
        result = datasets.verify(dst, deep=deep, on_progress=on_progress)
    output.show(result, report.verify)


@app.command()
def show(
    dst: Annotated[str, typer.Argument(help="Folder or gs://BUCKET/FOLDER of a data set.")],
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet of up to 64 records to this PNG.")
    ] = None,
) -> None:
    """Show what a data set holds: totals, labels, sizes, what was left out."""
    drawn = None if sheet is None else str(datasets.write_sheet(dst, sheet))
    output.show(replace(datasets.describe(dst), sheet=drawn), report.show)


app.command()(serve)
