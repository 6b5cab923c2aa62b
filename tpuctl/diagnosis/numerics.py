"""The matrix test: how far single precision on this device is from float64.

The computation of the notebook "GPU against TPU": QEP = PV^-T Q PV^-1, and Q back from it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tpuctl.diagnosis.deep import MARK, Trial, try_out

if TYPE_CHECKING:
    from tpuctl.diagnosis.report import Diagnosis

Rows = Sequence[Sequence[float]]

_PV = (
    (0.839099, 0.0, -0.000604, -0.000091),
    (-0.000238, 0.771070, -0.330967, -0.126752),
    (-0.000688, -0.410530, -0.956432, 1.249704),
    (-0.000661, -0.394431, -0.918925, 1.592853),
)
_Q_DIAGONAL = (12.755102, 12.755102, 12.755102, -1.0)
# Single precision keeps 24 bits, bfloat16 8: an error beyond the first alone is the second's.
_BFLOAT16_SUSPECT = 1e-3


@dataclass(frozen=True)
class PrecisionError:
    """How far one result in one precision is from the same in float64."""

    precision: str
    result: str
    max_abs_error: float
    max_rel_error: float


@dataclass(frozen=True)
class Numerics:
    """The matrix test on one device."""

    framework: str
    device: str | None
    errors: tuple[PrecisionError, ...]
    explanation: str
    seconds: float
    error: str | None


def matrices() -> tuple[Rows, Rows]:
    """PV and Q of the test."""
    return _PV, tuple(
        tuple(value if row == column else 0.0 for column in range(4))
        for row, value in enumerate(_Q_DIAGONAL)
    )


def answer(found: Mapping[str, Any]) -> None:
    """Hand a trial's result to the parent process."""
    sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")


def reference() -> dict[str, Rows]:
    """QEP and Q as exact arithmetic gives them, rounded once to float64."""
    pv, q = ([[Fraction(value) for value in row] for row in rows] for rows in matrices())
    inverse = _inverse(pv)
    qep = _product(_product(_transposed(inverse), q), inverse)
    back = _product(_product(_transposed(pv), qep), pv)
    rounded = ([[float(value) for value in row] for row in rows] for rows in (qep, back))
    return dict(zip(("QEP", "Q"), rounded, strict=True))


def try_numerics(diagnosis: "Diagnosis") -> Numerics:
    """Run the matrix test with the recommended framework, in a child process."""
    from tpuctl.diagnosis.deep import options, why_not

    framework = diagnosis.recommended.framework
    if reason := why_not(diagnosis):
        return Numerics(framework, None, (), "", 0.0, reason)
    return judge(framework, try_out("numerics", framework, options(diagnosis)))


def judge(framework: str, trial: Trial) -> Numerics:
    """Compare what a device computed with the reference, and say what the difference means."""
    if trial.answer is None:
        return Numerics(framework, None, (), "", trial.seconds, trial.error)
    errors = tuple(
        _error(precision, name, trial.answer["results"][precision][name], expected)
        for precision in ("default", "highest")
        for name, expected in reference().items()
    )
    words = _explanation(errors)
    return Numerics(framework, trial.answer["device"], errors, words, trial.seconds, None)


def _error(precision: str, name: str, got: Rows, expected: Rows) -> PrecisionError:
    rows = zip(got, expected, strict=True)
    pairs = [pair for ours, exact in rows for pair in zip(ours, exact, strict=True)]
    absolute = max(abs(ours - exact) for ours, exact in pairs)
    largest = max(abs(exact) for _, exact in pairs)
    return PrecisionError(precision, name, absolute, absolute / largest)


def _explanation(errors: tuple[PrecisionError, ...]) -> str:
    worst = {
        precision: max(e.max_rel_error for e in errors if e.precision == precision)
        for precision in ("default", "highest")
    }
    if worst["default"] > _BFLOAT16_SUSPECT and worst["default"] > 4 * worst["highest"]:
        return (
            "By default this device multiplies in bfloat16, which keeps 8 bits: right for "
            "training, too coarse for this computation. Highest precision repairs it, for time."
        )
    if worst["default"] > 4 * worst["highest"]:
        return "By default this device multiplies in less than single precision."
    return "Default and highest precision agree: this device multiplies in single precision."


def _product(left: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    columns = _transposed(right)
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction()) for column in columns]
        for row in left
    ]


def _transposed(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss and Jordan, in fractions: no rounding at all."""
    size = len(matrix)
    rows = [
        [*row, *(Fraction(int(column == number)) for column in range(size))]
        for number, row in enumerate(matrix)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda number: abs(rows[number][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for number in range(size):
            if number != column:
                factor = rows[number][column]
                rows[number] = [
                    a - factor * b for a, b in zip(rows[number], rows[column], strict=True)
                ]
    return [row[size:] for row in rows]
