"""`tpuctl templates list | show | new`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.reporters import templates as report
from tpuctl.training import catalog

Name = Annotated[str, typer.Argument(help="A template, as templates list names it.")]

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def templates(ctx: typer.Context) -> None:
    """Training scripts worth copying: list, read, write one into your folder."""
    if ctx.invoked_subcommand is None:
        list_templates()


@app.command("list")
def list_templates() -> None:
    """List the templates."""
    output.show(catalog.list_templates(), report.catalog)


@app.command()
def show(name: Name) -> None:
    """Show what a template does and which flags it takes."""
    output.show(catalog.describe_script(catalog.find_template(name)), report.template)


@app.command()
def new(name: Name, folder: Annotated[Path, typer.Argument(help="Where the copy goes.")]) -> None:
    """Copy a template into a folder of yours, to change it."""
    output.show(catalog.write_template(name, folder), report.written)
