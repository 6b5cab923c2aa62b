"""The guard that a TPU carries: a startup script which deletes the TPU when its time is over."""

import base64
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import InvalidInputError

GUARD = Path(__file__).parent / "data" / "guard.py"
MAX_SCRIPT_BYTES = 256 * 1024
"""What a metadata value may hold (cloud.google.com/compute/docs/metadata, 2026)."""

_HEAD = """\
#!/bin/bash
# Written by tpuctl: the guard of this TPU, and the startup script of its owner if there is one.
folder="${TPUCTL_GUARD_FOLDER:-/var/lib/tpuctl}"
mkdir -p "$folder" && chmod 700 "$folder"
"""
_UNPACK = """\
base64 --decode > "$folder/%s" <<'END'
%s
END
"""
_START = """\
setsid nohup python3 "$folder/guard.py" %s < /dev/null >> "$folder/guard.log" 2>&1 &
"""
_RUN = """\
chmod 700 "$folder/startup-script"
exec "$folder/startup-script"
"""


@dataclass(frozen=True)
class GuardTarget:
    """The one TPU that a guard may delete."""

    project: str
    zone: str
    name: str
    create_id: str


def startup_script(guarded: GuardTarget | None, own: bytes | None) -> str | None:
    """Write what the VM runs when it starts: the guard, then the user's own script unchanged.

    Both travel in base64, so that nothing in them means anything to a shell. Raises
    InvalidInputError when it is more than the metadata server takes.
    """
    if guarded is None and own is None:
        return None
    text = _as_text(own) if guarded is None and own is not None else None
    if text is None:
        text = "".join((_HEAD, *_guard_parts(guarded), *_own_parts(own)))
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        raise InvalidInputError(
            f"The startup script is too large: {len(text.encode()):,} of {MAX_SCRIPT_BYTES:,} bytes.",
            hint="Put the large part into a bucket, and let a short script fetch it.",
        )
    return text


def user_script(text: str | None) -> bytes | None:
    """The user's own part of a startup script that `startup_script` wrote, or somebody else."""
    if not text:
        return None
    if not text.startswith(_HEAD):
        return text.encode()
    packed = re.search(re.escape(_UNPACK % ("startup-script", "@")).replace("@", "([^']*)"), text)
    return base64.b64decode(packed[1]) if packed else None


def _as_text(own: bytes) -> str | None:
    try:
        return own.decode()
    except UnicodeDecodeError:
        return None


def _guard_parts(guarded: GuardTarget | None) -> tuple[str, ...]:
    if guarded is None:
        return ()
    named = (
        f"--project={guarded.project}",
        f"--zone={guarded.zone}",
        f"--name={guarded.name}",
        f"--create-id={guarded.create_id}",
    )
    return _UNPACK % ("guard.py", _packed(GUARD.read_bytes())), _START % shlex.join(named)


def _own_parts(own: bytes | None) -> tuple[str, ...]:
    return () if own is None else (_UNPACK % ("startup-script", _packed(own)), _RUN)


def _packed(content: bytes) -> str:
    return base64.encodebytes(content).decode().rstrip("\n")
