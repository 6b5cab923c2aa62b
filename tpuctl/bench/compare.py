"""Two sweeps side by side: how many times as fast is the second machine?"""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tpuctl.bench.models import Bench, Comparison, Row, SpeedUp
from tpuctl.errors import InvalidInputError, NotFoundError

_HINT = "Take it again: tpuctl bench --json > FILE.json"


def compare(before: Bench, after: Bench) -> Comparison:
    """Compare the best rows of two sweeps, batch by batch and at each one's best batch.

    Raises InvalidInputError where they trained different things.
    """
    if before.template != after.template:
        raise InvalidInputError(
            f"Cannot compare a sweep of {before.template} with one of {after.template}.",
            hint="Run both with the same --template.",
        )
    sizes = sorted(_sizes(before) & _sizes(after))
    pairs = [(size, _best(before.rows, size), _best(after.rows, size)) for size in sizes]
    best = (None, _best(before.rows), _best(after.rows))
    return Comparison(
        before.template,
        before.place,
        after.place,
        tuple(_speed_up(*pair) for pair in [*pairs, best]),
    )


def load(path: Path) -> Bench:
    """Read what `tpuctl bench --json` printed; raises NotFoundError or InvalidInputError."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no sweep {path}.", hint=_HINT) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"Could not read the sweep {path}: {error}", hint=_HINT) from error
    try:
        data = document["data"]
        rows = tuple(_read_row(row) for row in data["rows"])
        bench = Bench(
            str(data["machine"]),
            str(data.get("date", "")),
            str(data["template"]),
            int(data["examples_per_epoch"]),
            int(data["epochs"]),
            rows,
            None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is no sweep of tpuctl bench.", hint=_HINT) from error
    if not rows:
        raise InvalidInputError(f"The sweep {path} holds no measurement.", hint=_HINT)
    return bench


def _read_row(row: dict[str, Any]) -> Row:
    values = {field.name: row[field.name] for field in fields(Row)}
    numbers = [value for name, value in values.items() if name.endswith(("_s", "_ms", "_example"))]
    if not all(isinstance(value, int | float) and value > 0 for value in numbers):
        raise ValueError("a time is not above 0")
    return Row(**values)


def _sizes(bench: Bench) -> set[int]:
    return {row.batch_size for row in bench.rows}


def _best(rows: Iterable[Row], size: int | None = None) -> Row:
    able = [row for row in rows if size in (None, row.batch_size)]
    return min(able, key=lambda row: row.us_per_example)


def _speed_up(size: int | None, before: Row, after: Row) -> SpeedUp:
    return SpeedUp(
        size,
        before,
        after,
        round(before.us_per_example / after.us_per_example, 2),
        round(before.first_epoch_s / after.first_epoch_s, 2),
    )
