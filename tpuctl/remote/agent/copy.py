"""The worker's side of a copy in either direction."""

from __future__ import annotations

import os

from tpuctl.remote.agent.tree import (
    FILE,
    TreeEntry,
    digest,
    entry_of_file,
    pack,
    read_entries,
    scan,
)
from tpuctl.remote.agent.unpack import Receiver
from tpuctl.remote.agent.wire import (
    BLOCK_BYTES,
    NOTE,
    Refusal,
    block,
    note,
    read_block,
    read_frame,
    read_note,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

IGNORE_FILES = (".gitignore", ".tpuignore")


def receive(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Receive a folder or file: report what is missing, receive it, and put it in place."""
    root, rows = _target(request["path"], request["entries"], request["is_file"])
    receiver = Receiver(root, dict(enumerate(read_entries(rows))))
    try:
        missing, doubtful = receiver.compare()
        send(note(missing=missing, doubtful=doubtful, digests=receiver.digests(doubtful)))
        receiver.expect(read_note(read_frame(stdin)[1])["coming"])
        while True:
            kind, payload = read_frame(stdin)
            if kind == NOTE:
                break
            receiver.feed(read_block(kind, payload))
        receiver.commit(read_note(payload)["touch"])
        send(note(done=True, path=root, changed=receiver.changed))
    finally:
        receiver.close()


def deliver(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Send a folder or file: first the list of files, then those that are requested."""
    path = _absolute(request["path"])
    if not os.path.exists(path):
        raise Refusal("no_path", f"{request['path'] or '~'} does not exist")
    odd: list[str] = []
    is_file, root = not os.path.isdir(path), path
    if is_file:
        root, name = os.path.split(os.path.realpath(path))
        entry = entry_of_file(name, os.stat(path))
        if entry is None:
            raise Refusal("no_path", f"{request['path']} is neither a file nor a folder")
        entries, rows = [entry], [[os.path.basename(path), *entry.as_list()[1:]]]
    else:
        entries, odd = scan(root, lambda *_: True)
        rows = [entry.as_list() for entry in entries]
    send(note(is_file=is_file, entries=rows, odd=odd, ignores=_ignores(root, entries)))
    while True:
        wanted = read_note(read_frame(stdin)[1])
        if "digest" in wanted:
            paths = [os.path.join(root, entries[index].path) for index in wanted["digest"]]
            send(note(digests=[digest(one) for one in paths]))
        else:
            for data in pack(root, entries, wanted["want"]):
                send(block(data))
            send(note(done=True))
            return


def _target(path: str, rows: list[Any], is_file: bool) -> tuple[str, list[Any]]:
    """Return the folder to write to, and the rows; a single file may get another name."""
    target = _absolute(path)
    if not is_file or path.endswith("/") or os.path.isdir(target):
        return target, rows
    folder, name = os.path.split(target)
    return folder, [[name, *rows[0][1:]]]


def _absolute(path: str) -> str:
    """Make a path absolute; a relative one starts at the home folder."""
    home = os.path.expanduser("~")
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home, path))


def _ignores(root: str, entries: list[TreeEntry]) -> dict[str, str]:
    """Read the ignore files, whose rules the other side applies."""
    texts = {}
    for entry in entries:
        if entry.path.rpartition("/")[2] in IGNORE_FILES and entry.kind == FILE:
            path = os.path.join(root, entry.path)
            with open(path, encoding="utf-8", errors="replace") as file:
                texts[entry.path] = file.read(BLOCK_BYTES)
    return texts
