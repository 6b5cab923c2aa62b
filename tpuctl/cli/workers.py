"""What the commands for workers have in common: which machines, and how to reach them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.remote.access import Access, open_access
from tpuctl.remote.find import find_workers
from tpuctl.remote.hosts import Host, parse_hosts

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A TPU of yours.")]
Hosts = Annotated[
    str | None,
    typer.Option("--host", metavar="USER@IP,...", help="Machines of yours instead of a TPU."),
]
Workers = Annotated[
    str, typer.Option("--worker", metavar="all|0,2-3", help="Which workers, by number.")
]
Job = Annotated[str | None, typer.Option("--job", metavar="JOB", help="A job's name.")]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="The private key to log in with.")
]
Jump = Annotated[
    str | None, typer.Option("--jump", metavar="USER@IP", help="A machine to jump over.")
]


def reach(key: Path | None, jump: str | None) -> Access:
    """How to reach workers, from the options."""
    return open_access(key=key, jump=parse_hosts(jump)[0] if jump else None)


def split_words(words: list[str], hosts: str | None) -> tuple[str | None, list[str]]:
    """Tell the TPU's name from the command: with `--host` there is none."""
    return (None, words) if hosts else (words[0] if words else None, words[1:])


def find(name: str | None, hosts: str | None, workers: str) -> tuple[Host, ...]:
    """The workers that are meant."""
    return find_workers(name, hosts=hosts, workers=workers)


def sink() -> Callable[[int, bytes], None]:
    """Where the words of workers go: our own stdout and stderr, or where JSON leaves room."""
    files = {1: sys.stderr if output.as_json() else sys.stdout, 2: sys.stderr}

    def write(stream: int, data: bytes) -> None:
        file = files[stream].buffer
        file.write(data)
        file.flush()

    return write
