"""The endpoint of the API, Google's or a local emulator's, and the loading of Google's client."""

import ipaddress
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import InvalidInputError
from tpuctl.settings import state_dir

GOOGLE = "tpu.googleapis.com"
PRACTICE_PROJECT = "practice"
REACHABLE_TIMEOUT_S = 2.0
_TOKEN_FILE = "TPUCTL_TPU_TOKEN_FILE"  # noqa: S105 (a variable's name)


@dataclass(frozen=True)
class Endpoint:
    """An address; a local one belongs to an emulator and is used without TLS and login.

    `path` is where an emulator's HTTP services are, which has its secret.
    """

    address: str
    is_local: bool
    path: str = ""

    def emulator_token(self) -> str | None:
        """Read the secret of the emulator, by default of the one of the state folder."""
        path = os.environ.get(_TOKEN_FILE) or state_dir() / "emulator" / "token"
        try:
            return Path(path).read_text(encoding="ascii").strip() if self.is_local else None
        except (OSError, ValueError):
            return None

    def check_reachable(self) -> str | None:
        """Check whether anything listens there; return the reason if nothing does."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=REACHABLE_TIMEOUT_S
            ).close()
        except OSError as error:
            return error.strerror or str(error)
        return None


def parse_endpoint(text: str | None, *, default: str = GOOGLE) -> Endpoint:
    """Parse an endpoint; the default is Google's.

    Raises InvalidInputError for an address that is neither Google's nor on this machine, because a
    login must not be sent there.
    """
    if not text:
        return Endpoint(f"{default}:443", is_local=False)
    address = text.strip().removeprefix("http://").removeprefix("https://").rstrip("/")
    address, slash, path = address.partition("/")
    host, colon, port = address.rpartition(":")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise _refusal(text, "its port is not a number from 1 to 65535")
    if not colon:
        host, port = address, ""
    if re.fullmatch(r"([a-z0-9-]+\.)+googleapis\.com", host):
        return Endpoint(f"{host}:{port or 443}", is_local=False)
    if not is_loopback(host):
        raise _refusal(text, "it is neither Google's nor on this machine")
    if not port:
        raise _refusal(text, "it has no port")
    return Endpoint(address, is_local=True, path=f"{slash}{path}")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _refusal(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Cannot use the endpoint {text!r}: {why}.",
        hint="For an emulator: the address that `tpuctl emulator start` prints, such as "
        "127.0.0.1:8471. For Google's: none. To see where it is set: tpuctl config",
    )


VERBOSITY = "GRPC_VERBOSITY"


@contextmanager
def quietly() -> Iterator[None]:
    """Import Google's libraries inside this block, so that they print nothing later.

    They read their verbosity when they are imported. gRPC would log every lost connection, and
    google-api-core would warn about old versions of Python.
    """
    wanted = os.environ.get(VERBOSITY)
    os.environ[VERBOSITY] = wanted or "NONE"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if wanted is None:
            del os.environ[VERBOSITY]
