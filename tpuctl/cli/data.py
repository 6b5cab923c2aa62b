"""`tpuctl data presize`, `cache`, `verify`, `show`, `serve`."""

from pathlib import Path
from typing import Annotated

import typer

import tpuctl
from tpuctl.api.workers import Workers
from tpuctl.cli import output, workers
from tpuctl.cli.options import (
    Argument,
    DryRun,
    Option,
    command,
    examples,
    zone_option,
)
from tpuctl.cli.progress import bars
from tpuctl.datasets.models import parse_size_of
from tpuctl.errors import refuse_unused

data = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Turn images into shards once; verify, cache and serve them.",
    epilog=examples(
        "tpuctl data presize photos photos-224 --size 224",
        "tpuctl data verify photos-224",
        "tpuctl data cache pipeline.py:make_dataset cached",
    ),
)

Dst = Annotated[str, Argument(help="Folder or gs://BUCKET/FOLDER for the shards.")]
DataSet = Annotated[str, Argument(help="Folder or gs://BUCKET/FOLDER of a data set.")]
ShardSize = Annotated[str, Option("--shard-size", metavar="SIZE", help="Target shard size.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace another data set in DST.")]


@command(data)
def presize(
    src: Annotated[str, Argument(help="Folder of images, at any depth, or gs://BUCKET/FOLDER.")],
    dst: Dst,
    size: Annotated[
        str,
        Option(
            metavar="PIXELS",
            help="224; 256x192 is height x width; 224,384 makes one data set of each.",
        ),
    ] = "224",
    mode: Annotated[
        str,
        Option(
            "--mode",
            metavar="MODE",
            help="cover (fill and crop), contain (fit and pad with black), stretch, or short "
            "(resize the shorter side, crop nothing).",
        ),
    ] = "cover",
    fidelity: Annotated[
        str,
        Option(metavar="fast|balanced|high|exact", help="Trade speed for quality of the resize."),
    ] = "balanced",
    encode: Annotated[
        str,
        Option(
            metavar="ENCODING",
            help="jpeg, webp (small), png (lossless), raw, or yuv420 (raw, half size).",
        ),
    ] = "jpeg",
    format: Annotated[
        str,
        Option(
            "--format",
            metavar="tfrecord|wds|arrayrecord",
            help="File format; wds is WebDataset.",
        ),
    ] = "tfrecord",
    quality: Annotated[int, Option(metavar="N", help="Quality of jpeg and webp, 1 to 100.")] = 95,
    labels: Annotated[
        str,
        Option(
            metavar="folder|FILE.csv|none|auto",
            help="Labels: top-level folders, a CSV file with path,label, none, or auto: folders "
            "if every image is in one.",
        ),
    ] = "auto",
    shard_bytes: ShardSize = "128MiB",
    workers: Annotated[
        int | None,
        Option("--workers", metavar="N", help="Number of processes. Default: all vCPUs."),
    ] = None,
    max_bad: Annotated[
        str,
        Option(
            metavar="LIMIT",
            help="Unreadable images to accept: 1%, 3, or auto, the larger of the two.",
        ),
    ] = "auto",
    max_image_bytes: Annotated[
        str,
        Option(
            "--max-image-memory",
            metavar="SIZE",
            help="Leave out images that need more memory to decode.",
        ),
    ] = "1GiB",
    retry_quarantined: Annotated[
        bool, Option("--retry-quarantined", help="Retry images that were left out.")
    ] = False,
    overwrite: Overwrite = False,
    seed: Annotated[int, Option(metavar="N", help="Shuffle seed.")] = 0,
    hosts: Annotated[
        str,
        Option(
            metavar="I/N",
            help="Build every N-th shard, from the I-th on; auto: this worker's share, on a TPU "
            "slice with DST in a bucket.",
        ),
    ] = "auto",
    steal: Annotated[
        bool,
        Option(
            "--steal",
            help="Also build shards that other machines have not begun or have abandoned.",
        ),
    ] = False,
    engine: Annotated[
        str, Option(metavar="local|beam", help="Use processes on this machine, or Apache Beam.")
    ] = "local",
    runner: Annotated[
        str | None, Option("--runner", metavar="RUNNER", help="Beam runner such as DataflowRunner.")
    ] = None,
    beam: Annotated[
        list[str] | None, Option(metavar="K=V", help="Beam option such as region=us-central1.")
    ] = None,
    zone: Annotated[
        str | None, zone_option("Zone of the TPU, to warn about buckets elsewhere.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Decode and shrink images once, into shards with checksums.

    Examples:
        tpuctl data presize photos photos-224 --size 224
        tpuctl data presize gs://bucket/photos gs://bucket/shards --size 224
        tpuctl data presize photos shards --size 224,384 --format wds --dry-run
    """
    options = dict(locals())
    del options["runner"]
    options["shard_bytes"] = parse_size_of("--shard-size", shard_bytes)
    options["max_image_bytes"] = parse_size_of("--max-image-memory", max_image_bytes)
    options["beam"] = (*([f"runner={runner}"] if runner else ()), *(beam or ()))
    with bars() as on_progress:
        result = tpuctl.data.presize(**options, on_progress=on_progress)
    output.show(result)


@command(data)
def cache(
    target: Annotated[
        str,
        Argument(
            help="path.py:function or module:function that returns a pipeline; or a data set in a "
            "bucket, to copy."
        ),
    ],
    dst: Annotated[
        str | None,
        Argument(
            help="Folder or gs://BUCKET/FOLDER for the shards. Default for a data set: a folder "
            "that all processes share."
        ),
    ] = None,
    variants: Annotated[
        int, Option(metavar="N", help="Number of runs of the pipeline, each with its own seed.")
    ] = 1,
    elements: Annotated[
        int | None, Option(metavar="N", help="Keep only the first N elements.")
    ] = None,
    shard_size: ShardSize = "128MiB",
    seed: Annotated[int, Option(metavar="N", help="Seed of the first variant.")] = 0,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Predict size and time from a sample, write nothing.")
    ] = False,
    limit: Annotated[
        str | None,
        Option(metavar="SIZE", help="Maximum space for shared copies; the oldest are deleted."),
    ] = None,
) -> None:
    """Run an input pipeline once and keep its elements; or copy a data set from a bucket.

    Examples:
        tpuctl data cache pipeline.py:make_dataset cached --variants 4
        tpuctl data cache gs://bucket/shards --limit 200GB
    """
    options = tpuctl.data.CacheOptions(
        variants, parse_size_of("--shard-size", shard_size), elements, seed, overwrite, dry_run
    )
    limit_bytes = parse_size_of("--limit", limit) if limit else None
    with bars() as on_progress:
        result = tpuctl.data.cache(
            target, dst, options, limit_bytes=limit_bytes, on_progress=on_progress
        )
    output.show(result)


@command(data)
def verify(
    dst: DataSet, deep: Annotated[bool, Option("--deep", help="Also decode every record.")] = False
) -> None:
    """Check every byte of a data set against its manifest.

    Examples:
        tpuctl data verify photos-224
        tpuctl data verify gs://bucket/shards --deep
    """
    with bars() as on_progress:
        result = tpuctl.data.verify(dst, deep=deep, on_progress=on_progress)
    output.show(result)


@command(data)
def show(
    dst: DataSet,
    sheet: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw up to 64 records as a contact sheet to this PNG."),
    ] = None,
) -> None:
    """Show what a data set holds: totals, labels, sizes, what was left out.

    Examples:
        tpuctl data show photos-224
        tpuctl data show photos-224 --sheet sheet.png
    """
    output.show(tpuctl.data.show(dst, sheet=sheet))


@command(data)
@workers.on_workers(workers.Name)
def serve(
    where: Workers,
    count: Annotated[
        int | None, Option("--workers", metavar="N", help="Workers. Default: one per machine.")
    ] = None,
    port: Annotated[
        int | None,
        Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            help="With --allow-unauthenticated the dispatcher's port; workers use the next ones.",
        ),
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        Option(
            "--allow-unauthenticated",
            help="Listen on all interfaces: anyone on these machines or their network can then "
            "read and write your files.",
        ),
    ] = False,
    python: Annotated[
        str | None,
        Option(metavar="FILE", help="Python with TensorFlow on those machines. Default: python3."),
    ] = None,
) -> None:
    """Run a tf.data service, here or on other machines, until Ctrl-C; only you can use it.

    Examples:
        tpuctl data serve
        tpuctl data serve --host me@10.0.0.5,me@10.0.0.6
    """
    is_here = not (where.name or where.hosts)
    if is_here:
        where.refuse_login("on this machine")
        refuse_unused({"--python": python}, "on this machine")
    tpuctl.data.serve(
        None if is_here else where,
        workers=count,
        port=port,
        python=python or "python3",
        allow_unauthenticated=allow_unauthenticated,
        on_ready=output.show_early,
        note=output.note,
    )
