"""Try advice: the pipeline with and without a change, in turns, each in a process of its own.

A machine with neighbours drifts by a quarter within minutes, so only runs side by side compare.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpuctl.errors import TpuctlError
from tpuctl.pipeline.models import Advice, Measurement, Profile
from tpuctl.pipeline.request import Request
from tpuctl.progress import OnProgress, Progress

MOST_TRIED, ROUNDS, SECONDS = 3, 3, 2.0
# A change that brings less than this in the median of the rounds is not worth an edit.
LEAST_RATIO = 1.0

Measure = Callable[[Request], Measurement]


def verify(
    profile: Profile, request: Request, *, measure: Measure, on_progress: OnProgress
) -> Profile:
    """Put what was measured beside what was predicted, and leave out advice that loses.

    Starts a process for the pipeline as it is and for each change, in every round.
    """
    tried = [advice for advice in profile.advice if advice.trial][:MOST_TRIED]
    if not tried or profile.pipeline_examples_per_s is None:
        note = "None of the advice can be tried from outside: it needs an edit or another machine."
        return replace(profile, notes=(*profile.notes, note))
    short = replace(request, seconds=min(SECONDS, request.seconds), steps=None, device_step_ms=None)
    ratios: dict[int, list[float]] = {id(advice): [] for advice in tried}
    failures: list[str] = []
    for number in range(ROUNDS):
        before = _rate(measure(short))
        for advice in tried:
            on_progress(Progress("verify", number, ROUNDS, "rounds", advice.code))
            try:
                after = _rate(measure(replace(short, change=advice.trial)))
                ratios[id(advice)].append(after / before)
            except TpuctlError as error:
                failures.append(f"{advice.code} could not be tried: {error}")
    found = {key: statistics.median(each) for key, each in ratios.items() if each}
    return _concluded(profile, found, tuple(dict.fromkeys(failures)))


def _rate(measured: Measurement) -> float:
    phase = measured.phases[0]
    return max(1e-9, phase.examples / phase.wall_s)


def _concluded(profile: Profile, found: dict[int, float], failures: Sequence[str]) -> Profile:
    rate, kept, notes = profile.pipeline_examples_per_s or 0.0, list[Advice](), list(failures)
    for advice in profile.advice:
        ratio = found.get(id(advice))
        if ratio is None:
            kept.append(advice)
        elif ratio < LEAST_RATIO:
            notes.append(f"{advice.code} was tried and is not advised: x{ratio:.2f} of the rate.")
        else:
            kept.append(_measured(advice, ratio * rate))
    return replace(profile, advice=_ranked(kept), notes=(*profile.notes, *notes))


def _measured(advice: Advice, rate: float) -> Advice:
    predicted = advice.predicted_examples_per_s
    error = None if predicted is None else predicted / rate - 1
    return replace(advice, measured_examples_per_s=rate, error_fraction=error)


def _ranked(advice: Sequence[Advice]) -> tuple[Advice, ...]:
    """What was measured comes first, the fastest before the others."""
    return tuple(sorted(advice, key=lambda each: -(each.measured_examples_per_s or 0.0)))
