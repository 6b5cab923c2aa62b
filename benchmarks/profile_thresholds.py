"""Fit the thresholds of the verdicts on one part of the labelled suite and try them on the rest.

    python -m benchmarks profile_thresholds

Works on kept measurements (`profile_suite --keep FILE`) and so takes seconds. Each threshold in
turn is moved over a range around the value in force; the values with the least loss on the part
`fit` make an interval. A value inside it stays (among equals there is nothing to choose by); one
outside moves to its middle. What the part `held out` says then was not looked at before.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.profile_labels import LABELS, Label, grade, summary
from benchmarks.profile_records import RECORDS, read_records
from tpuctl.profiling.case import Case, build_case
from tpuctl.profiling.reference import Thresholds, thresholds
from tpuctl.profiling.verdict import judge

# A wrong verdict sends somebody the wrong way; an abstention only does not help.
LOSSES = {"right": 0.0, "unknown": 1.0, "wrong": 10.0}
RANGE, STEPS = 3.0, 12
# Not of the verdicts, but of the advice that comes with them.
NOT_FITTED = ("longest_extrapolation",)


@dataclass(frozen=True)
class Record:
    """A pipeline that was measured: what is true of it, and what the rules look at."""

    label: Label
    case: Case

    def grade(self, values: Thresholds) -> str:
        """Say whether its verdict is right with these thresholds."""
        verdict = judge(replace(self.case, limits=values)).verdict
        return grade(self.label, verdict, self.case.free.signals)


@dataclass(frozen=True)
class Interval:
    """The values of one threshold that are as good as any, and the one chosen of them."""

    low: float
    high: float
    chosen: float

    def words(self, present: float) -> str:
        """Say how free the choice was."""
        top = min(present * RANGE, 1.0) if present <= 1 else present * RANGE
        if self.low <= present / RANGE * 1.01 and self.high >= top / RANGE ** (1.01 / STEPS):
            return f"as good all the way from {self.low:.3g} to {self.high:.3g}"
        return f"best from {self.low:.3g} to {self.high:.3g}"


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    place = parser.parse_args(words).records
    if not place.exists():
        print(f"no measurements are kept: python -m benchmarks.profile_suite --keep {place}")
        return
    records = list(read(place))
    parts = {p: [each for each in records if each.label.part == p] for p in ("fit", "held out")}
    for part, members in parts.items():
        print(f"{part}: {', '.join(dict.fromkeys(each.label.name for each in members))}")
    fitted = fit(parts["fit"], thresholds())
    for part, members in parts.items():
        grades = [each.grade(fitted) for each in members]
        print(summary(part, grades))
        for each, result in zip(members, grades, strict=True):
            if result != "right":
                print(f"  {each.label.name}: {result}, {'/'.join(each.label.verdicts)} is true")


def read(place: Path) -> Iterator[Record]:
    """Yield what was measured of the labelled pipelines."""
    labels = {label.name: label for label in LABELS}
    for name, measured in read_records(place):
        if name in labels:
            yield Record(labels[name], build_case(measured))


def fit(records: Sequence[Record], start: Thresholds) -> Thresholds:
    """Move every threshold once to where the records judge it best; print what was found."""
    values = start
    for name, value in asdict(start).items():
        if name in NOT_FITTED:
            continue
        found = best_interval(records, values, name)
        values = replace(values, **{name: found.chosen})
        moved = "" if found.chosen == value else f", was {value:g}"
        print(f"  {name:24} {found.chosen:6.3g}{moved}  ({found.words(value)})")
    return values


def best_interval(records: Sequence[Record], values: Thresholds, name: str) -> Interval:
    """The widest run of values around the present one, or else anywhere, with the least loss."""
    present = getattr(values, name)
    grid = [present * RANGE ** (step / STEPS) for step in range(-STEPS, STEPS + 1)]
    if present <= 1:
        grid = [value for value in grid if value <= 1]
    losses = [loss(records, replace(values, **{name: value})) for value in grid]
    least = min(losses)
    middle = STEPS if losses[STEPS] == least else losses.index(least)
    low = high = middle
    while low > 0 and losses[low - 1] == least:
        low -= 1
    while high < len(grid) - 1 and losses[high + 1] == least:
        high += 1
    chosen = present if middle == STEPS else (grid[low] * grid[high]) ** 0.5
    return Interval(grid[low], grid[high], chosen)


def loss(records: Sequence[Record], values: Thresholds) -> float:
    """How bad the verdicts are with these thresholds."""
    return sum(LOSSES[each.grade(values)] for each in records)


if __name__ == "__main__":
    main(sys.argv[1:])
