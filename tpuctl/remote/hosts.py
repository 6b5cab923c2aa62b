"""Which machines are meant: `--host`, `--worker`, and how each is called in what we say."""

import getpass
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import find
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.errors import UnavailableError, UsageError, WorkerUnreachableError, WrongStateError

SSH_PORT = 22

_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^@:\s\[\]]+))"
    r"(?::(?P<port>\d{1,5}))?"
)


@dataclass(frozen=True)
class Host:
    """A worker and how to reach it.

    `target` is how a command line names its whole slice; `key_alias` is the name under which its
    host key is kept; `is_own` is a machine that the user named, whose `~/.ssh/config` counts;
    `is_here` is this very machine, reached without SSH.
    """

    index: int
    address: str
    user: str
    port: int = SSH_PORT
    target: str = "NAME"
    key_alias: str = ""
    is_own: bool = False
    is_here: bool = False

    @property
    def label(self) -> str:
        """The worker's number and address, as errors name it."""
        if self.is_here:
            return "this machine"
        return f"worker {self.index} ({self.place})"

    @property
    def place(self) -> str:
        """Address and port, as `known_hosts` files write them."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"


LOCAL = "local"
"""The name that stands for this machine, where a TPU's name is asked for."""


def this_machine() -> Host:
    """The machine that we run on, as a worker."""
    return Host(0, "localhost", getpass.getuser(), target=LOCAL, is_here=True)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `user@ip[:port],...`; the n-th is worker n. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(
            "--host names no machine.", hint="Write it like --host me@10.0.0.5,me@10.0.0.6:2222."
        )
    return tuple(_parse_host(index, word, text) for index, word in enumerate(words))


def _parse_host(index: int, word: str, text: str) -> Host:
    match = _ADDRESS.fullmatch(word)
    port = int(match["port"] or SSH_PORT) if match else 0
    # A leading dash would be an option for the system's ssh.
    if not match or not 0 < port < 65536 or word.startswith("-") or "@-" in word:
        raise UsageError(
            f"{word!r} is no machine.", hint="Write it like me@10.0.0.5 or me@[fd00::5]:2222."
        )
    user, address = match["user"] or getpass.getuser(), match["ipv6"] or match["name"]
    return Host(index, address, user, port, target=f"--host {text}", is_own=True)


def pick_workers(hosts: tuple[Host, ...], wanted: str) -> tuple[Host, ...]:
    """Choose by `all`, or by numbers and ranges such as `0,2-3`; raises UsageError."""
    if wanted == "all":
        return hosts
    numbers: set[int] = set()
    for part in wanted.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(
                f"--worker {wanted!r} is neither all nor numbers.", hint="Write it like 0,2-3."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= len(hosts):
            raise UsageError(
                f"--worker {wanted}: there are workers 0 to {len(hosts) - 1}.",
                hint="Write it like 0,2-3, or all.",
            )
        numbers |= set(range(first, last + 1))
    return tuple(host for host in hosts if host.index in numbers)


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers short: `0-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def name_workers(numbers: Iterable[int]) -> str:
    """Name workers in a sentence: `worker 3`, `workers 0-3,7`."""
    numbers = list(numbers)
    return f"worker{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


EMULATED_PORT = "tpuctl-emulator-ssh-port"
"""The metadata by which an emulated TPU tells where its workers listen."""

_ON_ITS_WAY = frozenset({"CREATING", "STARTING", "RESTARTING", "REPAIRING"})
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def split_user(name: str) -> tuple[str, str]:
    """Read `NAME` or `user@NAME`: the user to log in as, and the TPU's name.

    The user is our own where that is one that a TPU lets in; raises UsageError.
    """
    user, at, tpu = name.rpartition("@")
    if not at:
        own = re.sub(r"[^a-z0-9_-]", "_", getpass.getuser().lower())
        # Nobody logs in to a TPU as root; a notebook's user is one all the same.
        return (own if _USER.fullmatch(own) and own != "root" else "tpuctl"), name
    if not _USER.fullmatch(user) or not tpu:
        raise UsageError(f"{name!r} is no TPU.", hint="Write it like NAME or user@NAME.")
    return user, tpu


def find_node(api: TpuApi, name: str, zone: str | None) -> Node:
    """The TPU of that name, if work can be done on it now.

    Raises NotFoundError; WrongStateError for one that will never be ready, UnavailableError for one
    that is not ready yet.
    """
    thing = find(api, name, zone)
    wait = f"tpuctl wait {thing.name} --zone {thing.zone} --for ready"
    if isinstance(thing, QueuedResource):
        raise UnavailableError(
            f"{name} still waits in line in {thing.zone} ({thing.state}).", hint=wait
        )
    if thing.state in _ON_ITS_WAY:
        raise UnavailableError(f"{name} in {thing.zone} is still {thing.state}.", hint=wait)
    if thing.state != "READY":
        raise WrongStateError(
            f"{name} in {thing.zone} is {thing.state}: nothing can run on it.",
            hint=f"tpuctl show {name} --zone {thing.zone}",
        )
    return thing


def workers_of(node: Node, user: str, *, internal_ip: bool = False) -> tuple[Host, ...]:
    """Every worker of a TPU, at its outer address where it has one and that is not declined.

    Raises WorkerUnreachableError when a worker has no address yet.
    """
    port = int(node.metadata.get(EMULATED_PORT, SSH_PORT))
    indices = range(len(node.endpoints))
    return tuple(_worker(node, index, user, port, internal_ip) for index in indices)


def _worker(node: Node, index: int, user: str, port: int, internal_ip: bool) -> Host:
    endpoint = node.endpoints[index]
    address = endpoint.internal_ip if internal_ip else endpoint.external_ip or endpoint.internal_ip
    if not address:
        raise WorkerUnreachableError(
            f"Worker {index} of {node.name} in {node.zone} has no address yet.",
            hint="Try again in a minute.",
        )
    return Host(
        index,
        address,
        user,
        port,
        target=f"{node.name} --zone {node.zone}",
        key_alias=worker_alias(node, index),
    )


def worker_alias(node: Node, index: int) -> str:
    """Under which name the host key of a worker is kept: another TPU is another worker."""
    return f"tpu.{node.id}-{index}"
