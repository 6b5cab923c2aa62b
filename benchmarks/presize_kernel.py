"""Decode and shrink a photograph: ours against the best that others can do.

One core, CPU seconds; the candidates take turns on the same photographs in an order that changes
every round. Quality is PSNR against a full decode resampled by Pillow with the filter that suits
the candidate best. Only ratios within one run mean anything.

The peers (pyvips, pillow-simd, img2dataset) are installed in environments of their own (benchmarks/
peers.py says where) and run in processes of their own; `--alone` leaves them out.
"""

import argparse
import io
import math
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from benchmarks.peers import Peer, make_environment
from tests.pictures import shrink, shrink_all
from tpuctl.datasets.images._pixels import encode_jpeg
from tpuctl.datasets.images._shrink import prepare_decoders
from tpuctl.datasets.images.geometry import Mode, choose_denominator, plan_fit
from tpuctl.demo._photographs import make_photographs
from tpuctl.demo.photographs import list_pictures
from tpuctl.progress import silent

SIDE = 224
SIZE = (SIDE, SIDE)
ROUNDS = 5
FILTERS = (
    Image.Resampling.BOX,
    Image.Resampling.HAMMING,
    Image.Resampling.LANCZOS,
    Image.Resampling.BICUBIC,
)
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}

SCRIPT = Path(__file__).with_name("presize_peer.py")

Pixels = np.ndarray[Any, Any]
Function = Callable[[bytes], Pixels]


class Candidate(Protocol):
    """What shrinks one photograph, wherever it runs."""

    def cpu_s(self, path: Path) -> float: ...

    def pixels(self, path: Path) -> Pixels: ...


class Here:
    """A candidate that runs in this process."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def cpu_s(self, path: Path) -> float:
        data = path.read_bytes()
        start = time.process_time()
        self._function(data)
        return time.process_time() - start

    def pixels(self, path: Path) -> Pixels:
        return self._function(path.read_bytes())


def ours(fidelity: Any, mode: Mode = "stretch") -> Function:
    return lambda data: shrink(data, SIZE, mode=mode, fidelity=fidelity).pixels


def ours_encoded(data: bytes) -> Pixels:
    pixels = shrink(data, SIZE, mode="cover", fidelity="balanced").pixels
    return np.frombuffer(encode_jpeg(pixels, 95), np.uint8)


def pillow_at_its_best(data: bytes) -> Pixels:
    """Scaled decode to 1.5 times the target, the exact box that draft() returns, Hamming."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    ratios = (d for d in (8, 4, 2) if min(width, height) / d >= 1.5 * SIDE)
    divisor = next(ratios, 1)
    drafted = image.draft("RGB", (width // divisor, height // divisor))
    box = (0.0, 0.0, *map(float, image.size)) if drafted is None else drafted[1]
    return np.asarray(image.resize(SIZE, Image.Resampling.HAMMING, box=box))


def pillow_full(data: bytes) -> Pixels:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize(SIZE, Image.Resampling.LANCZOS))


def opencv_full(data: bytes) -> Pixels:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return cv2.cvtColor(cv2.resize(image, SIZE, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def opencv_reduced(data: bytes) -> Pixels:
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    divisor = next((d for d in (8, 4, 2) if min(width, height) / d >= SIDE), 1)
    flag = REDUCED.get(divisor, cv2.IMREAD_COLOR)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    assert image is not None
    return cv2.cvtColor(cv2.resize(image, SIZE, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def decode_only(data: bytes) -> Pixels:
    """simplejpeg at the scale that `balanced` chooses, and nothing after it."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    divisor = choose_denominator(plan_fit(width, height, SIZE, "stretch"), "balanced")
    pixels: Pixels = simplejpeg.decode_jpeg(
        data, min_height=-(-height // divisor), min_width=-(-width // divisor)
    )
    return pixels


FUNCTIONS: dict[str, Function] = {
    "ours, fast": ours("fast"),
    "ours, balanced": ours("balanced"),
    "ours, high": ours("high"),
    "ours, exact": ours("exact"),
    "Pillow draft 1.5x, Hamming, box": pillow_at_its_best,
    "Pillow full, Lanczos": pillow_full,
    "OpenCV full, area": opencv_full,
    "OpenCV REDUCED 1x, area": opencv_reduced,
    "simplejpeg decode only": decode_only,
}
PROGRESSIVE = ("ours, fast", "ours, balanced", "Pillow draft 1.5x, Hamming, box")
PROGRESSIVE += ("OpenCV REDUCED 1x, area",)

# Name to the environment's name and what pip needs; pillow-simd is compiled and needs libjpeg.
PEERS = {
    "pyvips": ("pyvips", ("pyvips", "pyvips-binary", "numpy")),
    "pillow-simd": ("pillow-simd", ("pillow-simd", "numpy")),
    "pillow-simd-as-written": ("pillow-simd", ("pillow-simd", "numpy")),
    "img2dataset": ("img2dataset", ("img2dataset",)),
}
ENCODES = {"img2dataset"}
WITHOUT_PIXELS = ("simplejpeg decode only",)

# How many times as fast `balanced` is to be; on progressive files, as each of the others.
PROGRESSIVE_PROMISED = 2.0
PROMISED = {
    "Pillow draft 1.5x, Hamming, box": 1.15,
    "OpenCV full, area": 3.0,
    "simplejpeg decode only": 0.9,
    "pyvips": 1.45,
    "pillow-simd": 1.0,
    "pillow-simd-as-written": 1.25,
    "img2dataset": 3.0,
}


def photographs(folder: Path, *, progressive: bool) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    make_photographs(list_pictures(2), folder / "made", silent)
    rng = random.Random(1)
    found = []
    for number, path in enumerate(sorted((folder / "made").rglob("*.jpg"))):
        picture = Image.open(path)
        scale = rng.uniform(0.5, 1.0)
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
        found.append(folder / f"{number}-{progressive}.jpg")
        picture.save(found[-1], "JPEG", quality=90, progressive=progressive)
    return found


@contextmanager
def open_peers(names: Sequence[str]) -> Iterator[dict[str, Candidate]]:
    """Start peers; one that pip cannot install is told and left out."""
    with ExitStack() as stack:
        found: dict[str, Candidate] = {}
        for name in names:
            try:
                python = make_environment(*PEERS[name])
            except subprocess.CalledProcessError as error:
                print(f"presize kernel: {name} could not be installed: {error}")
            else:
                found[name] = stack.enter_context(closing(Peer(python, SCRIPT, name)))
        yield found


def cpu_seconds(paths: Sequence[Path], candidates: dict[str, Candidate]) -> dict[str, float]:
    """Sum over the photographs of the median CPU seconds that a candidate takes for one."""
    total = dict.fromkeys(candidates, 0.0)
    order = random.Random(2)
    for path in paths:
        spent: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(ROUNDS):
            for name in order.sample(list(candidates), len(candidates)):
                spent[name].append(candidates[name].cpu_s(path))
        for name, seconds in spent.items():
            total[name] += statistics.median(seconds)
    return total


def quality(paths: Sequence[Path], candidate: Candidate) -> tuple[float, float]:
    """Median and worst PSNR against the reference filter nearest to the candidate."""
    found = []
    for path in paths:
        full = Image.open(path).convert("RGB")
        small = candidate.pixels(path)
        found.append(max(psnr(small, np.asarray(full.resize(SIZE, f))) for f in FILTERS))
    return statistics.median(found), min(found)


def psnr(one: Pixels, other: Pixels) -> float:
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else 99.0


def report(
    title: str,
    paths: Sequence[Path],
    candidates: dict[str, Candidate],
    promised: Mapping[str, float] = PROMISED,
) -> None:
    """Print each candidate's images per CPU second, ours (balanced) being 1."""
    spent, encoded = cpu_seconds(paths, candidates), candidates.keys() & ENCODES
    print(f"presize kernel, {title}, {len(paths)} photographs to {SIDE}x{SIDE}:")
    print(f"  {'':34}{'speed':>7}  {'ours is':>8} {'':15}{'PSNR median / worst':>20}")
    for name, candidate in candidates.items():
        ours_is = spent[name] / spent["ours, balanced"]
        target = f"(at least {promised[name]})" if name in promised else ""
        line = f"  {name:34}{1 / ours_is:7.2f}  {ours_is:7.2f}x {target:15}"
        if name not in WITHOUT_PIXELS and not encoded:
            median, worst = quality(paths, candidate)
            line += f"  {median:12.1f} / {worst:.1f} dB"
        print(line)


def report_sizes(paths: Sequence[Path]) -> None:
    """Print what several sizes in one pass save: one decode instead of four."""
    sizes = ((192, 192), (224, 224), (331, 331), (512, 512))

    def together(data: bytes) -> Pixels:
        return shrink_all(data, sizes)[0].pixels

    def one_by_one(data: bytes) -> Pixels:
        for size in sizes:
            small = shrink(data, size).pixels
        return small

    candidates: dict[str, Candidate] = {"one": Here(together), "four": Here(one_by_one)}
    spent = cpu_seconds(paths, candidates)
    ratio = spent["four"] / spent["one"]
    print(f"presize kernel, four sizes: one pass is {ratio:.2f}x four passes (at least 1.3)")


def read_arguments(words: Sequence[str] | None) -> tuple[str, ...]:
    """Name the peers that are to run."""
    parser = argparse.ArgumentParser(prog="presize_kernel")
    parser.add_argument("--alone", action="store_true", help="install and run no peers")
    return () if parser.parse_args(words).alone else tuple(PEERS)


def main(words: Sequence[str] | None = ()) -> None:
    prepare_decoders()
    here: dict[str, Candidate] = {name: Here(function) for name, function in FUNCTIONS.items()}
    with tempfile.TemporaryDirectory() as folder, open_peers(read_arguments(words)) as peers:
        baseline = photographs(Path(folder), progressive=False)
        progressive = photographs(Path(folder), progressive=True)
        encoders = {name: peers.pop(name) for name in ENCODES & peers.keys()}
        report("baseline", baseline, {**here, **peers})
        report_sizes(baseline)
        chosen = {name: here[name] for name in PROGRESSIVE}
        others = [name for name in (*chosen, *peers) if not name.startswith("ours")]
        promised = dict.fromkeys(others, PROGRESSIVE_PROMISED)
        report("progressive", progressive, {**chosen, **peers}, promised)
        if encoders:
            encoders["ours, balanced"] = Here(ours_encoded)
            report("centre crop to JPEG q95", baseline, encoders)


if __name__ == "__main__":
    main(None)
