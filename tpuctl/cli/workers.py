"""What the commands for workers have in common: which machines, and how to reach them."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cloud.models import Node
from tpuctl.errors import UsageError
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import (
    LOCAL,
    Host,
    find_node,
    parse_hosts,
    pick_workers,
    split_user,
    this_machine,
    workers_of,
)
from tpuctl.remote.keys import login_user, open_access, open_access_to

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="A TPU of yours; user@NAME to log in so.")
]
NameOrLocal = Annotated[
    str | None,
    typer.Argument(metavar="[NAME|local]", help="A TPU of yours, or local for this machine."),
]
Sudo = Annotated[
    bool, typer.Option("--sudo", help="Look and act as root, where sudo asks no password.")
]
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
InternalIp = Annotated[
    bool, typer.Option("--internal-ip", help="Use the addresses inside the network.")
]


@dataclass(frozen=True)
class Where:
    """Which machines, as the options say it; `name` is None where addresses are given."""

    name: str | None
    hosts: str | None
    worker: str
    key: Path | None
    jump: str | None
    zone: str | None
    project: str | None
    internal_ip: bool

    def reach(self) -> tuple[tuple[Host, ...], Access]:
        """The workers, and how to reach them; a TPU of ours gets to know our key."""
        return self.reach_of_node()[:2]

    def reach_of_node(self) -> tuple[tuple[Host, ...], Access, Node | None]:
        """The same, and the TPU that they are of, if they are of one."""
        jump = parse_hosts(self.jump)[0] if self.jump else None
        if self.hosts and self.name:
            raise UsageError("Both a NAME and --host were given.", hint="Give one of them.")
        if self.hosts:
            found = pick_workers(parse_hosts(self.hosts), self.worker)
            return self._named_again(found), open_access(key=self.key, jump=jump), None
        if not self.name:
            raise UsageError("Which machines? Give a NAME or --host.", hint="tpuctl list")
        return self._reach_tpu(self.name, jump)

    def _reach_tpu(
        self, target: str, jump: Host | None
    ) -> tuple[tuple[Host, ...], Access, Node | None]:
        from tpuctl.cloud.connect import chosen_zone

        user, name = split_user(target)
        api = opened(self.project).api
        node = find_node(api, name, chosen_zone(self.zone))
        if "@" not in target:
            user = login_user(node, user)
        workers = pick_workers(workers_of(node, user, internal_ip=self.internal_ip), self.worker)
        access = open_access_to(api, node, user, key=self.key, jump=jump)
        return self._named_again(workers), access, node

    def _named_again(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The workers, named in hints so that the next command reaches them as this one does."""
        given = {"--project": self.project, "--key": self.key, "--jump": self.jump}
        words = [str(word) for pair in given.items() if pair[1] for word in pair]
        more = shlex.join([*words, *["--internal-ip"] * self.internal_ip])
        user = self.name.rpartition("@")[0] if self.name else ""
        named = f"{user}@" if user else ""
        return tuple(
            replace(host, target=f"{named}{host.target} {more}".rstrip()) for host in hosts
        )

    def reach_or_here(self) -> tuple[tuple[Host, ...], Access | None]:
        """The same, or this machine alone, for which there is no access."""
        if self.name == LOCAL and not self.hosts:
            return (this_machine(),), None
        return self.reach()


def split_words(words: list[str], hosts: str | None) -> tuple[str | None, list[str]]:
    """Tell the TPU's name from the command: with `--host` there is none."""
    return (None, words) if hosts else (words[0] if words else None, words[1:])


def sink() -> Callable[[int, bytes], None]:
    """Where the words of workers go: our own stdout and stderr, or where JSON leaves room."""
    files = {1: sys.stderr if output.as_json() else sys.stdout, 2: sys.stderr}

    def write(stream: int, data: bytes) -> None:
        file = files[stream].buffer
        file.write(data)
        file.flush()

    return write
