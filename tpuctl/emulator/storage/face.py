"""Which method a request is, what a scenario lets go wrong with it, and its answer."""

import io
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from tpuctl.emulator.service import Emulator
from tpuctl.emulator.storage.faults import STORAGE_METHODS, StorageFault, StorageFaults
from tpuctl.emulator.storage.objects import Shelf
from tpuctl.emulator.storage.operations import MEDIA, Route, find_route
from tpuctl.emulator.storage.requests import (
    Body,
    Content,
    Cut,
    Disturbance,
    Headers,
    Reply,
    Request,
    StorageRefusal,
    refuse,
)
from tpuctl.emulator.storage.uploads import name_of
from tpuctl.errors import WriteError

_BRING_BYTES = ("storage_insert", "storage_upload_chunk")


@dataclass(frozen=True)
class Prepared:
    """A reply, and what happens to it on its way; no reply at all is a connection that is cut."""

    reply: Reply | None
    disturbance: Disturbance | None = None


class StorageFace:
    """Cloud Storage of one emulator."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self._emulator = emulator
        plans = emulator.scenario.storage_faults
        self.shelf = Shelf(folder, emulator.scenario.buckets, self._now_us)
        self._faults = StorageFaults(plans, self.shelf.fault_counts)
        self._notes = threading.Lock()

    @staticmethod
    def serves(path: str) -> bool:
        """Whether a path is one of Cloud Storage."""
        return path.startswith(("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/"))

    def answer(self, verb: str, path: str, query: str, headers: Headers, body: Body) -> Prepared:
        """Answer one request; what it leaves of the body has to be read by the caller."""
        path = path.removeprefix("/download")
        asked = dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
        found = find_route(verb, path, media=asked.get("alt") == "media")
        if found is None:
            return Prepared(_refused(refuse("unimplemented", what=f"{verb} {path}")))
        route, names = found
        return self._answer(route, Request(names, asked, headers, body))

    def _answer(self, route: Route, request: Request) -> Prepared:
        time.sleep(self._emulator.scenario.latency_ms / 1000)
        method = route.method
        about = self._about(method, request)
        self._emulator.requests.append((method, "", about))
        fault = self._due(method, about)
        disturbance = fault.disturbance if fault else None
        try:
            if fault and not fault.after_accept:
                self._strike_first(fault, request, about)
            reply = route.act(self.shelf, request)
        except Cut:
            return Prepared(None)
        except StorageRefusal as error:
            return Prepared(_refused(error, plain=route is MEDIA))
        except (OSError, WriteError):
            return Prepared(_refused(refuse("internal")))
        if fault and fault.after_accept:
            reply.forget()
            return self._strike_last(fault, about)
        return Prepared(reply, disturbance if route is MEDIA else None)

    def _about(self, method: str, request: Request) -> str:
        """What a request is about, BUCKET/OBJECT, as the faults of a scenario match it."""
        bucket, *name = request.names or ("",)
        if method in _BRING_BYTES:
            name = [name_of(self.shelf, request)]
        elif method == "storage_list":
            name = [request.query.get("prefix", "")]
        return "/".join([bucket, *name])

    def _due(self, method: str, about: str) -> StorageFault | None:
        with self._notes:
            fault, is_counted = self._faults.due(method, about)
            if is_counted:
                self.shelf.note_faults(self._faults.counts)
        return fault

    def _strike_first(self, fault: StorageFault, request: Request, about: str) -> None:
        """Let a fault happen before the work; on bytes that carry an object, while they arrive."""
        disturbance = fault.disturbance
        if disturbance is None:
            raise _planned(fault, about)
        if fault.on in _BRING_BYTES and not request.body.is_empty:
            request.body.disturbance = disturbance
        elif fault.on != MEDIA.method:
            for _ in disturbance.strike(b"?", disturbance.after_bytes):
                pass

    def _strike_last(self, fault: StorageFault, about: str) -> Prepared:
        """Lose a reply: the work is done."""
        if fault.error == "stall":
            time.sleep(fault.for_s)
        if fault.disturbance:
            return Prepared(None)
        return Prepared(_refused(_planned(fault, about)))

    def _now_us(self) -> int:
        return int(self._emulator.now().timestamp() * 1_000_000)


def _planned(fault: StorageFault, about: str) -> StorageRefusal:
    return refuse(fault.error, permission=STORAGE_METHODS[fault.on], path=about)


def _refused(error: StorageRefusal, *, plain: bool = False) -> Reply:
    """A refusal as a reply; where bytes were asked for, the service answers in plain text."""
    if error.status == 304:
        return Reply(304)
    if plain:
        data = error.message.encode()
        headers = {"Content-Type": "text/html; charset=UTF-8", **error.headers}
        return Reply(error.status, content=Content(io.BytesIO(data), len(data)), headers=headers)
    return Reply(error.status, error.document, headers=error.headers)
