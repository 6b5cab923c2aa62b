"""Copy a folder or file to workers, or from them; only what differs is sent."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tpuctl.errors import AlreadyExistsError, NotFoundError, TpuctlError, WriteError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.agent import tree as agent_tree
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.tree import FILE, TreeEntry
from tpuctl.remote.agent.unpack import Receiver
from tpuctl.remote.connection import AgentCall, Connection, connection_lost, start_agent
from tpuctl.remote.copy_plan import (
    CopyFile,
    CopyPlan,
    CopyPreview,
    CopyResult,
    CopyResults,
    Direction,
    LeftOut,
)
from tpuctl.remote.fleet import Answers, Fleet, on_every_worker, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.incoming import Accepted, open_offer
from tpuctl.remote.local_tree import LocalTree, read_tree
from tpuctl.remote.payload import payload
from tpuctl.remote.results import summarize, with_failures
from tpuctl.storage.local import ensure_folder, free_bytes, translated_write_errors
from tpuctl.units import format_bytes

# 2 MiB for each worker; the slowest one of a group sets the pace.
_QUEUED_BLOCKS = 16
_LAST_REPLY_S = 5.0


def copy(
    hosts: tuple[Host, ...], access: Access, plan: CopyPlan, *, on_progress: OnProgress = silent
) -> CopyResults:
    """Carry out a copy; raises NotFoundError for a missing source.

    Files on the receiving side change only after everything has arrived, each in one step. Files
    that the source does not have are kept.
    """
    start_s, local = time.monotonic(), plan.local_path
    odd: tuple[str, ...] = ()
    secrets: tuple[LeftOut, ...] = ()
    if plan.direction is Direction.UP:
        # Checked before connecting, which may take a while.
        if not os.path.exists(local):
            raise NotFoundError(f"{local} does not exist.")
        answers, tree = run_async(_upload(hosts, access, plan, on_progress))
        odd, secrets = tree.odd, tuple(one for one in tree.left_out if one.is_secret)
    else:
        if plan.local.endswith("/"):
            ensure_folder(local)
        answers = run_async(_download(hosts, access, plan, on_progress))
    return CopyResults(
        workers=with_failures(CopyResult, hosts, answers),
        direction=plan.direction,
        seconds=time.monotonic() - start_s,
        odd=odd,
        left_out=secrets,
    )


def preview_copy(hosts: tuple[Host, ...], access: Access, plan: CopyPlan) -> CopyPreview:
    """List what a copy would copy and leave out; workers are only asked when it is from them."""
    failures: tuple[TpuctlError, ...] = ()
    if plan.direction is Direction.UP:
        tree = read_tree(plan.local_path, include_secrets=plan.include_secrets)
        files = [(entry.path, entry) for entry in tree.entries]
        left_out, odd = tree.left_out, tree.odd
    else:

        async def preview(connection: Connection) -> Accepted:
            async with open_offer(connection, plan, is_single=len(hosts) == 1) as (_, accepted):
                return accepted

        answers = run_async(on_every_worker(hosts, access, preview))
        seen = [answer for answer in answers if not isinstance(answer, TpuctlError)]
        files = [(str(a.root / e.path), e) for a in seen for e in a.entries.values()]
        left_out = tuple(one for accepted in seen for one in accepted.left_out)
        odd = tuple(name for accepted in seen for name in accepted.odd)
        pairs = zip(hosts, answers, strict=True)
        failures = summarize([(h.index, a) for h, a in pairs if isinstance(a, TpuctlError)])
    found = tuple(CopyFile(path, entry.size) for path, entry in files if entry.kind == FILE)
    return CopyPreview(
        plan.direction,
        len(hosts),
        found,
        (*left_out, *(LeftOut(name, "neither a file, a folder nor a link") for name in odd)),
        sum(file.size_bytes for file in found),
        failures,
    )


async def _upload(
    hosts: tuple[Host, ...], access: Access, plan: CopyPlan, on_progress: OnProgress
) -> tuple[Answers[CopyResult], LocalTree]:
    """Copy to every worker; also returns what there was to copy."""
    # The tree is read while the connections are opened and the agents start.
    read = partial(read_tree, plan.local_path, include_secrets=plan.include_secrets)
    reading = asyncio.create_task(asyncio.to_thread(read))
    try:
        async with open_fleet(hosts, access) as fleet, AsyncExitStack() as stack:
            agent = payload("copy")

            async def start(connection: Connection) -> AgentCall:
                return await stack.enter_async_context(start_agent(connection, agent))

            calls = dict(zip(hosts, await fleet.each(start), strict=True))
            tree = await reading
            request = wire.note(
                do="receive", path=plan.remote, entries=tree.rows, is_file=tree.is_file
            )

            async def compare(connection: Connection) -> _Upload:
                call = calls[connection.host]
                if isinstance(call, TpuctlError):
                    raise call
                call.most_bytes = wire.MAX_FRAME_BYTES
                await call.send(request)
                reply = await call.reply(None)
                return await asyncio.to_thread(_plan_upload, tree, call, reply)

            uploads = await fleet.each(compare)
            return await _Uploader(fleet, tree, uploads, on_progress).to_all(), tree
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@dataclass
class _Upload:
    """The files to send to one worker, by number, and the blocks that wait to be sent."""

    call: AgentCall
    coming: tuple[int, ...]
    touched: tuple[int, ...]
    blocks: asyncio.Queue[bytes | None] = field(
        default_factory=lambda: asyncio.Queue(_QUEUED_BLOCKS)
    )
    is_over: bool = False

    async def put(self, block: bytes | None) -> None:
        """Queue a block, or None as the end; for a worker that has failed this does not wait."""
        if not self.is_over:
            await self.blocks.put(block)

    def abandon(self) -> None:
        """Take no more blocks, and empty the queue so that its producer does not block."""
        self.is_over = True
        while not self.blocks.empty():
            self.blocks.get_nowait()


@dataclass(frozen=True)
class _CompareReply:
    """A worker's reply to the list of files: which it lacks, and which may have changed."""

    missing: tuple[int, ...]
    doubtful: tuple[int, ...]
    digests: tuple[str, ...]


def _plan_upload(tree: LocalTree, call: AgentCall, reply: dict[str, Any]) -> _Upload:
    """Decide which files to send, and which only get a new modification time.

    A file of the same size with another time is sent only if its content differs too.
    """
    answer = call.read(_CompareReply, reply)
    if len(answer.doubtful) != len(answer.digests) or not tree.has_files(
        [*answer.missing, *answer.doubtful]
    ):
        raise call.malformed(ValueError("it asks for files that were not offered"))
    pairs = list(zip(answer.doubtful, answer.digests, strict=True))
    same = {number for number, theirs in pairs if tree.digest(number) == theirs}
    changed = set(answer.doubtful) - same
    return _Upload(call, tuple(sorted({*answer.missing, *changed})), tuple(sorted(same)))


@dataclass(frozen=True)
class _UploadReply:
    """A worker's reply to a finished upload."""

    path: str
    changed: tuple[str, ...]


class _Uploader:
    """Sends each worker the files it lacks; they are read and compressed once for all workers."""

    def __init__(
        self, fleet: Fleet, tree: LocalTree, uploads: Answers[_Upload], on_progress: OnProgress
    ) -> None:
        self._fleet, self._tree, self._on_progress = fleet, tree, on_progress
        self._uploads = dict(zip(fleet.hosts, uploads, strict=True))
        # Workers that lack the same files form a group, which gets the same blocks.
        self._groups: dict[tuple[int, ...], list[_Upload]] = {}
        for one in uploads:
            if isinstance(one, _Upload):
                self._groups.setdefault(one.coming, []).append(one)
        self._files = tree.count_files()
        self._size_bytes = {coming: tree.size_bytes(coming) for coming in self._groups}
        self._total_bytes = sum(
            self._size_bytes[coming] * len(group) for coming, group in self._groups.items()
        )
        self._sent_bytes = 0

    async def to_all(self) -> Answers[CopyResult]:
        packing = [asyncio.create_task(self._pack(*group)) for group in self._groups.items()]
        try:
            answers = await self._fleet.each(self._send)
            await asyncio.gather(*packing)
        finally:
            for task in packing:
                task.cancel()
            await asyncio.gather(*packing, return_exceptions=True)
        return answers

    async def _pack(self, coming: tuple[int, ...], group: list[_Upload]) -> None:
        """Read and compress files, and queue the blocks for each worker of the group."""

        async def put(block: bytes | None) -> None:
            for one in group:
                await one.put(block)

        await put(wire.note(coming=coming))
        packed = agent_tree.pack(self._tree.root, list(self._tree.entries), coming)
        blocks = ((len(data), wire.block(data)) for data in packed)
        while (made := await asyncio.to_thread(next, blocks, None)) is not None:
            size, block = made
            await put(block)
            self._sent_bytes += size * len(group)
            done = min(self._sent_bytes, self._total_bytes)
            self._on_progress(Progress("copy", done, self._total_bytes, "bytes"))
        await put(None)

    async def _send(self, connection: Connection) -> CopyResult:
        """Send one worker its blocks, and listen for an error that ends it early."""
        upload = self._uploads[connection.host]
        if isinstance(upload, TpuctlError):
            raise upload
        sending = asyncio.create_task(self._send_blocks(upload))
        listening = asyncio.create_task(upload.call.reply(None))
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done() and sending.exception():
                # The worker closed the connection: its last reply says why.
                await asyncio.wait({listening}, timeout=_LAST_REPLY_S)
            if not listening.done():
                await sending
            received = upload.call.read(_UploadReply, await listening)
        finally:
            upload.abandon()
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
        return CopyResult(
            index=connection.host.index,
            address=connection.host.address,
            path=received.path,
            changed=received.changed,
            files=self._files,
            sent=len(upload.coming),
            sent_bytes=self._size_bytes[upload.coming],
        )

    async def _send_blocks(self, upload: _Upload) -> None:
        while (block := await upload.blocks.get()) is not None:
            await upload.call.send(block)
        await upload.call.send(wire.note(touch=upload.touched))


async def _download(
    hosts: tuple[Host, ...], access: Access, plan: CopyPlan, on_progress: OnProgress
) -> Answers[CopyResult]:
    """Copy from each worker; with several workers, each into its own folder below the target."""

    async def fetch(connection: Connection) -> CopyResult:
        async with open_offer(connection, plan, is_single=len(hosts) == 1) as (call, accepted):
            return await _Download(call, accepted, on_progress).run()

    return await on_every_worker(hosts, access, fetch)


@dataclass(frozen=True)
class _Digests:
    digests: tuple[str, ...]


class _Download:
    """A copy from one worker."""

    def __init__(self, call: AgentCall, accepted: Accepted, on_progress: OnProgress) -> None:
        self._call, self._host = call, call.host
        self._accepted, self._target = accepted, accepted.root
        self._on_progress = on_progress

    async def run(self) -> CopyResult:
        """Request what is missing here and put it in its place."""
        root, entries = self._accepted.root, self._accepted.entries
        with translated_write_errors(root):
            receiver = await self._in_thread(Receiver, str(root), entries)
            try:
                wanted = await self._receive(receiver, entries)
            finally:
                receiver.close()
        return CopyResult(
            index=self._host.index,
            address=self._host.address,
            path=str(root),
            files=sum(entry.kind == FILE for entry in entries.values()),
            sent=len(wanted),
            sent_bytes=sum(entries[number].size for number in wanted),
            changed=tuple(receiver.changed),
            odd=self._accepted.odd,
            left_out=self._accepted.left_out,
        )

    async def _receive(self, receiver: Receiver, entries: dict[int, TreeEntry]) -> list[int]:
        missing, doubtful = await self._in_thread(receiver.compare)
        same: set[int] = set()
        if doubtful:
            await self._call.send(wire.note(digest=doubtful))
            theirs = self._call.read(_Digests, await self._call.reply(None)).digests
            ours = await self._in_thread(receiver.digests, doubtful)
            # A digest that the worker did not send counts as different.
            pairs = zip(doubtful, ours, theirs, strict=False)
            same = {number for number, mine, other in pairs if mine == other}
        wanted = sorted({*missing, *doubtful} - same)
        total = sum(entries[number].size for number in wanted)
        if total > (free := await asyncio.to_thread(free_bytes, self._target)):
            raise WriteError(
                f"{self._host.label} offers {format_bytes(total)}, and {self._target} has only "
                f"{format_bytes(free)} free.",
                hint="See what it offers: the same command with --dry-run",
            )
        await self._in_thread(receiver.expect, wanted)
        await self._call.send(wire.note(want=wanted))
        await self._receive_blocks(receiver, total)
        await self._in_thread(receiver.commit, sorted(same))
        return wanted

    async def _receive_blocks(self, receiver: Receiver, total_bytes: int) -> None:
        done, task = 0, f"worker {self._host.index}"
        async for kind, data in self._call.frames():
            if kind == wire.NOTE:
                return
            if not data:
                raise self._call.malformed(ValueError("a block without data"))
            await self._in_thread(receiver.feed, data)
            done += len(data)
            self._on_progress(Progress(task, min(done, total_bytes), total_bytes, "bytes"))
        raise connection_lost(self._host)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        """Access the disk in a thread: a slow disk must not keep us from sending keepalives."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except wire.Refusal as refusal:
            raise AlreadyExistsError(
                f"Could not copy from {self._host.label} to {self._target}: {refusal}.",
                hint="Move it away, or copy to another path.",
            ) from refusal
        except wire.WireError as error:
            raise self._call.malformed(error) from error
