"""Copy a folder of workers to this machine: one folder for each of several workers."""

import asyncio
from pathlib import Path
from typing import Any

from tpuctl.errors import AlreadyExistsError, TpuctlError, WorkerError
from tpuctl.progress import OnProgress, Progress
from tpuctl.remote.access import Access
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.tree import FILE, Entry, read_entries
from tpuctl.remote.agent.unpack import Receiver
from tpuctl.remote.connection import Connection, Conversation, ask, lost
from tpuctl.remote.copies import CopyEnd, copy_failed
from tpuctl.remote.fleet import open_fleet
from tpuctl.remote.hosts import Host
from tpuctl.storage.local import translated_write_errors


async def download(
    hosts: tuple[Host, ...], access: Access, path: str, target: Path, on_progress: OnProgress
) -> list[CopyEnd]:
    """Bring a folder of this machine to the state of a path on each worker; how that went.

    Several workers each get a folder of their own below the target.
    """

    async def fetch(connection: Connection) -> CopyEnd:
        index = connection.host.index
        mine = target / f"worker-{index}" if len(hosts) > 1 else target
        async with ask(connection, "copy.deliver", path=path) as conversation:
            return await _Fetching(conversation, mine, on_progress).run(alone=len(hosts) == 1)

    async with open_fleet(hosts, access) as fleet:
        answers = await fleet.each(fetch)
    return [
        copy_failed(host, answer) if isinstance(answer, TpuctlError) else answer
        for host, answer in zip(hosts, answers, strict=True)
    ]


class _Fetching:
    def __init__(self, conversation: Conversation, target: Path, on_progress: OnProgress) -> None:
        self._conversation, self._host = conversation, conversation.host
        self._target, self._on_progress = target, on_progress

    async def run(self, *, alone: bool) -> CopyEnd:
        """Ask for what is missing here and put it in its place."""
        listing = await self._conversation.answer()
        root, entries = self._choose(listing, alone=alone)
        with translated_write_errors(root):
            receiver = await self._doing(Receiver, str(root), entries)
            try:
                wanted = await self._receive(receiver, entries)
            finally:
                receiver.close()
        host, files = self._host, [one for one in entries.values() if one.kind == FILE]
        return CopyEnd(
            host.index,
            host.address,
            None,
            None,
            None,
            path=str(root),
            files=len(files),
            sent=len(wanted),
            sent_bytes=sum(entries[number].size for number in wanted),
            changed=tuple(receiver.changed),
            odd=tuple(map(str, listing["odd"])),
        )

    def _choose(self, listing: dict[str, Any], *, alone: bool) -> tuple[Path, dict[int, Entry]]:
        """Where it goes, and which of the worker's files, by their numbers over there."""
        try:
            everything = read_entries(listing["entries"])
        except wire.Refusal as refusal:
            raise WorkerError(
                f"{self._host.label} sent a list of files that leads out of its folder: {refusal}.",
                hint="Nothing was copied. Do you trust that machine?",
            ) from refusal
        if listing["is_file"]:
            return self._place_of_file(everything[0], alone=alone)
        from tpuctl.remote._ignore import keep_there

        keep, left_out, chosen = keep_there(listing["ignores"]), set(), {}
        for number, entry in enumerate(everything):
            parent = entry.path.rpartition("/")[0]
            is_folder = entry.kind == "d"
            if parent in left_out or not keep(entry.path, is_folder):
                left_out.add(entry.path)
            else:
                chosen[number] = entry
        return self._target, chosen

    def _place_of_file(self, entry: Entry, *, alone: bool) -> tuple[Path, dict[int, Entry]]:
        if alone and not self._target.is_dir():
            entry.path = self._target.name
            return self._target.parent, {0: entry}
        return self._target, {0: entry}

    async def _receive(self, receiver: Receiver, entries: dict[int, Entry]) -> list[int]:
        missing, doubtful = await self._doing(receiver.compare)
        same: list[int] = []
        if doubtful:
            await self._conversation.send(wire.note(digest=doubtful))
            theirs = (await self._conversation.answer())["digests"]
            ours = await self._doing(receiver.digests, doubtful)
            pairs = zip(doubtful, ours, theirs, strict=True)
            same = [number for number, mine, other in pairs if mine == other]
        wanted = sorted({*missing, *doubtful} - set(same))
        await self._doing(receiver.expect, wanted)
        await self._conversation.send(wire.note(want=wanted))
        await self._take(receiver, sum(entries[number].size for number in wanted))
        await self._doing(receiver.commit, same)
        return wanted

    async def _take(self, receiver: Receiver, total_bytes: int) -> None:
        done, task = 0, f"worker {self._host.index}"
        async for kind, payload in self._conversation.frames():
            if kind == wire.NOTE:
                return
            data = wire.read_block(kind, payload)
            await self._doing(receiver.feed, data)
            done += len(data)
            self._on_progress(Progress(task, min(done, total_bytes), total_bytes, "bytes"))
        raise lost(self._host)

    async def _doing(self, function: Any, *arguments: Any) -> Any:
        """Touch the disk in a thread, so that no slow disk makes us look dead."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except wire.Refusal as refusal:
            raise AlreadyExistsError(
                f"Could not copy from {self._host.label} to {self._target}: {refusal}.",
                hint="Move it away, or copy to another place.",
            ) from refusal
        except wire.WireError as error:
            raise WorkerError(f"{self._host.label} does not make sense: {error}.") from error
