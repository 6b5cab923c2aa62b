"""Try advice: the pipeline with and without a change, in turns, each in a process of its own.

A machine with neighbours drifts by a quarter within minutes, so only runs side by side compare.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from tpuctl.errors import TpuctlError
from tpuctl.profiling.models import Advice, Measurement, Profile
from tpuctl.profiling.request import Request
from tpuctl.profiling.whatif import Change
from tpuctl.progress import OnProgress, Progress

MOST_TRIED, ROUNDS, SECONDS = 3, 3, 2.0
# A change that brings less than this in the median of the rounds is not worth an edit.
LEAST_RATIO = 1.0
NONE_TRIED = "None of the advice can be tried from outside: it needs an edit or another machine."

Measure = Callable[[Request], Measurement]


class Presize(Protocol):
    """Makes a sample of a folder, and the same photographs presized."""

    def __call__(
        self, request: Request, size: int, *, cpu_ms_per_example: float
    ) -> AbstractContextManager[tuple[Request, Request]]:
        """Give what to measure without presizing and with it."""


@dataclass
class _Trial:
    """A piece of advice, what is measured without it and with it, and the ratios of the rates."""

    advice: Advice
    before: Request
    after: Request
    ratios: list[float] = field(default_factory=list)


def verify(
    profile: Profile,
    request: Request,
    *,
    measure: Measure,
    presize: Presize,
    on_progress: OnProgress,
) -> Profile:
    """Put what was measured beside what was predicted, and leave out advice that loses.

    Starts a process for the pipeline as it is and for each change, in every round.
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
            with _told(advice, failures):
                on_progress(Progress("verify", 0, ROUNDS, "rounds", f"preparing {advice.code}"))
                pair = _requests(advice.trial, short, profile, presize, stack)
                trials.append(_Trial(advice, *pair))
        for number in range(ROUNDS):
            _round(trials, measure, failures, _progress(number, on_progress))
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
        made = presize(short, change.number or short.image_size, cpu_ms_per_example=cpu_ms)
        return stack.enter_context(made)
    return short, replace(short, change=change)


def _progress(number: int, on_progress: OnProgress) -> Callable[[str], None]:
    return lambda code: on_progress(Progress("verify", number, ROUNDS, "rounds", code))


def _round(
    trials: Sequence[_Trial],
    measure: Measure,
    failures: list[str],
    tell: Callable[[str], None],
) -> None:
    """Measure every change once, and what it is a change of once before."""
    rates: dict[Request, float] = {}
    for trial in trials:
        with _told(trial.advice, failures):
            tell(trial.advice.code)
            if trial.before not in rates:
                rates[trial.before] = _rate(measure(trial.before))
            trial.ratios.append(_rate(measure(trial.after)) / rates[trial.before])


@contextlib.contextmanager
def _told(advice: Advice, failures: list[str]) -> Iterator[None]:
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
            kept.append(_measured(advice, ratio * rate))
    return replace(profile, advice=_ranked(kept), notes=(*profile.notes, *notes))


def _measured(advice: Advice, rate: float) -> Advice:
    predicted = advice.predicted_examples_per_s
    error = None if predicted is None else predicted / rate - 1
    return replace(advice, measured_examples_per_s=rate, error_fraction=error)


def _ranked(advice: Sequence[Advice]) -> tuple[Advice, ...]:
    """What was measured comes first, the fastest before the others."""
    return tuple(sorted(advice, key=lambda each: -(each.measured_examples_per_s or 0.0)))
