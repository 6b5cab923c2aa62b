"""Run all steps end to end: doctor, profile, presize, profile again, launch."""

import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tpuctl import data as data_sets
from tpuctl.demo.photographs import PER_SUBJECT, VERSION, list_pictures
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import MissingExtraError, NotFoundError, TpuctlError
from tpuctl.lazy import need_modules
from tpuctl.outcome import Outcome, Status
from tpuctl.profiling.compare import Comparison, diff
from tpuctl.profiling.models import Profile
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.reference import reference_step_ms
from tpuctl.profiling.tpuprof import save
from tpuctl.progress import OnProgress, message, silent
from tpuctl.runtime.live import live_machine
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder
from tpuctl.training.plan import plan_training
from tpuctl.training.run import Training
from tpuctl.training.watched import watch_training

BATCH_SIZE = 32
IMAGE_SIZE = 224
EPOCHS = 2


@dataclass(frozen=True)
class DemoResult(Outcome):
    """The result of every step of the demo."""

    images: str
    out: str
    device_step_ms: float
    device_step_source: str
    doctor: Diagnosis
    before: Profile
    presize: data_sets.PresizeResult
    verify: data_sets.VerifyResult
    show: data_sets.Description
    sheet: str
    after: Profile
    diff: Comparison
    launch: Training
    seconds: float
    report_html: str
    report_json: str
    next_command: str

    @property
    def status(self) -> Status:
        """Error if the training failed, attention if an image was quarantined."""
        if self.presize.quarantined and not self.failures:
            return "attention"
        return super().status

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why the training failed."""
        return self.launch.failures

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all steps, each once."""
        steps = (self.doctor, self.before, self.presize, self.verify, self.after)
        return tuple(dict.fromkeys(text for step in steps for text in step.warnings))


def run_demo(
    images: Path | None, out: Path, *, log: int | None, on_progress: OnProgress
) -> DemoResult:
    """Run all steps on a folder of images, by default on images that the demo makes.

    Takes a few minutes. Any step can be interrupted; the same call again reuses what is complete.
    `log` is the file descriptor for the training's output, by default stdout.
    Raises whatever a step raises.
    """
    start_s = time.monotonic()
    if images is not None and not images.is_dir():
        raise NotFoundError(
            f"Could not start the demo: the folder {images} does not exist.",
            hint="Give --images a folder of images, or omit it: the demo makes its own.",
        )
    _check_extras(own_photographs=images is None)
    ensure_folder(out)
    on_progress(
        message(
            f"Profiles {images or 'about 200 generated images'}, presizes them once, profiles "
            f"again, trains {EPOCHS} epochs, and writes a report to {out}. "
            "This takes one to five minutes, and Ctrl-C stops it."
        )
    )
    on_progress(message("[1] doctor: which machine is this?"))
    doctor = diagnose(live_machine())
    source = images or assemble_photographs(on_progress=on_progress)
    on_progress(message(f"[2] profile run: what do the images in {source} cost?"))
    before = _profile(source, out / "before.tpuprof", on_progress)
    shards = out / "shards"
    on_progress(
        message(f"[3] data presize, verify, show: decode and shrink them once, to {IMAGE_SIZE}")
    )
    options = data_sets.PresizeOptions(size=(IMAGE_SIZE, IMAGE_SIZE), overwrite=True)
    presized = data_sets.presize(source, shards, options, on_progress=on_progress)
    verified = data_sets.verify(shards, deep=True)
    sheet = out / "sheet.png"
    data_sets.write_sheet(shards, sheet)
    on_progress(message("[4] profile run: what do the shards cost?"))
    after = _profile(shards, out / "after.tpuprof", on_progress)
    on_progress(message(f"[5] launch images: {EPOCHS} epochs on the shards"))
    step_ms, step_source = reference_step_ms(BATCH_SIZE)
    return DemoResult(
        images=str(source),
        out=str(out),
        device_step_ms=step_ms,
        device_step_source=step_source,
        doctor=doctor,
        before=before,
        presize=presized,
        verify=verified,
        show=data_sets.describe(shards),
        sheet=str(sheet),
        after=after,
        diff=diff(before, after),
        launch=_train(shards, out / "training", doctor, log),
        seconds=time.monotonic() - start_s,
        report_html=str(out / "report.html"),
        report_json=str(out / "report.json"),
        next_command=_next_command(images, step_ms),
    )


def _next_command(images: Path | None, step_ms: float) -> str:
    if images is None:
        return f"tpuctl profile run FOLDER_OF_YOUR_IMAGES --device-step-ms {step_ms:.3g}"
    target = images.with_name(f"{images.resolve().name}-{IMAGE_SIZE}")
    words = ("tpuctl", "data", "presize", str(images), str(target), "--size", str(IMAGE_SIZE))
    return shlex.join(words)


def assemble_photographs(
    per_subject: int = PER_SUBJECT, *, on_progress: OnProgress = silent
) -> Path:
    """Return a folder with about 200 camera-sized images in class folders.

    The first call takes up to a minute and 220 MB of the cache folder; an interrupted one resumes.
    Raises MissingExtraError and WriteError.
    """
    pictures = list_pictures(per_subject)
    folder = cache_dir() / "demo" / f"photographs-{VERSION}-{len(pictures)}"
    ensure_folder(folder, private=True)
    try:
        from tpuctl.demo._photographs import make_photographs
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Making the demo's images", extra="demo", module=error.name or "scikit-image"
        ) from error
    make_photographs(pictures, folder, on_progress)
    return folder


def _check_extras(*, own_photographs: bool) -> None:
    """Raise MissingExtraError before the first step instead of in the middle."""
    own = ("skimage", "sklearn") if own_photographs else ()
    modules = ("tensorflow", "keras", "cv2", "simplejpeg", "PIL", "google_crc32c", *own)
    need_modules("The demo", *modules, extra="demo")


def _profile(target: Path, file: Path, on_progress: OnProgress) -> Profile:
    step_ms, _ = reference_step_ms(BATCH_SIZE)
    profile = profile_target(
        str(target),
        batch_size=BATCH_SIZE,
        image_size=IMAGE_SIZE,
        device_step_ms=step_ms,
        on_progress=on_progress,
    )
    save(profile, file)
    return profile


def _train(shards: Path, out: Path, doctor: Diagnosis, log: int | None) -> Training:
    settings = [f"data={shards}", f"epochs={EPOCHS}", f"batch-size={BATCH_SIZE}", f"out={out}"]
    plan = plan_training("images", doctor, settings=settings)
    errors = out / "stderr.log"
    return watch_training(plan, log=log, errors=errors, stdin=subprocess.DEVNULL)
