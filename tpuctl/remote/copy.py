"""Copy a folder of this machine to workers: packed once, sent to all that lack the same files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.errors import AlreadyExistsError, TpuctlError, WorkerError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.agent import tree as agent_tree
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.tree import FILE, TreeEntry, read_entries
from tpuctl.remote.agent.unpack import Receiver
from tpuctl.remote.connection import (
    AgentCall,
    Connection,
    call_agent,
    call_agent_with,
    connection_lost,
)
from tpuctl.remote.copy_plan import (
    CopyPlan,
    CopyResult,
    CopyResults,
    Direction,
    LocalTree,
    check_source_exists,
    copy_failed,
    read_tree,
)
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.payload import payload
from tpuctl.storage.local import ensure_folder, translated_write_errors

_QUEUED_BLOCKS = 16
_LAST_WORDS_S = 5.0


@dataclass
class _Upload:
    """What one worker lacks, and the blocks on their way to it."""

    conversation: AgentCall
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
) -> tuple[list[CopyResult], tuple[str, ...]]:
    """Bring a path on every worker to the state of one here; how that went.

    Also names what is neither file, folder nor link here.
    """
    # The workers greet us and start their agents meanwhile.
    reading = asyncio.create_task(asyncio.to_thread(read_tree, source))
    try:
        async with open_fleet(hosts, access) as fleet, AsyncExitStack() as stack:
            agent = payload("copy")

            async def greet(connection: Connection) -> AgentCall:
                return await stack.enter_async_context(call_agent_with(connection, agent))

            greeted = await fleet.each(greet)
            tree = await reading
            begun = await _begin(fleet, greeted, tree, path)
            return await _Sending(fleet, tree, begun, on_progress).to_all(), tree.odd
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _begin(
    fleet: Fleet, greeted: list[AgentCall | TpuctlError], tree: LocalTree, path: str
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

    async def to_all(self) -> list[CopyResult]:
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
    ) -> CopyResult:
        if isinstance(begun, TpuctlError):
            return copy_failed(host, begun)
        if isinstance(answer, TpuctlError):
            return copy_failed(host, answer)
        return CopyResult(
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


async def download(
    hosts: tuple[Host, ...], access: Access, path: str, target: Path, on_progress: OnProgress
) -> list[CopyResult]:
    """Bring a folder of this machine to the state of a path on each worker; how that went.

    Several workers each get a folder of their own below the target.
    """

    async def fetch(connection: Connection) -> CopyResult:
        index = connection.host.index
        mine = target / f"worker-{index}" if len(hosts) > 1 else target
        async with call_agent(connection, "copy.deliver", path=path) as conversation:
            return await _Fetching(conversation, mine, on_progress).run(alone=len(hosts) == 1)

    async with open_fleet(hosts, access) as fleet:
        answers = await fleet.each(fetch)
    return [
        copy_failed(host, answer) if isinstance(answer, TpuctlError) else answer
        for host, answer in zip(hosts, answers, strict=True)
    ]


class _Fetching:
    def __init__(self, conversation: AgentCall, target: Path, on_progress: OnProgress) -> None:
        self._conversation, self._host = conversation, conversation.host
        self._target, self._on_progress = target, on_progress

    async def run(self, *, alone: bool) -> CopyResult:
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
        return CopyResult(
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

    def _choose(self, listing: dict[str, Any], *, alone: bool) -> tuple[Path, dict[int, TreeEntry]]:
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
        from tpuctl.remote._ignore import remote_rules

        keep, left_out, chosen = remote_rules(listing["ignores"]), set(), {}
        for number, entry in enumerate(everything):
            parent = entry.path.rpartition("/")[0]
            is_folder = entry.kind == "d"
            if parent in left_out or not keep(entry.path, is_folder):
                left_out.add(entry.path)
            else:
                chosen[number] = entry
        return self._target, chosen

    def _place_of_file(self, entry: TreeEntry, *, alone: bool) -> tuple[Path, dict[int, TreeEntry]]:
        if alone and not self._target.is_dir():
            entry.path = self._target.name
            return self._target.parent, {0: entry}
        return self._target, {0: entry}

    async def _receive(self, receiver: Receiver, entries: dict[int, TreeEntry]) -> list[int]:
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
        async for kind, data in self._conversation.frames():
            if kind == wire.NOTE:
                return
            data = wire.read_block(kind, data)
            await self._doing(receiver.feed, data)
            done += len(data)
            self._on_progress(Progress(task, min(done, total_bytes), total_bytes, "bytes"))
        raise connection_lost(self._host)

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


def copy(
    hosts: tuple[Host, ...], access: Access, plan: CopyPlan, *, on_progress: OnProgress = silent
) -> CopyResults:
    """Carry out a copy.

    On the other side nothing changes before everything has arrived; then each file takes its place
    in one step. What is not in the source stays. Raises NotFoundError for a source that is missing.
    """
    start_s, local = time.monotonic(), Path(plan.local or ".").expanduser()
    odd: tuple[str, ...] = ()
    if plan.direction is Direction.UP:
        check_source_exists(local)
        ends, odd = run_async(upload(hosts, access, local, plan.remote, on_progress))
    else:
        if plan.local.endswith("/"):
            ensure_folder(local)
        ends = run_async(download(hosts, access, plan.remote, local, on_progress))
    return CopyResults(
        workers=tuple(ends), direction=plan.direction, seconds=time.monotonic() - start_s, odd=odd
    )
