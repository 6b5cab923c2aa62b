"""Which machines are meant: `--host`, `--worker`, and how each is called in what we say."""

import getpass
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.errors import UsageError

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
