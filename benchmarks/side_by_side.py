"""tpuctl beside other tools at the same job, as the table of docs/peers.md.

    python -m benchmarks side_by_side             # measures, and writes the table into the page

CPU time of all processes, because other programs on the machine distort it least; the candidates in
turns, medians. Peers are installed in environments of their own (benchmarks/peers.py says where). One
that cannot be installed is a row that says so.
"""

import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from benchmarks.peers import SINGLE_THREADED, make_environment

PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEAD = ("| job | tool | CPU time | of tpuctl's |", "|---|---|---|---|")
ROUNDS = 3
IMAGES, EPOCHS = 256, 4
# More than this of the machine taken by others makes a figure doubtful.
BUSY = 0.1

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
_PEERS = {
    "webdataset": ("webdataset", "simplejpeg", "numpy", "pillow"),
    "Hugging Face datasets": ("datasets", "simplejpeg", "pillow"),
}
_VERSIONS = {
    "tf.data TFRecord": "tensorflow",
    "webdataset": "webdataset",
    "Hugging Face datasets": "datasets",
    "Grain ArrayRecord": "grain",
    "tpuctl `open_batches`": "tpuctl",
}


@dataclass(frozen=True)
class Candidate:
    """A tool, its version, and one measurement of it in seconds; or why there is none."""

    name: str
    version: str
    measure: Callable[[], float] | None
    why: str = ""


def main(_: Sequence[str] = ()) -> None:
    """Measure, and write the table into the page."""
    began, others = psutil.cpu_times(), psutil.Process().cpu_times()
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        lines = [*HEAD, *rows("start-up", startups(), 1e3, "ms")]
        lines += rows(
            "read a presized image, decoded", readers(Path(folder)), 1e6 / (IMAGES * EPOCHS), "us"
        )
    now, mine = psutil.cpu_times(), psutil.Process().cpu_times()
    total = sum(now[:8]) - sum(began[:8])
    own = sum(mine[:4]) - sum(others[:4])
    busy = max(0.0, 1 - (now.idle - began.idle + now.iowait - began.iowait + own) / total)
    state = "busy with other programs: compare only what is far apart" if busy > BUSY else "quiet"
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    where = f"{platform.machine()} virtual machine, {os.cpu_count()} vCPUs, Python {platform.python_version()}"
    write(PAGE, [f"Measured on {day}: {where}, {state}.", "", *lines])


def write(page: Path, lines: Sequence[str]) -> None:
    """Put the measured part into the page."""
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    page.write_text(
        f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}", encoding="utf-8"
    )


def rows(job: str, candidates: Sequence[Candidate], factor: float, unit: str) -> list[str]:
    """One line for each tool; the first is ours."""
    able = [each for each in candidates if each.measure]
    found: dict[str, list[float]] = {each.name: [] for each in able}
    for _ in range(ROUNDS):
        for each in able:
            assert each.measure is not None
            found[each.name].append(each.measure())
    ours = statistics.median(found[able[0].name])
    lines = []
    for each in candidates:
        if not each.measure:
            lines.append(f"| {job} | {each.name} | {each.why} | |")
            continue
        took = statistics.median(found[each.name])
        lines.append(
            f"| {job} | {each.name} {each.version} | {took * factor:,.0f} {unit} | {took / ours:.2f} |"
        )
    return lines


def startups() -> list[Candidate]:
    """Commands that say what is there."""
    own = [sys.executable, "-m", "tpuctl"]
    found = [
        Candidate(
            "`tpuctl --help`",
            _version(sys.executable, "tpuctl"),
            lambda: command_s([*own, "--help"]),
        )
    ]
    found.append(
        Candidate(
            "`tpuctl doctor`", found[0].version, lambda: command_s([*own, "doctor", "--json"])
        )
    )
    for name, package, words in (
        ("`tpu-info --version`", "tpu-info", ["tpu-info", "--version"]),
        ("`hf version`", "huggingface_hub", ["hf", "version"]),
    ):
        found.append(_installed(name, package, words))
    return found


def _installed(name: str, package: str, words: Sequence[str]) -> Candidate:
    try:
        python = make_environment(package, [package])
        command = [str(python.with_name(words[0])), *words[1:]]
        command_s(command)
    except (subprocess.CalledProcessError, OSError) as error:
        return Candidate(name, "", None, f"not run: {type(error).__name__}")
    return Candidate(name, _version(str(python), package), lambda: command_s(command))


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
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "NO_COLOR": "1"})
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


if __name__ == "__main__":
    main()
