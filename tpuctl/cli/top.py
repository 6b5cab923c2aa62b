"""`tpuctl top`."""

import sys
from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.cli.progress import screen
from tpuctl.remote.hosts import LOCAL
from tpuctl.remote.top import INTERVAL_S, follow_usage, read_usage
from tpuctl.reporters import top as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)


@app.command()
def top(
    name: workers.NameOrLocal = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    once: Annotated[
        bool, typer.Option("--once", help="Once; so is --json, and output to no terminal.")
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="How often the table is renewed.")
    ] = f"{INTERVAL_S:g}s",
    sudo: workers.Sudo = False,
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Show what every worker does: vCPUs, memory, and each chip's duty cycle, HBM and holder."""
    name = name if name or host else LOCAL
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    found, access = where.reach_or_here()
    if once or output.as_json() or not sys.stdout.isatty():
        output.show(read_usage(found, access, as_root=sudo), report.usage)
        return
    with screen(report.live) as show:
        follow_usage(found, access, show, as_root=sudo, interval_s=parse_duration_s(interval))
