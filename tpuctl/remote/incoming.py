"""Files that a worker sends in a copy, and which of them are accepted: only what was requested.

A worker chooses every byte that it sends, so it must not choose where they are written: the name of
a file is the one that was requested, and a folder's content is added to an existing folder only if
a folder was requested.
"""

import asyncio
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tpuctl.errors import AlreadyExistsError, WorkerError
from tpuctl.remote.agent.tree import FILE, FOLDER, LINK, TreeEntry, is_part, read_entries, scan
from tpuctl.remote.agent.wire import MAX_FRAME_BYTES, Refusal
from tpuctl.remote.connection import AgentCall, Connection, call_agent
from tpuctl.remote.copy_plan import CopyPlan, LeftOut
from tpuctl.remote.hosts import Host

_NO_FILES = ("", ".", "..", "~")
_GIT = ".git"
# Each rule is compared with each path.
_MAX_COMPARISONS = 1 << 26
_MAX_STARS = 3


@dataclass(frozen=True)
class Offer:
    """The files that a worker offers: `ignores` are the texts of its ignore files by path."""

    is_file: bool
    entries: Any
    odd: tuple[str, ...]
    ignores: dict[str, str]


@dataclass(frozen=True)
class Accepted:
    """The folder to write to, the worker's files by their number, and what is left out."""

    root: Path
    entries: dict[int, TreeEntry]
    odd: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


@asynccontextmanager
async def open_offer(
    connection: Connection, plan: CopyPlan, *, is_single: bool
) -> AsyncIterator[tuple[AgentCall, Accepted]]:
    """Ask a worker for a path, and decide what of its offer to accept."""
    host, target = connection.host, plan.local_path
    if not is_single:
        target /= f"worker-{host.index}"
    async with call_agent(connection, "copy.deliver", path=plan.remote) as call:
        call.most_bytes = MAX_FRAME_BYTES
        offer = call.read(Offer, await call.reply(None))
        choose = partial(accept, offer, host, plan.remote, target, is_single=is_single)
        yield call, await asyncio.to_thread(choose)


def accept(offer: Offer, host: Host, requested: str, target: Path, *, is_single: bool) -> Accepted:
    """Choose what to accept of an offer for a path; raises WorkerError and AlreadyExistsError.

    With several workers, the target is a separate folder for each.
    """
    try:
        entries = read_entries(offer.entries)
    except Refusal as refusal:
        raise _invalid(host, str(refusal)) from refusal
    name = posixpath.basename(posixpath.normpath(requested)) if requested else ""
    if offer.is_file:
        if (
            [entry.kind for entry in entries] != [FILE]
            or name in _NO_FILES
            or requested[-1:] == "/"
        ):
            is_folder = name in _NO_FILES or requested[-1:] == "/"
            what = "a folder" if is_folder else "one file"
            raise _invalid(host, f"{requested or '~'} should be {what}")
        entries[0].path = name
        if is_single and not target.is_dir():
            entries[0].path, target = target.name, target.parent
        return Accepted(target, {0: entries[0]}, offer.odd)
    accepted = _accept_folder(offer, host, entries, target)
    is_folder_meant = name in (*_NO_FILES, target.resolve().name) or requested[-1:] == "/"
    if is_single and not is_folder_meant and not _is_new_or_same(target, accepted):
        raise AlreadyExistsError(
            f"{requested} on {host.label} is a folder, and {target} is not empty.",
            hint=f"To add its files to {target}, write it as a folder: {requested}/",
        )
    return accepted


def _is_new_or_same(target: Path, accepted: Accepted) -> bool:
    """Whether a folder holds nothing but what the same copy made, which may have been interrupted.

    An interrupted copy leaves its folder for incoming files, and new folders without their modes.
    """
    names = {path.name for path in target.iterdir()} if target.is_dir() else set()
    own = {name for name in names if not is_part(name)}
    offered = {_identity(entry) for entry in accepted.entries.values()}
    if not own or not own <= {path for path, *_ in offered}:
        return not own
    there = {_identity(entry) for entry in scan(str(target), lambda *_: True)[0]}
    return there == offered or (own != names and there <= offered)


def _identity(entry: TreeEntry) -> tuple[object, ...]:
    return (entry.path, FOLDER) if entry.kind == FOLDER else tuple(entry.as_list())


def _accept_folder(offer: Offer, host: Host, entries: list[TreeEntry], target: Path) -> Accepted:
    from tpuctl.remote._ignore import remote_rules

    rules = {path: _cheap_rules(text) for path, text in offer.ignores.items()}
    if sum(text.count("\n") + 1 for text in rules.values()) * len(entries) > _MAX_COMPARISONS:
        raise _invalid(host, "too many rules in its ignore files")
    why_ignored = remote_rules(rules)
    left_out: dict[str, str | None] = {}
    chosen = {}
    for number, entry in enumerate(entries):
        folder, _, name = entry.path.rpartition("/")
        if folder in left_out or why_ignored(entry.path, entry.kind == FOLDER):
            left_out[entry.path] = None
        elif name.casefold() == _GIT:
            left_out[entry.path] = "a repository of git, whose hooks are programs"
        elif entry.kind == LINK and not _is_inside(entry):
            left_out[entry.path] = "a link to a place outside of the folder"
        else:
            chosen[number] = entry
    named = (LeftOut(path, why) for path, why in left_out.items() if why)
    return Accepted(target, chosen, offer.odd, tuple(named))


def _cheap_rules(text: str) -> str:
    """Drop rules that take very long to match: a few stars can mean hours."""
    return "\n".join(line for line in text.splitlines() if line.count("*") <= _MAX_STARS)


def _is_inside(link: TreeEntry) -> bool:
    """Whether a link stays in the folder, whatever the other links are.

    `..` counts only at its beginning: behind the name of a link it could lead anywhere.
    """
    parts = link.link.split("/")
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return bool(parts[0]) and ups <= link.path.count("/") and ".." not in parts[ups:]


def _invalid(host: Host, why: str) -> WorkerError:
    return WorkerError(
        f"{host.label} sent an invalid list of files: {why}.",
        hint="Nothing was copied. Check whether you trust that machine.",
    )
