"""Which private keys to offer: the ones that are there, or one of our own."""

import os
from collections.abc import Iterator
from pathlib import Path

GOOGLE_KEY = "google_compute_engine"
OWN_KEY = "id_tpuctl"
_USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
# A server hangs up after six attempts, and the agent's keys want their turn too.
_OFFERED = 4


def private_keys(state_dir: Path, chosen: Path | None = None) -> tuple[Path, ...]:
    """The private keys that exist here, the best one first; `chosen` leaves no choice."""
    if chosen is not None:
        return (chosen,)
    return tuple(path for path in _candidates(state_dir) if path.is_file())[:_OFFERED]


def _candidates(state_dir: Path) -> Iterator[Path]:
    home = Path(os.path.expanduser("~")) / ".ssh"
    yield home / GOOGLE_KEY
    yield state_dir / "ssh" / OWN_KEY
    yield from (home / name for name in _USUAL)
