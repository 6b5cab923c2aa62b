"""Test advice: measure the pipeline with and without each change, alternating, in new processes.

The speed of a shared machine drifts by a quarter within minutes, so only alternating measurements
are comparable.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.profiling.inputs import find_photos
from tpuctl.profiling.models import Advice, Measurement, Profile
from tpuctl.profiling.request import Request, Target
from tpuctl.profiling.whatif import Change
from tpuctl.progress import OnProgress, Progress
from tpuctl.start_python import python_command
from tpuctl.usercode.scratch import scratch_folder

# Two processes per round and change: three rounds of three take about a minute.
MOST_TRIED, ROUNDS, SECONDS = 3, 3, 2.0
# A change whose median ratio of the rates is below this is not worth an edit.
LEAST_RATIO = 1.0
NONE_TRIED = "None of the advice can be tried from outside: it needs an edit or another machine."

Measure = Callable[[Request], Measurement]
# Yields the requests without and with presizing, given the size and the CPU ms per example.
Presize = Callable[[Request, int, float], AbstractContextManager[tuple[Request, Request]]]
# The CPU time for presizing the sample, and how many images are enough and too few.
CPU_S, LEAST, MOST = 10.0, 32, 256
PRESIZE_LIMIT_S = 120.0


@dataclass
class _Trial:
    """A piece of advice, the requests without and with it, and the ratios of the rates."""

    advice: Advice
    before: Request
    after: Request
    ratios: list[float] = field(default_factory=list)


def verify_advice(
    profile: Profile,
    request: Request,
    *,
    measure: Measure,
    presize: Presize,
    on_progress: OnProgress,
) -> Profile:
    """Add the measured rate to each prediction, and drop advice that makes the pipeline slower.

    Every round starts a process for the unchanged pipeline and one for each change.
    """
    tried = [advice for advice in profile.advice if advice.trial][:MOST_TRIED]
    if not tried or profile.pipeline_examples_per_s is None:
        return replace(profile, notes=(*profile.notes, NONE_TRIED))
    short = replace(
        request,
        seconds=min(SECONDS, request.seconds),
        steps=None,
        device_step_ms=None,
        trace_folder=None,
    )
    trials: list[_Trial] = []
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        for advice in tried:
            with _noted(advice, failures):
                on_progress(Progress("verify", 0, ROUNDS, "rounds", f"preparing {advice.code}"))
                pair = _requests(advice.trial, short, profile, presize, stack)
                trials.append(_Trial(advice, *pair))
        for number in range(ROUNDS):
            _round(number, trials, measure, failures, on_progress)
    return _concluded(profile, trials, tuple(dict.fromkeys(failures)))


def _requests(
    change: Change | None,
    short: Request,
    profile: Profile,
    presize: Presize,
    stack: contextlib.ExitStack,
) -> tuple[Request, Request]:
    if change and change.way == "presize":
        cpu_ms = profile.cpu_ms_per_example or 0.0
        made = presize(short, change.number or short.image_size, cpu_ms)
        return stack.enter_context(made)
    return short, replace(short, change=change)


def _round(
    number: int,
    trials: Sequence[_Trial],
    measure: Measure,
    failures: list[str],
    on_progress: OnProgress,
) -> None:
    """Measure every change once, and each unchanged pipeline once before."""
    rates: dict[Request, float] = {}
    for trial in trials:
        with _noted(trial.advice, failures):
            on_progress(Progress("verify", number, ROUNDS, "rounds", trial.advice.code))
            if trial.before not in rates:
                rates[trial.before] = _rate(measure(trial.before))
            trial.ratios.append(_rate(measure(trial.after)) / rates[trial.before])


@contextlib.contextmanager
def _noted(advice: Advice, failures: list[str]) -> Iterator[None]:
    try:
        yield
    except TpuctlError as error:
        failures.append(f"{advice.code} could not be tried: {error}")


def _rate(measured: Measurement) -> float:
    phase = measured.phases[0]
    return max(1e-9, phase.examples / phase.wall_s)


def _concluded(profile: Profile, trials: Sequence[_Trial], failures: Sequence[str]) -> Profile:
    rate, kept, notes = profile.pipeline_examples_per_s or 0.0, list[Advice](), list(failures)
    found = {id(t.advice): statistics.median(t.ratios) for t in trials if t.ratios}
    for advice in profile.advice:
        ratio = found.get(id(advice))
        if ratio is None:
            kept.append(advice)
        elif ratio < LEAST_RATIO:
            notes.append(f"{advice.code} was tried and is not advised: x{ratio:.2f} of the rate.")
        else:
            measured, predicted = ratio * rate, advice.predicted_examples_per_s
            error = None if predicted is None else predicted / measured - 1
            kept.append(replace(advice, measured_examples_per_s=measured, error_fraction=error))
    kept.sort(key=lambda each: -(each.measured_examples_per_s or 0.0))
    return replace(profile, advice=tuple(kept), notes=(*profile.notes, *notes))


@contextlib.contextmanager
def presized_sample(
    request: Request, size: int, cpu_ms_per_example: float
) -> Iterator[tuple[Request, Request]]:
    """Yield the request for a sample of the images, and for the records made from it.

    Both are removed afterwards. Raises TargetError if presizing fails.
    """
    with scratch_folder("tpuctl-presize-") as scratch:
        photos, records = scratch.path / "photos", scratch.path / "records"
        photos.mkdir()
        for number, photo in enumerate(_sample(Path(request.target.place), cpu_ms_per_example)):
            (photos / f"{number:05}{photo.suffix}").symlink_to(photo)
        words = ["data", "presize", str(photos), str(records), "--size", str(size)]
        command = python_command("tpuctl.__main__", *words, "--labels", "none")
        scratch.run(command, limit_s=PRESIZE_LIMIT_S)
        yield (
            replace(request, target=Target("photos", str(photos))),
            replace(request, target=Target("shards", str(records))),
        )


def _sample(folder: Path, cpu_ms_per_example: float) -> list[Path]:
    """Images from all over the folder, as many as can be presized in a few seconds."""
    photos = find_photos(folder).photos
    count = min(MOST, max(LEAST, round(CPU_S * 1e3 / max(cpu_ms_per_example, 1e-3))))
    return [photo.path for photo in photos[:: max(1, len(photos) // count)][:count]]
