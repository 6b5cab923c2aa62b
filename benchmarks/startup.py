"""`tpuctl --help` against the --help of a typer program with two empty commands."""

import sys
import tempfile
from pathlib import Path

from benchmarks.timing import ratio_of_commands

EMPTY = """
import typer

app = typer.Typer()


@app.command()
def one():
    "One."


@app.command()
def two():
    "Two."


app()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "empty.py"
        program.write_text(EMPTY)
        empty = [sys.executable, str(program), "--help"]
        tpuctl = [sys.executable, "-m", "tpuctl"]
        shown = ratio_of_commands([*tpuctl, "--help"], empty)
        doctor = ratio_of_commands([*tpuctl, "doctor", "--json"], [*tpuctl, "--help"])
    print(f"startup: --help / empty typer program: {shown:.2f} (at most 1.3)")
    print(f"startup: doctor --json / --help: {doctor:.2f} (at most 1.5)")


if __name__ == "__main__":
    main()
