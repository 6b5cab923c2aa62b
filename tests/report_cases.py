"""A result of every kind that has charts, and pictures of the pages that show them.

python -m tests.report_cases FOLDER [PAGE.html ...]
"""

import base64
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import hostile, xspaces
from tests.browser import Page, chromium
from tests.pipeline_cases import measurement, phase, profile, starving
from tests.test_bench import GPU_S, TPU_S, sweep
from tests.xspaces import training
from tpuctl.compile.models import Comparison as Fits
from tpuctl.compile.models import CompilerVersions, Fit, Range, Suggestion
from tpuctl.datasets.models import Description, LabelCount, PresizeResult, SizeBin
from tpuctl.outcome import Outcome
from tpuctl.profiling.compare import diff
from tpuctl.profiling.trace.profile import profile_trace
from tpuctl.reporters.pages import page
from tpuctl.training.bench import compare

GIB = 1 << 30


def fit(name: str, needed: int) -> Fit:
    made: Fit = hostile.made(Fit)
    return replace(
        made, accelerator_type=name, target="train.py:step", framework="jax", mode="training",
        chips=8, devices=8, batch_size=1024, per_chip_batch=128, max_batch=None,
        fits=needed < 16 * GIB, hbm_needed_bytes=needed, hbm_available_bytes=16 * GIB,
        compute_ms=48.0, memory_ms=21.0, communication_ms=5.5, step_ms_estimate=Range(48, 75),
        bound="compute", examples_per_s=Range(13_600, 21_300), mxu_padding=(), notes=(),
        largest_tensors=(), pallas_kernels=(), usd_zone="us-west4-a",
        compiler=CompilerVersions("0.0.45", "0.10.2", ("v5e",)),
        advice=(Suggestion("remat", "Compute activations twice", "jax.checkpoint(block)"),),
    )  # fmt: skip


def cases(folder: Path) -> dict[str, Outcome]:
    """Return the results by the name of their page."""
    place = folder / "logs" / "plugins" / "profile" / "1" / "host.xplane.pb"
    place.parent.mkdir(parents=True)
    place.write_bytes(xspaces.space(training(8, wait_ms=40, wait="TransferToDevice")))
    before = replace(profile(measurement(*starving())), target=str(folder / "photos"))
    fed = phase(examples_per_s=500.0, device_s=0.06)
    after = profile(measurement(phase(examples_per_s=1500.0), fed))
    gpu, tpu = sweep("kaggle, 2 T4", GPU_S), sweep("colab, TPU v5e", TPU_S)
    described: Description = hostile.made(Description)
    presized: PresizeResult = hostile.made(PresizeResult)
    labels = tuple(LabelCount(n, f"class {n}", 40 + 7 * n) for n in range(30))
    return {
        "profile": before,
        "no-device": profile(measurement(phase())),
        "trace": profile_trace(folder / "logs"),
        "diff": diff(before, after),
        "bench": gpu,
        "bench-compare": compare(gpu, tpu),
        "fit": fit("v5litepod-8", 11 * GIB),
        "fit-compare": Fits((fit("v5litepod-8", 21 * GIB), fit("v6e-8", 11 * GIB)), ()),
        "data": replace(
            described, path="shards", labels=labels, sheet=None, quarantined={"empty": 2},
            sizes=(SizeBin(0.3, 1.0, 120), SizeBin(1.0, 2.0, 800)), flags={"resized": 900},
            totals={"records": 920, "bytes_in": 3 * GIB, "bytes_out": GIB // 8},
            options={"size": [224, 224], "mode": "cover", "encode": "jpeg"},
        ),
        "presize": replace(presized, bytes_in=3 * GIB, bytes_out=GIB // 8, sizes=()),
    }  # fmt: skip


def set_screen(browser: Page, width: int, scheme: str, media: str = "screen") -> None:
    """Make the window so wide, and prefer light or dark."""
    phone = width < 600
    screen: dict[str, Any] = {"width": width, "height": 800, "deviceScaleFactor": 1}
    browser.call("Emulation.setDeviceMetricsOverride", mobile=phone, **screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media=media, features=features)


def take_pictures(out: Path, files: list[Path]) -> None:
    """Take a picture of each page: phone and desk, light and dark, and as printed."""
    out.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch)) as browser:
        for file in files:
            screens = [(w, s, "screen") for w in (1280, 390) for s in ("light", "dark")]
            for width, scheme, media in (*screens, (794, "dark", "print")):
                browser.open(file.resolve().as_uri())
                set_screen(browser, width, scheme, media)
                browser.open(file.resolve().as_uri(), again=True)
                shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
                name = "print" if media == "print" else f"{width}-{scheme}"
                picture = out / f"report-{file.stem}-{name}.png"
                picture.write_bytes(base64.b64decode(shot["data"]))
            printed = browser.call("Page.printToPDF")
            (out / f"report-{file.stem}.pdf").write_bytes(base64.b64decode(printed["data"]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        pages = [Path(name) for name in sys.argv[2:]]
        if not pages:
            for name, result in cases(Path(made)).items():
                pages.append(Path(made) / f"{name}.html")
                pages[-1].write_text(page(result), encoding="utf-8")
        take_pictures(Path(sys.argv[1]), pages)
