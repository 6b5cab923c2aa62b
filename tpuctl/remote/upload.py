"""Copy a folder of this machine to workers: packed once, sent to all that lack the same files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.errors import TpuctlError, WorkerError
from tpuctl.progress import OnProgress, Progress
from tpuctl.remote.access import Access
from tpuctl.remote.agent import tree as agent_tree
from tpuctl.remote.agent import wire
from tpuctl.remote.connection import Connection, Conversation, converse
from tpuctl.remote.copies import CopyEnd, copy_failed
from tpuctl.remote.fleet import Fleet, open_fleet
from tpuctl.remote.hosts import Host
from tpuctl.remote.payload import payload
from tpuctl.remote.tree import LocalTree, read_tree

_QUEUED_BLOCKS = 16
_LAST_WORDS_S = 5.0


@dataclass
class _Upload:
    """What one worker lacks, and the blocks on their way to it."""

    conversation: Conversation
    coming: tuple[int, ...]
    touched: tuple[int, ...]
    blocks: asyncio.Queue[bytes | None] = field(
        default_factory=lambda: asyncio.Queue(_QUEUED_BLOCKS)
    )
    is_over: bool = False

    async def put(self, block: bytes | None) -> None:
        """Queue a block, or None as the end; a worker that has failed holds nobody up."""
        if not self.is_over:
            await self.blocks.put(block)

    def abandon(self) -> None:
        """Take no further block, and free whoever waits to queue one."""
        self.is_over = True
        while not self.blocks.empty():
            self.blocks.get_nowait()


@dataclass(frozen=True)
class _Group:
    """Workers that lack the same files."""

    coming: tuple[int, ...]
    size_bytes: int
    uploads: list[_Upload]


async def upload(
    hosts: tuple[Host, ...], access: Access, source: Path, path: str, on_progress: OnProgress
) -> tuple[list[CopyEnd], tuple[str, ...]]:
    """Bring a path on every worker to the state of one here; how that went.

    Also names what is neither file, folder nor link here.
    """
    # The workers greet us and start their agents meanwhile.
    reading = asyncio.create_task(asyncio.to_thread(read_tree, source))
    try:
        async with open_fleet(hosts, access) as fleet, AsyncExitStack() as stack:
            agent = payload("copy")

            async def greet(connection: Connection) -> Conversation:
                return await stack.enter_async_context(converse(connection, agent))

            greeted = await fleet.each(greet)
            tree = await reading
            begun = await _begin(fleet, greeted, tree, path)
            return await _Sending(fleet, tree, begun, on_progress).to_all(), tree.odd
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _begin(
    fleet: Fleet, greeted: list[Conversation | TpuctlError], tree: LocalTree, path: str
) -> list[_Upload | TpuctlError]:
    """Tell every worker what there is, and hear what it lacks."""
    request = wire.note(do="receive", path=path, entries=tree.rows, is_file=tree.is_file)
    conversations = {host.index: one for host, one in zip(fleet.hosts, greeted, strict=True)}

    async def begin(connection: Connection) -> _Upload:
        conversation = conversations[connection.host.index]
        if isinstance(conversation, TpuctlError):
            raise conversation
        await conversation.send(request)
        answer = await conversation.answer()
        coming, touched = await asyncio.to_thread(_decide, tree, answer)
        return _Upload(conversation, coming, touched)

    return await fleet.each(begin)


def _decide(tree: LocalTree, answer: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which files go, and which only need the new time.

    A file of the same size and another time goes only when its content differs too.
    """
    pairs = list(zip(answer["doubtful"], answer["digests"], strict=True))
    same = {number for number, theirs in pairs if tree.digest(number) == theirs}
    other = {number for number, _ in pairs} - same
    return tuple(sorted({*answer["missing"], *other})), tuple(sorted(same))


class _Sending:
    def __init__(
        self,
        fleet: Fleet,
        tree: LocalTree,
        begun: list[_Upload | TpuctlError],
        on_progress: OnProgress,
    ) -> None:
        self._fleet, self._tree, self._on_progress = fleet, tree, on_progress
        self._begun = begun
        self._files = tree.count_files()
        uploads = [one for one in begun if isinstance(one, _Upload)]
        self._by_worker = {one.conversation.host.index: one for one in uploads}
        self._groups: dict[tuple[int, ...], _Group] = {}
        for one in uploads:
            if one.coming not in self._groups:
                size_bytes = tree.size_bytes(one.coming)
                self._groups[one.coming] = _Group(one.coming, size_bytes, [])
            self._groups[one.coming].uploads.append(one)
        groups = self._groups.values()
        self._total_bytes = sum(group.size_bytes * len(group.uploads) for group in groups)
        self._sent_bytes = 0

    async def to_all(self) -> list[CopyEnd]:
        """Send to every worker what it lacks."""
        packing = [asyncio.create_task(self._pack(group)) for group in self._groups.values()]
        try:
            answers = await self._fleet.each(self._send)
            await asyncio.gather(*packing)
        finally:
            for task in packing:
                task.cancel()
            await asyncio.gather(*packing, return_exceptions=True)
        pairs = zip(self._fleet.hosts, self._begun, answers, strict=True)
        return [self._end(host, begun, answer) for host, begun, answer in pairs]

    async def _pack(self, group: _Group) -> None:
        """Read and compress what some workers lack, once for all of them."""
        await self._put(group, wire.note(coming=group.coming))
        blocks = _blocks(self._tree, group.coming)
        while (made := await asyncio.to_thread(next, blocks, None)) is not None:
            size, block = made
            await self._put(group, block)
            self._sent_bytes += size * len(group.uploads)
            done = min(self._sent_bytes, self._total_bytes)
            self._on_progress(Progress("copy", done, self._total_bytes, "bytes"))
        await self._put(group, None)

    async def _put(self, group: _Group, block: bytes | None) -> None:
        for one in group.uploads:
            await one.put(block)

    async def _send(self, connection: Connection) -> dict[str, Any]:
        """Send one worker its blocks while listening for what stands in the way."""
        one = self._by_worker.get(connection.host.index)
        if one is None:
            raise WorkerError(f"{connection.host.label} never began.")
        sending = asyncio.create_task(self._send_blocks(one))
        listening = asyncio.create_task(one.conversation.answer())
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done() and sending.exception():
                # It hung up because it cannot go on: its last words say why.
                await asyncio.wait({listening}, timeout=_LAST_WORDS_S)
            return await listening if listening.done() else await _both(sending, listening)
        finally:
            one.abandon()
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)

    async def _send_blocks(self, one: _Upload) -> None:
        while (block := await one.blocks.get()) is not None:
            await one.conversation.send(block)
        await one.conversation.send(wire.note(touch=one.touched))

    def _end(
        self, host: Host, begun: _Upload | TpuctlError, answer: dict[str, Any] | TpuctlError
    ) -> CopyEnd:
        if isinstance(begun, TpuctlError):
            return copy_failed(host, begun)
        if isinstance(answer, TpuctlError):
            return copy_failed(host, answer)
        return CopyEnd(
            host.index,
            host.address,
            None,
            None,
            None,
            path=str(answer["path"]),
            changed=tuple(map(str, answer["changed"])),
            files=self._files,
            sent=len(begun.coming),
            sent_bytes=self._groups[begun.coming].size_bytes,
        )


async def _both(
    sending: asyncio.Task[None], listening: asyncio.Task[dict[str, Any]]
) -> dict[str, Any]:
    await sending
    return await listening


def _blocks(tree: LocalTree, coming: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    for data in agent_tree.pack(tree.root, list(tree.entries), coming):
        yield len(data), wire.block(data)
