"""Where the workers are: given as addresses, or asked from the Cloud TPU API."""

import getpass
import re

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.looking import find
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.errors import UnavailableError, UsageError, WorkerUnreachableError, WrongStateError
from tpuctl.remote.hosts import SSH_PORT, Host

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
