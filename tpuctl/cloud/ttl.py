"""The TTL guard: a startup script on the TPU that deletes the TPU when its time to live is over."""

import base64
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import InvalidInputError

GUARD = Path(__file__).parent / "data" / "guard.py"
MAX_SCRIPT_BYTES = 256 * 1024
"""The limit of a metadata value (cloud.google.com/compute/docs/metadata, 2026)."""

# `user_script` finds this head in the scripts of TPUs that older versions created: never change it.
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


def startup_script(target: GuardTarget | None, own: bytes | None) -> str | None:
    """Return what the VM runs when it starts: the guard, then the user's own script unchanged.

    Raises InvalidInputError when it is larger than a metadata value may be.
    """
    text = None
    if target is None:
        if own is None:
            return None
        with suppress(UnicodeDecodeError):
            text = own.decode()
    if text is None:
        # Both travel as base64, so that nothing in them means anything to a shell.
        own_parts = () if own is None else (_UNPACK % ("startup-script", _packed(own)), _RUN)
        text = "".join((_HEAD, *_guard_parts(target), *own_parts))
    size = len(text.encode())
    if size > MAX_SCRIPT_BYTES:
        raise InvalidInputError(
            f"The startup script is too large: {size:,} of {MAX_SCRIPT_BYTES:,} bytes.",
            hint="Put the large part into a bucket, and let a short script fetch it.",
        )
    return text


def user_script(text: str | None) -> bytes | None:
    """Return the user's part of a startup script, whether `startup_script` wrote it or not."""
    if not text:
        return None
    if not text.startswith(_HEAD):
        return text.encode()
    packed = re.search(re.escape(_UNPACK % ("startup-script", "@")).replace("@", "([^']*)"), text)
    return base64.b64decode(packed[1]) if packed else None


def _guard_parts(target: GuardTarget | None) -> tuple[str, ...]:
    if target is None:
        return ()
    options = (
        f"--project={target.project}",
        f"--zone={target.zone}",
        f"--name={target.name}",
        f"--create-id={target.create_id}",
    )
    return _UNPACK % ("guard.py", _packed(GUARD.read_bytes())), _START % shlex.join(options)


def _packed(content: bytes) -> str:
    return base64.encodebytes(content).decode().rstrip("\n")
