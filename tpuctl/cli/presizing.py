"""`tpuctl data presize`."""

from typing import Annotated, cast

import typer

from tpuctl import data as data_sets
from tpuctl.cli import here, output
from tpuctl.cli.progress import bars
from tpuctl.datasets import models
from tpuctl.datasets.images import geometry
from tpuctl.datasets.models import parse_shard_bytes, parse_sizes
from tpuctl.reporters import data as report

Src = Annotated[
    str, typer.Argument(help="Folder of pictures, at any depth, or gs://BUCKET/FOLDER.")
]
Dst = Annotated[
    str, typer.Argument(help="Folder or gs://BUCKET/FOLDER for shards and manifest.json.")
]
Size = Annotated[
    str,
    typer.Option(
        help="224, or 256x192 for height x width; 224,384 makes both, in DST/224x224 and "
        "DST/384x384."
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        help="cover (fill, cut the longer side), contain (all of it, on black), stretch, "
        "or short (shorter side fixed, nothing cut)."
    ),
]
Fidelity = Annotated[str, typer.Option(help="fast, balanced, high, or exact (full decode).")]
Encode = Annotated[
    str,
    typer.Option(
        help="jpeg, webp (small), png (exact), raw, or yuv420 (raw, half the bytes; fast)."
    ),
]
Container = Annotated[
    str, typer.Option("--format", help="tfrecord, wds (webdataset's tar), or arrayrecord.")
]
Quality = Annotated[int, typer.Option(help="Of jpeg and webp, 1 to 100.")]
Labels = Annotated[
    str,
    typer.Option(
        help="folder (first-level folders), FILE.csv of path,label, none, or auto: folder "
        "where it fits."
    ),
]
ShardSize = Annotated[str, typer.Option(help="Largest size to aim at.")]
Workers = Annotated[int | None, typer.Option(help="Processes; default: all vCPUs.")]
MaxBad = Annotated[
    str,
    typer.Option(help="Unusable pictures to accept: 1%, 3, or auto (1 % or 3, less than half)."),
]
RetryQuarantined = Annotated[
    bool, typer.Option("--retry-quarantined", help="Try what was left out once more.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another data set in DST.")]
Seed = Annotated[int, typer.Option(help="Of the shuffle.")]
Hosts = Annotated[
    str,
    typer.Option(
        help="i/n: do every n-th shard; auto: as this worker of a TPU slice, into a bucket."
    ),
]
Steal = Annotated[
    bool,
    typer.Option("--steal", help="Go on with shards that no other machine is at."),
]
Engine = Annotated[str, typer.Option(help="processes of this machine, or beam (see --beam).")]
Beam = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of Beam: runner=DataflowRunner, ..."),
]
Zone = Annotated[str | None, typer.Option(help="Where the TPU is, to warn of buckets elsewhere.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Plan only, write nothing.")]


def presize(
    src: Src,
    dst: Dst,
    size: Size = "224",
    mode: Mode = "cover",
    fidelity: Fidelity = "balanced",
    encode: Encode = "jpeg",
    container: Container = "tfrecord",
    quality: Quality = 95,
    labels: Labels = "auto",
    shard_size: ShardSize = "128MiB",
    workers: Workers = None,
    max_bad: MaxBad = "auto",
    retry_quarantined: RetryQuarantined = False,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    hosts: Hosts = "auto",
    steal: Steal = False,
    engine: Engine = "processes",
    beam: Beam = None,
    zone: Zone = None,
    dry_run: DryRun = False,
) -> None:
    """Decode and shrink pictures once into shards with a manifest and checksums."""
    sizes = parse_sizes(size)
    options = data_sets.PresizeOptions(
        sizes[0],
        sizes=sizes if len(sizes) > 1 else (),
        mode=cast(geometry.Mode, mode),
        fidelity=cast(geometry.Fidelity, fidelity),
        encode=cast(models.Encode, encode),
        quality=quality,
        format=cast(models.Container, container),
        labels=labels,
        shard_bytes=parse_shard_bytes(shard_size),
        workers=workers,
        max_bad=max_bad,
        retry_quarantined=retry_quarantined,
        overwrite=overwrite,
        seed=seed,
        steal=steal,
        engine=cast(models.Engine, engine),
        beam=tuple(beam or ()),
        zone=here.zone(zone, src, dst),
        dry_run=dry_run,
    )
    part = here.part(hosts, dst)
    with bars() as on_progress:
        result = data_sets.presize(src, dst, options, part=part, on_progress=on_progress)
    output.show(result, report.presize)
