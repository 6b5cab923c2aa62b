"""Workers and their addresses: from `--host` and `--worker`, or from a TPU, also through IAP."""

import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import find
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.errors import (
    NotFoundError,
    UnavailableError,
    UsageError,
    WorkerUnreachableError,
    WrongStateError,
)
from tpuctl.settings import user_name

SSH_PORT = 22

_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^@:\s\[\]]+))"
    r"(?::(?P<port>\d{1,5}))?"
)


@dataclass(frozen=True)
class Host:
    """A worker and how to reach it.

    `target` names its slice in suggested commands; `key_alias` is the name of its host key in
    known_hosts; `is_own` marks a machine given with --host, for which `~/.ssh/config` applies;
    `is_local` marks this machine, which needs no SSH; `proxy` is the command of a tunnel to it.
    """

    index: int
    address: str
    user: str
    port: int = SSH_PORT
    target: str = "NAME"
    key_alias: str = ""
    is_own: bool = False
    is_local: bool = False
    proxy: str = ""

    @property
    def label(self) -> str:
        """The worker's number and address, for messages."""
        if self.is_local:
            return "this machine"
        return f"worker {self.index} ({self.place})"

    @property
    def place(self) -> str:
        """Address and port, as `known_hosts` files write them."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"


LOCAL = "local"
"""The name of this machine where a command takes a TPU's name."""


def this_machine() -> Host:
    """Return this machine as a worker."""
    return Host(0, "localhost", user_name() or "", target=LOCAL, is_local=True)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `user@ip[:port],...`; the n-th is worker n. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(
            "--host is empty.", hint="Use a form like --host me@10.0.0.5,me@10.0.0.6:2222."
        )
    return tuple(_parse_host(index, word, text) for index, word in enumerate(words))


def _parse_host(index: int, word: str, text: str) -> Host:
    match = _ADDRESS.fullmatch(word)
    port = int(match["port"] or SSH_PORT) if match else 0
    # The system's ssh would take a leading dash for an option.
    if not match or not 0 < port < 65536 or word.startswith("-") or "@-" in word:
        raise UsageError(
            f"{word!r} is not a valid host.",
            hint="Use a form like me@10.0.0.5 or me@[fd00::5]:2222.",
        )
    user, address = match["user"] or user_name(), match["ipv6"] or match["name"]
    if not user:
        raise UsageError(
            f"{word!r} names no user, and this user has no name.",
            hint=f"Use a form like me@{word}.",
        )
    return Host(index, address, user, port, target=f"--host {text}", is_own=True)


def parse_workers(wanted: str) -> tuple[tuple[int, int], ...] | None:
    """Read numbers and ranges such as `0,2-3`; None for `all`. Raises UsageError."""
    if wanted == "all":
        return None
    found = [re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part) for part in wanted.split(",")]
    if not all(found):
        raise UsageError(
            f"--worker {wanted!r} is not a list of numbers.",
            hint="Use all, or a form like 0,2-3.",
        )
    return tuple((int(match[1]), int(match[2] or match[1])) for match in found if match)


def pick_workers(hosts: tuple[Host, ...], wanted: str) -> tuple[Host, ...]:
    """Select workers by `all`, or by numbers and ranges such as `0,2-3`; raises UsageError."""
    spans = parse_workers(wanted)
    if spans is None:
        return hosts
    last_index = len(hosts) - 1
    known = f"the workers are 0 to {last_index}" if last_index else "the only worker is 0"
    numbers: set[int] = set()
    for first, last in spans:
        if last < first or last >= len(hosts):
            raise UsageError(
                f"--worker {wanted} is out of range: {known}.",
                hint="Use all, or a form like 0,2-3.",
            )
        numbers |= set(range(first, last + 1))
    return tuple(host for host in hosts if host.index in numbers)


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: `0-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def name_workers(numbers: Iterable[int]) -> str:
    """Format worker numbers for a sentence: `worker 3`, `workers 0-3,7`."""
    numbers = list(numbers)
    return f"worker{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


EMULATED_PORT = "tpuctl-emulator-ssh-port"
"""Metadata key with the SSH port of an emulated TPU's workers."""

_NOT_READY_YET = frozenset({"CREATING", "PENDING", "STARTING", "RESTARTING", "REPAIRING"})
# What useradd accepts.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def split_user(name: str) -> tuple[str, str]:
    """Split `NAME` or `user@NAME` into the user to log in as and the TPU's name.

    The default is the local user if TPUs accept that name, else `tpuctl`. Raises UsageError.
    """
    user, at, tpu = name.rpartition("@")
    if not at:
        own = re.sub(r"[^a-z0-9_-]", "_", (user_name() or "").lower())
        # TPUs do not accept root, which is the user in most notebooks.
        return (own if _USER.fullmatch(own) and own != "root" else "tpuctl"), name
    if not _USER.fullmatch(user) or not tpu:
        raise UsageError(f"{name!r} is not a valid TPU name.", hint="Use NAME or user@NAME.")
    return user, tpu


def find_node(api: TpuApi, name: str, zone: str | None) -> Node:
    """Find a TPU that is ready.

    Raises NotFoundError, UnavailableError if it is not ready yet, and WrongStateError if it never
    will be.
    """
    thing = find(api, name, zone)
    wait = f"tpuctl wait {thing.name} --zone {thing.zone} --for ready"
    if isinstance(thing, QueuedResource):
        raise UnavailableError(
            f"{name} is still queued in {thing.zone} ({thing.state}).", hint=wait
        )
    if thing.state in _NOT_READY_YET:
        raise UnavailableError(f"{name} in {thing.zone} is still {thing.state}.", hint=wait)
    if thing.state != "READY":
        raise WrongStateError(
            f"{name} in {thing.zone} is {thing.state}, so nothing can run on it.",
            hint=f"tpuctl show {name} --zone {thing.zone}",
        )
    return thing


def workers_of(node: Node, user: str, *, internal_ip: bool = False) -> tuple[Host, ...]:
    """List a TPU's workers, by external address where they have one unless `internal_ip`.

    Raises WorkerUnreachableError when a worker has no address yet.
    """
    port = int(node.metadata.get(EMULATED_PORT, SSH_PORT))
    target, workers = f"{node.name} --zone {node.zone}", []
    for index, endpoint in enumerate(node.endpoints):
        address = endpoint.internal_ip
        if not internal_ip:
            address = endpoint.external_ip or address
        if not address:
            raise WorkerUnreachableError(
                f"Worker {index} of {node.name} in {node.zone} has no address yet.",
                hint="Try again in a minute.",
            )
        key_alias = worker_alias(node, index)
        workers.append(Host(index, address, user, port, target=target, key_alias=key_alias))
    return tuple(workers)


def worker_alias(node: Node, index: int) -> str:
    """Name of a worker's host key in known_hosts: by the TPU's id, as addresses are reused."""
    # It becomes a word in known_hosts and in ssh's options.
    return f"tpu.{re.sub(r'[^A-Za-z0-9._-]', '_', node.id)}-{index}"


def through_iap(api: TpuApi, node: Node, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the same workers, reached through Google's Identity-Aware Proxy.

    The tunnel is gcloud's, as ssh's ProxyCommand: its protocol and its login are not documented.
    Raises NotFoundError where gcloud is not installed, and WorkerUnreachableError for a worker
    whose VM is unknown.
    """
    program = shutil.which("gcloud")
    if program is None:
        raise NotFoundError(
            "--iap needs gcloud, which is not installed here.",
            hint="https://cloud.google.com/sdk/docs/install, or --jump user@ip",
        )
    names = [endpoint.vm for endpoint in node.endpoints]
    if not all(names):
        # The VMs of the Cloud TPU API are not in the project; each publishes its name.
        published = api.guest_attributes(node, "")
        names = [worker.get("hostname") for worker in published] or names
    return tuple(
        replace(host, proxy=_command(program, api, node, names[host.index])) for host in hosts
    )


def _command(program: str, api: TpuApi, node: Node, vm: str | None) -> str:
    if not vm:
        raise WorkerUnreachableError(
            f"{node.name} in {node.zone} does not publish the names of its VMs, which --iap needs.",
            hint=f"gcloud compute tpus tpu-vm ssh {node.name} --zone {node.zone} "
            "--tunnel-through-iap",
        )
    words = ["compute", "start-iap-tunnel", vm, "22", "--listen-on-stdin"]
    return shlex.join([program, *words, f"--project={api.project}", f"--zone={node.zone}"])
