"""Keep secrets out of reports and recordings.

This module is sent to workers, so it must run on Python 3.8 with nothing else installed.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|APIKEY|AUTH|SIGNATURE|COOKIE|SESSION|_KEY|^KEY$|CREDS$"
    r"|NOTEBOOK_ID|JOB_ID|CONTAINER_NAME|PROJECT|USER|LOGNAME|EMAIL|ACCOUNT",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"ya29\.[\w.-]+|AIza[\w-]{20,}|gh[pousr]_\w{16,}|github_pat_\w+|hf_\w{16,}|sk-[\w-]{16,}"
    r"|xox[abprs]-[\w-]+|AKIA[A-Z0-9]{12,}|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]+-----[\s\S]*|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?<=[?&;])(?:\w*(?:token|key|secret|sig|password)\w*)=[^&\s]+"
    r"|\b(?=[A-Za-z0-9+_-]*\d)(?=[A-Za-z0-9+_-]*[A-Za-z])[A-Za-z0-9+_-]{40,}=*",
    re.IGNORECASE,
)
_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")


def is_secret_name(name: str) -> bool:
    """Whether a variable of that name may hold a secret or personal data."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str) -> str:
    """Replace everything in a text that looks like a token, key or password."""
    return _SECRET_VALUE.sub(REDACTED, text)


def safe_command(command: str) -> str:
    """Shorten a command line to program, module and script; arguments may contain secrets."""
    words = command.split()
    if not words:
        return ""
    shown = [_base(words[0])]
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[1:]
    if len(rest) > 1 and rest[0] == "-m":
        shown += ["-m", _base(rest[1])]
        rest = rest[2:]
    elif rest and rest[0].endswith((".py", ".sh", ".ipynb")):
        shown.append(_base(rest[0]))
        rest = rest[1:]
    return " ".join([*shown, "…"] if rest else shown)


def _base(word: str) -> str:
    name = word.rsplit("/", 1)[-1]
    return redact(name) if _PLAIN_WORD.fullmatch(name) else REDACTED
