"""tpuctl beside other tools at the same job, as the table of docs/peers.md.

    python -m benchmarks side_by_side             # measures all, and writes the tables into the page
    python -m benchmarks.side_by_side start-up    # one part: start-up reading list detection attribution

CPU time of all processes, because other programs on the machine distort it least; the candidates in
turns, medians. Peers are installed in environments of their own (benchmarks/peers.py says where). One
that cannot be installed is a row that says so.
"""

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from benchmarks import side_attribution, side_detection
from benchmarks.peers import SINGLE_THREADED, make_environment

PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
HEAD = ("| tool | CPU time | of tpuctl's | spread |", "|---|---|---|---|")
ROUNDS = 3
IMAGES, EPOCHS = 256, 4
# More than this of the machine taken by others makes a figure doubtful.
BUSY = 0.1
# No colour, and no reports of use.
_SILENT = {"NO_COLOR": "1", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "DO_NOT_TRACK": "1"}

_COMMON = """
import io, os, sys, time
from pathlib import Path
folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
def finish(count):
    assert count, "nothing was read"
    print(count, sum(os.times()[:4]) - begun)
"""
READERS = {
    "tpuctl `open_batches`": """
from tpuctl import data
steps = epochs * int(sys.argv[3]) // 32
finish(sum(len(batch.images) for batch in data.open_batches(folder / "tfrecord", 32, seed=1, steps=steps)))
""",
    "tf.data TFRecord": """
import tensorflow as tf
files = sorted(map(str, (folder / "tfrecord").glob("*.tfrecord")))
kinds = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
def parse(record):
    example = tf.io.parse_single_example(record, kinds)
    return tf.io.decode_jpeg(example["image"], channels=3), example["label"]
source = tf.data.TFRecordDataset(files).repeat(epochs).shuffle(256).map(parse, tf.data.AUTOTUNE)
finish(sum(len(images) for images, _ in source.batch(32).prefetch(2).as_numpy_iterator()))
""",
    "webdataset": """
import numpy as np, simplejpeg, webdataset
files = sorted(map(str, (folder / "wds").glob("*.tar")))
def decode(sample):
    return simplejpeg.decode_jpeg(sample["jpg"]), int(sample["cls"])
source = webdataset.WebDataset(files, shardshuffle=False).shuffle(256).map(decode).repeat(epochs)
finish(sum(len(images) for images, _ in source.batched(32)))
""",
    "Hugging Face datasets": """
import numpy as np, simplejpeg
from datasets import load_dataset
files = sorted(map(str, (folder / "wds").glob("*.tar")))
count = 0
for epoch in range(epochs):
    source = load_dataset("webdataset", data_files=files, split="train", streaming=True).decode(False)
    for batch in source.shuffle(epoch, buffer_size=256).batch(32):
        count += len(np.stack([simplejpeg.decode_jpeg(each["bytes"]) for each in batch["jpg"]]))
finish(count)
""",
    "Grain ArrayRecord": """
import grain, numpy as np, simplejpeg, tensorflow as tf
files = sorted(map(str, (folder / "arrayrecord").glob("*.arrayrecord")))
def decode(record):
    found = tf.train.Example.FromString(record).features.feature
    return simplejpeg.decode_jpeg(found["image"].bytes_list.value[0]), found["label"].int64_list.value[0]
source = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).shuffle(1).repeat(epochs)
finish(sum(len(images) for images, _ in source.map(decode).batch(32)))
""",
}
# FFCV compiles its loader in the first epoch, which is left out; its own file holds the same images.
READERS["FFCV"] = """
import numpy as np, simplejpeg, webdataset
from PIL import Image
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter
source = webdataset.WebDataset(sorted(map(str, (folder / "wds").glob("*.tar"))), shardshuffle=False)
images = [(Image.fromarray(simplejpeg.decode_jpeg(one["jpg"])), int(one["cls"])) for one in source]
fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
DatasetWriter(str(folder / "images.beton"), fields, num_workers=1).from_indexed_dataset(images)
decoders = {"image": [SimpleRGBImageDecoder()], "label": [IntDecoder()]}
loader = Loader(str(folder / "images.beton"), batch_size=32, num_workers=os.cpu_count(),
                order=OrderOption.QUASI_RANDOM, pipelines=decoders, drop_last=False)
def epoch():
    return sum(len(images) for images, _ in loader)
epoch()
begun = sum(os.times()[:4])
finish(sum(epoch() for _ in range(epochs)))
"""
_PEERS = {
    # It builds with the headers of OpenCV and libturbojpeg (Debian: libopencv-dev,
    # libturbojpeg0-dev) only.
    "FFCV": (
        "ffcv==1.0.2",
        "torch==2.13.0",
        "numpy<2",
        "opencv-python-headless==4.10.0.84",
        "webdataset==1.0.2",
        "simplejpeg==1.9.0",
        "pillow",
    ),
    "webdataset": ("webdataset==1.0.2", "simplejpeg==1.9.0", "numpy", "pillow"),
    "Hugging Face datasets": ("datasets==5.2.0", "simplejpeg==1.9.0", "pillow"),
}
# What each is asked for: its help. Their packages, pinned.
STARTUPS = {
    "tpu-info": side_detection.PINS["tpu-info"],
    "hf": side_detection.PINS["huggingface_hub"],
    "accelerate": side_detection.PINS["accelerate"],
    "xpk": ("xpk==1.16.0",),
    "dstack": ("dstack==0.22.5",),
    "sky": ("skypilot==0.14.1",),
}
_VERSIONS = {
    "tf.data TFRecord": "tensorflow",
    "webdataset": "webdataset",
    "Hugging Face datasets": "datasets",
    "Grain ArrayRecord": "grain",
    "FFCV": "ffcv",
    "tpuctl `open_batches`": "tpuctl",
}


@dataclass(frozen=True)
class Candidate:
    """A tool, its version, and one measurement of it in seconds; or why there is none."""

    name: str
    version: str
    measure: Callable[[], float] | None
    why: str = ""


def main(words: Sequence[str] = ()) -> None:
    """Measure all parts, or those named, and write each into the page."""
    for part in words or PARTS:
        began, others = psutil.cpu_times(), psutil.Process().cpu_times()
        lines = PARTS[part]()
        now, mine = psutil.cpu_times(), psutil.Process().cpu_times()
        total = sum(now[:8]) - sum(began[:8])
        own = sum(mine[:4]) - sum(others[:4])
        busy = max(0.0, 1 - (now.idle - began.idle + now.iowait - began.iowait + own) / total)
        state = (
            "busy with other programs: compare only what is far apart" if busy > BUSY else "quiet"
        )
        day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        where = f"{platform.machine()} virtual machine, {os.cpu_count()} vCPUs, Python {platform.python_version()}"
        write(PAGE, part, [f"Measured on {day}: {where}, {state}.", "", *lines])


def write(page: Path, part: str, lines: Sequence[str]) -> None:
    """Put a measured part into the page."""
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(f"<!-- measured: {part} -->")
    after = rest.split("<!-- end -->", 1)[1]
    body = "\n".join(lines)
    page.write_text(
        f"{head}<!-- measured: {part} -->\n\n{body}\n\n<!-- end -->{after}", encoding="utf-8"
    )


def rows(candidates: Sequence[Candidate], factor: float, unit: str) -> list[str]:
    """One line for each tool; the first is ours."""
    able = [each for each in candidates if each.measure]
    found: dict[str, list[float]] = {each.name: [] for each in able}
    for _ in range(ROUNDS):
        for each in able:
            assert each.measure is not None
            found[each.name].append(each.measure())
    lines = []
    for each in candidates:
        if not each.measure:
            lines.append(f"| {each.name} | {each.why} | | |")
            continue
        ratios = [a / b for a, b in zip(found[each.name], found[able[0].name], strict=True)]
        took = statistics.median(found[each.name])
        lines.append(
            f"| {each.name} {each.version} | {took * factor:,.0f} {unit} |"
            f" {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return lines


def startups() -> list[str]:
    """The help of each tool, and `tpuctl doctor`."""
    own = [sys.executable, "-m", "tpuctl"]
    version = _version(sys.executable, "tpuctl")
    found = [
        Candidate("`tpuctl --help`", version, lambda: command_s([*own, "--help"])),
        Candidate("`tpuctl doctor`", version, lambda: command_s([*own, "doctor", "--json"])),
        *(_installed(command, packages) for command, packages in STARTUPS.items()),
    ]
    return [*HEAD, *rows(found, 1e3, "ms")]


def _installed(command: str, packages: Sequence[str]) -> Candidate:
    name, package = f"`{command} --help`", packages[0].partition("==")[0]
    try:
        python = make_environment(package, packages)
        words = [str(python.with_name(command)), "--help"]
        command_s(words)
    except (subprocess.CalledProcessError, OSError) as error:
        return Candidate(name, "", None, f"not run: {type(error).__name__}")
    return Candidate(name, _version(str(python), package), lambda: command_s(words))


def reading() -> list[str]:
    """Presized images as arrays."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        return [*HEAD, *rows(readers(Path(folder)), 1e6 / (IMAGES * EPOCHS), "us")]


_LIST = """
import sys
from google.cloud import tpu_v2
from google.oauth2.credentials import Credentials
kind = tpu_v2.TpuClient.get_transport_class("rest")
client = tpu_v2.TpuClient(transport=kind(host=sys.argv[1], url_scheme="http", credentials=Credentials(sys.argv[2])))
names = [node.name for node in client.list_nodes(parent="projects/practice/locations/us-central1-a")]
assert len(names) == 3, names
"""
_LIST_TPUNICORN = """
import sys
import tpunicorn.api as api
from google.oauth2.credentials import Credentials
api.API_ROOT = sys.argv[1] + "/v2"
client = api.Client(project="practice", credentials=Credentials(sys.argv[2]))
assert len(list(client.list_nodes("us-central1-a"))) == 3
"""


def listing() -> list[str]:
    """List three TPUs of the emulator."""
    from tests.clients import emulator_for_clients

    own = [sys.executable, "-m", "tpuctl"]
    zone = ("--zone", "us-central1-a")
    with (
        tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder,
        emulator_for_clients(Path(folder)) as target,
    ):
        for name in ("a", "b", "c"):
            kind = ("--accelerator-type", "v5e-8", "--ttl", "4h", "--yes")
            command_s([*own, "create", name, *kind, *zone])
        place = [target.place, target.token]
        gcloud = ["gcloud", "compute", "tpus", "tpu-vm", "list", *zone, "--format=json"]
        version = _version(sys.executable, "tpuctl")
        found = [
            Candidate("`tpuctl list`", version, lambda: command_s([*own, "list", *zone])),
            _program(
                "google-cloud-tpu, in Python",
                "google-cloud-tpu",
                sys.executable,
                [_LIST, *place],
            ),
            _program(
                "tpunicorn2, in Python",
                "tpunicorn2",
                "",
                [_LIST_TPUNICORN, *place],
            ),
            Candidate("`gcloud compute tpus tpu-vm list`", _gcloud(), lambda: command_s(gcloud))
            if _gcloud()
            else Candidate("gcloud", "", None, "not installed"),
        ]
        return [*HEAD, *rows(found, 1e3, "ms")]


def _program(name: str, package: str, python: str, code: Sequence[str]) -> Candidate:
    try:
        where = python or str(
            make_environment(package, ("tpunicorn2==1.0.2", "google-api-python-client"))
        )
        command = [where, "-c", *code]
        command_s(command)
    except (subprocess.CalledProcessError, OSError) as error:
        return Candidate(name, "", None, f"not run: {type(error).__name__}")
    return Candidate(name, _version(where, package), lambda: command_s(command))


def _gcloud() -> str:
    found = shutil.which("gcloud")
    if not found:
        return ""
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()[0].rpartition(" ")[2]


def readers(folder: Path) -> list[Candidate]:
    """Programs that read the same images to arrays, in batches of 32, shuffled."""
    from benchmarks.presize_kernel import photographs
    from tpuctl import data
    from tpuctl.datasets.models import Container

    source = folder / "photographs"
    made = photographs(folder / "made", progressive=False)
    for number in range(IMAGES):
        copy = source / f"class-{number % 4}" / f"{number}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(made[number % len(made)].read_bytes())
    formats: tuple[Container, ...] = ("tfrecord", "wds", "arrayrecord")
    for container in formats:
        options = data.PresizeOptions(size=(224, 224), format=container)
        data.presize(source, folder / container, options)
    return [reader(name, code, folder) for name, code in READERS.items()]


def reader(name: str, code: str, folder: Path) -> Candidate:
    """A reader in the environment that it needs."""
    try:
        python = (
            str(make_environment(re.sub(r"\W+", "-", name), _PEERS[name]))
            if name in _PEERS
            else sys.executable
        )
        imports, _, body = code.strip().partition("\n")
        while body.startswith(("import ", "from ")):
            more, _, body = body.partition("\n")
            imports += "\n" + more
        program = f"{_COMMON}{imports}\nbegun = sum(os.times()[:4])\n{body}"
        command = [python, "-c", program, str(folder), str(EPOCHS), str(IMAGES)]
        printed_s(command)
    except (subprocess.CalledProcessError, OSError) as error:
        return Candidate(name, "", None, f"not run: {type(error).__name__}")
    return Candidate(name, _version(python, _VERSIONS[name]), lambda: printed_s(command))


def command_s(command: Sequence[str]) -> float:
    """CPU seconds of a command and of its children."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **_SILENT})
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def printed_s(command: Sequence[str]) -> float:
    """CPU seconds that a reader says it took, start-up left out."""
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **SINGLE_THREADED}
    )
    return float(done.stdout.split()[-1])


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


PARTS: dict[str, Callable[[], list[str]]] = {
    "start-up": startups,
    "reading": reading,
    "list": listing,
    "detection": side_detection.table,
    "attribution": side_attribution.table,
}


if __name__ == "__main__":
    main(sys.argv[1:])
