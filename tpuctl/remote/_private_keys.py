"""The user's private SSH keys: which of them can be used, and a new one."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError, MissingExtraError


@contextmanager
def _empty_path() -> Iterator[None]:
    """Set PATH so that no program is found.

    asyncssh looks for two optional libraries, and Python's `find_library` runs gcc and ld for those
    that the loader does not list: a third of the import time.
    """
    before = os.environ.get("PATH")
    os.environ["PATH"] = os.devnull
    try:
        yield
    finally:
        del os.environ["PATH"]
        if before is not None:
            os.environ["PATH"] = before


try:
    with _empty_path():
        import asyncssh as asyncssh
except ModuleNotFoundError as error:
    raise MissingExtraError("Connecting to a worker", extra="ssh", module="asyncssh") from error


@dataclass(frozen=True)
class PrivateKeys:
    """Keys we can load, keys with a passphrase, which only ssh-agent can use, and keys that other
    users can read.
    """

    ours: tuple[Any, ...]
    locked: tuple[Path, ...]
    exposed: tuple[Path, ...]


def load_keys(paths: tuple[Path, ...]) -> PrivateKeys:
    """Read private keys; raises InvalidInputError if there is only one and it cannot be used."""
    ours, locked, exposed = [], [], []
    for path in paths:
        try:
            if _is_exposed(path):
                exposed.append(path)
                continue
            ours.append(asyncssh.read_private_key(str(path)))
        except asyncssh.KeyEncryptionError:
            locked.append(path)
        except (asyncssh.KeyImportError, OSError) as error:
            if "passphrase" in str(error).lower():
                locked.append(path)
            elif len(paths) == 1:
                why = getattr(error, "strerror", None) or str(error)
                raise InvalidInputError(
                    f"{path} is not a valid private key: {why}.",
                    hint="Use another file with --key, or leave --key out.",
                ) from error
    if exposed and len(paths) == 1:
        raise InvalidInputError(
            f"Other users can read the private key {exposed[0]}, so it is not used.",
            hint=f"chmod 600 {shlex.quote(str(exposed[0]))}",
        )
    return PrivateKeys(tuple(ours), tuple(locked), tuple(exposed))


def _is_exposed(path: Path) -> bool:
    """Whether ssh would refuse a private key because of its mode."""
    state = path.stat()
    return state.st_uid == os.getuid() and bool(state.st_mode & 0o077)


def new_key() -> tuple[bytes, str]:
    """Create a private key, and its public key as a line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode()
    return key.export_private_key(), " ".join(public.split()[:2])
