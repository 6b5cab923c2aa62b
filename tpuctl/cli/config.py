"""`tpuctl config`."""

import typer

from tpuctl.cli import output
from tpuctl.reporters import config as report
from tpuctl.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command()
def config() -> None:
    """Show every setting and where its value came from."""
    output.show(load_settings(), report.text)
