"""Kaggle's HTTP API, as its official command-line tool calls it."""

import io
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import formatdate
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tpuctl.emulator.errors import load_data
from tpuctl.emulator.faults import FaultCounts, StorageFault
from tpuctl.emulator.http import Content, HttpApi, Reply, Request, Route, Stream
from tpuctl.emulator.kaggle.sessions import Session, Sessions, kaggle_error
from tpuctl.emulator.methods import Document
from tpuctl.emulator.resources import timestamp
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.storage.reading import read_range

_LARGEST_BODY = 64 << 20
_DATA_SET_S = 3.0
_WEEK = timedelta(days=7)
_BYTES = ("kaggle_logs", "kaggle_download", "kaggle_upload")
_CALLS = {
    "kaggle_push": "SaveKernel", "kaggle_status": "GetKernelSessionStatus",
    "kaggle_output": "ListKernelSessionOutput", "kaggle_quota": "GetAcceleratorQuotaStatistics",
    "kaggle_list": "ListKernels", "kaggle_get": "GetKernel",
    "kaggle_delete": "DeleteKernel", "kaggle_token": "IntrospectToken",
    "kaggle_start_upload": "StartBlobUpload", "kaggle_create_data": "CreateDataset",
    "kaggle_version_data": "CreateDatasetVersion", "kaggle_data_status": "GetDatasetStatus",
    "kaggle_delete_data": "DeleteDataset",
}  # fmt: skip


class KaggleApi:
    """The Kaggle API of one emulator, with one account."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self._emulator, self._folder = emulator, folder
        self._plan = plan = emulator.scenario.kaggle
        self.sessions = Sessions(
            folder / "kernels",
            emulator.now,
            queue_s=plan.queue_s,
            scale=emulator.scenario.time_scale,
        )
        self._faults = FaultCounts(emulator.scenario.storage_faults)
        self._lock = threading.Lock()
        self._data = folder / "data"
        self._began = emulator.now()

    def http_api(self) -> HttpApi:
        """Return the routes."""
        calls = [
            Route(f"POST /api/v1/{{service}}/{name}", partial(self._call, on, name))
            for on, name in _CALLS.items()
        ]
        answer = self._answer
        stream = "/api/v1/kernels/logs/stream/{owner}/{slug}"
        return HttpApi(
            ("/api/v1/", "/kaggle/"),
            [
                *calls,
                Route(f"GET {stream}", partial(answer, "kaggle_logs", self._stream)),
                Route("PUT /kaggle/upload/{token}", partial(answer, "kaggle_upload", self._upload)),
                Route(
                    "GET /kaggle/output/{slug}/{version}/{path=**}",
                    partial(answer, "kaggle_download", self._download),
                ),
            ],
            kaggle_error,
        )

    def _call(self, on: str, name: str, request: Request) -> Reply:
        try:
            body = json.loads(request.body.read(_LARGEST_BODY) or b"{}")
        except (ValueError, RecursionError):
            raise kaggle_error("body") from None
        if not isinstance(body, dict):
            raise kaggle_error("body")
        action: Callable[[Document], Document] = getattr(self, f"_{on.removeprefix('kaggle_')}")
        # The two services differ: `slug` is OWNER/SLUG in one of them.
        about = str(body.get("kernelSlug") or body.get("datasetSlug") or body.get("slug") or "")
        request = replace(request, names={"about": about.rpartition("/")[2]})
        return self._answer(on, lambda _: Reply(document=action(body)), request)

    def _answer(self, on: str, action: Callable[[Request], Reply], request: Request) -> Reply:
        time.sleep(self._emulator.scenario.latency_ms / 1000)
        about = request.names.get("about") or request.names.get("slug", "")
        self._emulator.requests.append((on, "", about))
        fault = self._due(on, about)
        if fault and not fault.after_accept and not (fault.byte_fault and on in _BYTES):
            fault.apply(kaggle_error)
        if fault and on == "kaggle_upload":
            request.body.fault = fault.byte_fault
        reply = action(request)
        if fault and fault.after_accept:
            if reply.content:
                reply.content.close()
            fault.apply(kaggle_error)
        return replace(reply, fault=fault.byte_fault) if fault and reply.content else reply

    def _due(self, on: str, about: str) -> StorageFault | None:
        with self._lock:
            due = self._faults.due(lambda plan: plan.on == on and fnmatchcase(about, plan.name))
        return due[0] if due else None

    def _token(self, body: Document) -> Document:
        known = self._emulator.secret is None or self._emulator.is_secret(str(body.get("token")))
        return {"active": known, **({"username": self._plan.username} if known else {})}

    def _push(self, body: Document) -> Document:
        """Store a version and start its session; a refusal is an `error` in a successful reply."""
        facts, plan = load_data("kaggle"), self._plan
        owner, _, slug = str(body.get("slug") or "").partition("/")
        text = body.get("text")
        if len(slug) < 5 or not isinstance(text, str):
            raise kaggle_error("bad_request", why="A kernel needs a slug of 5 characters and text.")
        shape = str(body.get("machineShape") or ("TpuV5E8" if body.get("enableTpu") else ""))
        shape = facts["shapes"].get(shape, shape)
        with self.sessions.changed:
            runs = body.get("kernelExecutionType") != "QUICK_SAVE"
            refused = self._refusal(shape, runs, bool(body.get("enableInternet")))
            if owner != plan.username or refused:
                return {"error": refused or "Notebook not found"}
            mounts, invalid = self._mounts(body)
            versions = self.sessions.kernels.get(slug, [])
            # A pinned image is one without a TPU, and takes precedence (kaggle-cli issue 1197).
            fault = "no_tpu" if body.get("dockerImage") else ""
            if runs and (due := self._due("kaggle_session", slug)):
                fault = due.error
            session = Session(
                slug=slug,
                version=max((each.version for each in versions), default=0) + 1,
                title=str(body.get("newTitle") or slug),
                shape=shape,
                internet=bool(body.get("enableInternet")) and fault != "no_internet",
                private=bool(body.get("isPrivate")),
                timeout_s=min(
                    float(body.get("sessionTimeoutSeconds") or facts["session_limit_s"]),
                    facts["session_limit_s"],
                    max(0.0, plan.tpu_hours * 3600 - self._used_s()) if shape else 1e9,
                ),
                pushed=self._emulator.now(),
                runs=runs,
                fault=fault,
                status="QUEUED" if runs else "COMPLETE",
            )
            self.sessions.start(session, text, mounts)
        about = {**_place(f"/code/{owner}/{slug}"), "kernelId": 1}
        return {**about, "versionNumber": session.version, **invalid}

    def _refusal(self, shape: str, runs: bool, internet: bool) -> str | None:
        refusals, plan = load_data("kaggle")["refusals"], self._plan
        if not plan.phone_verified and (shape or internet):
            return str(refusals["phone"])
        if not (shape and runs):
            return None
        if len(self.sessions.running()) >= load_data("kaggle")["sessions_at_once"]:
            return str(refusals["busy"])
        if self._used_s() >= plan.tpu_hours * 3600:
            return str(refusals["quota"]).format(hours=plan.tpu_hours)
        return None

    def _mounts(self, body: Document) -> tuple[dict[str, Path], Document]:
        mounts: dict[str, Path] = {}
        invalid: Document = {}
        for key, find, answer in (
            ("datasetDataSources", self._ready_data, "invalidDatasetSources"),
            ("kernelDataSources", self._finished_output, "invalidKernelSources"),
        ):
            for source in body.get(key) or ():
                if found := find(str(source)):
                    place = f"datasets/{source}" if find == self._ready_data else found.parts[-3]
                    mounts[place] = found
                else:
                    invalid.setdefault(answer, []).append(source)
        return mounts, invalid

    def _status(self, body: Document) -> Document:
        session = self._session(body)
        return {"status": session.status, "failureMessage": session.failure or ""}

    def _output(self, body: Document) -> Document:
        session, sizes = self._session(body), load_data("kaggle")["page_sizes"]
        if not session.is_over:
            return {"files": []}
        root = self.sessions.place(session) / "working"
        files_ = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        names = sorted(str(path.relative_to(root)) for path in files_)
        size = min(int(body.get("pageSize") or sizes["default"]), sizes["most"])
        first = int(body.get("pageToken") or 0)
        base = f"{self._emulator.http}/kaggle/output/{session.slug}/{session.version}"
        files = [{"url": f"{base}/{quote(n)}", "fileName": n} for n in names[first : first + size]]
        more = {"nextPageToken": str(first + size)} if first + size < len(names) else {}
        return {"files": files, "log": json.dumps(session.log), **more}

    def _quota(self, body: Document) -> Document:
        running = self.sessions.running()
        now = self._emulator.now()
        reserved = sum(each.timeout_s - each.used_s(now) for each in running)
        quota = {
            "timeUsed": f"{self._used_s():.3f}s",
            "timeReserved": f"{reserved:.3f}s",
            "totalTimeAllowed": f"{self._plan.tpu_hours * 3600:.3f}s",
            "hasEverRun": True,
        }
        none = dict.fromkeys(("timeUsed", "timeReserved", "totalTimeAllowed"), "0s")
        refresh = f"{self._week() + _WEEK:%FT%T}.000Z"
        return {"quotaRefreshTime": refresh, "gpuQuota": none, "tpuQuota": quota}

    def _used_s(self) -> float:
        week = self._week()
        before = self._plan.used_hours * 3600 * (week == self._began)
        return before + self.sessions.used_s(since=week)

    def _week(self) -> datetime:
        """Return the start of the account's current week."""
        return self._began + int((self._emulator.now() - self._began) / _WEEK) * _WEEK

    def _list(self, body: Document) -> Document:
        wanted = str(body.get("search") or "")
        with self.sessions.changed:
            kernels = self.sessions.kernels
            return {"kernels": [self._metadata(v[-1]) for s, v in kernels.items() if wanted in s]}

    def _metadata(self, session: Session) -> Document:
        owner = self._plan.username
        return {
            "ref": f"{owner}/{session.slug}",
            "slug": session.slug,
            "title": session.title,
            "author": owner,
            "lastRunTime": timestamp(session.pushed),
            "isPrivate": session.private,
            "machineShape": session.shape,
            "currentVersionNumber": session.version,
        }

    def _get(self, body: Document) -> Document:
        session = self._session(body)
        text = (self.sessions.place(session) / "source.py").read_text(encoding="utf-8")
        return {"metadata": self._metadata(session), "blob": {"source": text}}

    def _delete(self, body: Document) -> Document:
        self.sessions.remove(self._session(body).slug)
        return {}

    def _session(self, body: Document) -> Session:
        return self._find(body.get("userName"), body.get("kernelSlug"), body.get("versionLabel"))

    def _find(self, owner: object, slug: object, label: object) -> Session:
        """Return a version, by default the newest; an unknown one is forbidden, as on Kaggle."""
        versions = self.sessions.kernels.get(str(slug), [])
        chosen = [each for each in versions if label in ("", None, f"v{each.version}")]
        if not chosen or owner != self._plan.username:
            raise kaggle_error("not_found" if versions else "permission")
        return chosen[-1]

    def _stream(self, request: Request) -> Reply:
        owner, slug = request.names.values()
        session = self._find(owner, slug, request.query.get("versionLabel"))
        if session.is_over:
            return Reply(document=session.log)
        headers = {"Content-Type": "text/event-stream"}
        return Reply(content=Stream(self._events(session)), headers=headers)

    def _events(self, session: Session) -> Iterator[bytes]:
        for event in self.sessions.follow(session):
            yield b"data: " + json.dumps(event).encode() + b"\n\n" if event else b": \n\n"
        yield b"data: END_OF_LOG\n\n"

    def _download(self, request: Request) -> Reply:
        slug, version, name = request.names.values()
        session = self._find(self._plan.username, slug, f"v{version}")
        root = (self.sessions.place(session) / "working").resolve()
        path = (root / name.lstrip("/")).resolve()
        if not path.is_file() or root not in path.parents:
            raise kaggle_error("not_found")
        state = path.stat()
        headers = {
            "Content-Type": "application/octet-stream",
            "Last-Modified": formatdate(state.st_mtime, usegmt=True),
            "ETag": f'"{state.st_mtime_ns:x}"',
            "Accept-Ranges": "bytes",
        }
        first, count = read_range(request.headers.get("Range", ""), state.st_size) or (0, -1)
        file = path.open("rb")
        if count < 0:
            return Reply(content=Content(file, state.st_size), headers=headers)
        file.seek(first)
        headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{state.st_size}"
        return Reply(206, content=Content(file, count), headers=headers)

    def _start_upload(self, body: Document) -> Document:
        token = secrets.token_hex(16)
        folder = self._data / "uploads" / token
        folder.mkdir(parents=True)
        about = {"name": Path(str(body["name"])).name, "size": int(body.get("contentLength") or 0)}
        (folder / "about.json").write_text(json.dumps(about))
        (folder / "bytes").touch()
        return {"token": token, "createUrl": f"{self._emulator.http}/kaggle/upload/{token}"}

    def _upload(self, request: Request) -> Reply:
        """Receive the bytes of a file, or report how many have arrived."""
        folder = self._data / "uploads" / Path(request.names["token"]).name
        if not folder.is_dir():
            raise kaggle_error("not_found")
        size = json.loads((folder / "about.json").read_bytes())["size"]
        place = request.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")[0]
        with (folder / "bytes").open("r+b") as file:
            file.seek(0, io.SEEK_END) if place == "*" else file.seek(int(place.split("-")[0] or 0))
            file.truncate()
            for piece in request.body.pieces():
                file.write(piece)
                file.flush()
            come = file.tell()
        if come == size:
            return Reply(document={})
        headers = {"Range": f"bytes=0-{come - 1}"} if come else {}
        return Reply(308, document={}, headers=headers)

    def _create_data(self, body: Document) -> Document:
        slug, title = str(body.get("slug")), str(body.get("title"))
        if not (6 <= len(slug) <= 50 and 6 <= len(title) <= 50):
            return {"status": "error", "error": "The slug and the title have 6 to 50 characters."}
        if (self._data / slug).is_dir():
            return {"status": "error", "error": f"The requested slug {slug} is already in use."}
        return self._store_data(slug, body)

    def _version_data(self, body: Document) -> Document:
        slug = str(body.get("datasetSlug"))
        self._data_status({"datasetSlug": slug})
        return self._store_data(slug, body.get("body") or {})

    def _store_data(self, slug: str, body: Document) -> Document:
        folder = self._data / slug
        version = len(list(folder.glob("[0-9]*"))) + 1
        place = folder / str(version)
        place.mkdir(parents=True)
        for each in body.get("files") or ():
            upload = self._data / "uploads" / Path(str(each["token"])).name
            name = json.loads((upload / "about.json").read_bytes())["name"]
            (upload / "bytes").rename(place / name)
        (folder / "made").write_text(self._emulator.now().isoformat())
        return {**_place(f"/datasets/{self._plan.username}/{slug}"), "status": "ok"}

    def _data_status(self, body: Document) -> Document:
        made = self._data / Path(str(body.get("datasetSlug"))).name / "made"
        if not made.is_file():
            raise kaggle_error("permission")
        age_s = (self._emulator.now() - datetime.fromisoformat(made.read_text())).total_seconds()
        return {"status": "READY" if age_s >= _DATA_SET_S else "BLOBS_RECEIVED"}

    def _delete_data(self, body: Document) -> Document:
        self._data_status(body)
        shutil.rmtree(self._data / Path(str(body["datasetSlug"])).name)
        return {}

    def _ready_data(self, source: str) -> Path | None:
        owner, _, slug = source.partition("/")
        folder = self._data / Path(slug).name
        if owner != self._plan.username or not (folder / "made").is_file():
            return None
        if self._data_status({"datasetSlug": slug})["status"] != "READY":
            return None
        return max(folder.glob("[0-9]*"), key=lambda path: int(path.name))

    def _finished_output(self, source: str) -> Path | None:
        owner, _, slug = source.partition("/")
        done = [each for each in self.sessions.kernels.get(slug, []) if each.is_over]
        if owner != self._plan.username or not done:
            return None
        return self.sessions.place(done[-1]) / "working"


def _place(ref: str) -> Document:
    return {"ref": ref, "url": f"https://www.kaggle.com{ref}"}
