"""`tpuctl data serve`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.datasets.serve import Service, serve_here, serve_on_hosts
from tpuctl.reporters import data as report


def serve(
    name: workers.Name = None,
    count: Annotated[
        int | None,
        typer.Option("--workers", help="Of the service; default: one per machine, of all vCPUs."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Of the dispatcher; workers take the next ones.")
    ] = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    python: Annotated[str, typer.Option(help="The Python with TensorFlow there.")] = "python3",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Serve input pipelines to trainings elsewhere: a tf.data service, watched until Ctrl-C."""
    if name is None and host is None:
        serve_here(workers=count, port=port, on_ready=_announce, on_note=output.note)
        return
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    hosts, access = where.reach()
    serve_on_hosts(
        hosts,
        access,
        workers=count,
        port=port,
        python=python,
        on_ready=_announce,
        on_note=output.note,
    )


def _announce(service: Service) -> None:
    """Say that it runs: this is the result, whatever comes later."""
    output.show(service, report.served)
    output.result_is_out()
