"""`tpuctl fit`."""

import enum
from typing import Annotated

import typer

from tpuctl.cli import output, progress
from tpuctl.compile.fit import TIMEOUT_S, fit_types
from tpuctl.reporters import fit as report

app = typer.Typer(add_completion=False)

Types = Annotated[
    list[str], typer.Option("--type", help="v5e-8, v4-32, ...; several are compared.")
]


class Dtype(str, enum.Enum):
    """Element types to compile in."""

    BF16 = "bf16"
    F32 = "f32"


Precision = Annotated[Dtype | None, typer.Option(help="Compile in bfloat16 or float32.")]


@app.command()
def fit(
    target: str = typer.Argument(
        ..., help="path.py:function, module:function, a .mlir or .stablehlo file, or a template."
    ),
    types: Types = (),  # type: ignore[assignment]
    batch: int | None = typer.Option(None, min=1, help="Examples in a step, on all chips."),
    max_batch: bool = typer.Option(False, "--max-batch", help="Find the largest batch that fits."),
    dtype: Precision = None,
    inference: bool = typer.Option(False, "--inference", help="The forward pass of a model only."),
    verify: bool = typer.Option(
        False, "--verify", help="Where it does not fit, compile what could be tried."
    ),
    timeout: float = typer.Option(TIMEOUT_S, min=1, help="Seconds that your code may take."),
) -> None:
    """Compile for a TPU that you do not have: does it fit, how fast, at what price."""
    with progress.bars() as on_progress:
        result = fit_types(
            target,
            types,
            batch_size=batch,
            max_batch=max_batch,
            dtype=dtype.value if dtype else None,
            training=not inference,
            verify=verify,
            timeout_s=timeout,
            on_progress=on_progress,
        )
    output.show(result, report.text)
