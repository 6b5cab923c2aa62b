"""Keep the servers of a tf.data service alive on one machine: this process watches, others serve.

It runs wherever Python 3.8 and TensorFlow are; tpuctl does not have to be there. Its only argument
is JSON: `{"servers": [...], "stdin": true, "folder": ..., "machine": ...}`, each server with a
`name`, a `role` and what that needs. What happens goes to stdout, a JSON object per line. With
`stdin`, it ends when stdin does.

TensorFlow's servers listen on all interfaces and let everybody in who reaches them. With `folder`,
they run in a network namespace that has no interface but its own loopback, and each is reached by
a socket file of its name in that folder, which only its owner can open. Their HTTP requests, such
as those to Cloud Storage, leave the namespace through a proxy.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import queue
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A server that dies within 20 seconds, five times in a row, is not restarted again. The waits
# between the attempts double from half a second on.
QUICK_S = 20.0
MOST_QUICK_DEATHS = 5
FIRST_WAIT_S = 0.5

# From Linux's sched.h, sockios.h and if.h.
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
SET_INTERFACE_FLAGS, UP_AND_RUNNING = 0x8914, 0x41
PIECE_BYTES, LONGEST_HEAD = 1 << 18, 1 << 16

CHILD = """
import json, os, sys, threading
sys.path[:] = filter(None, sys.path)
os.chdir(sys.argv[1])
def end_with_parent():
    while os.read(0, 4096):
        pass
    os._exit(0)
threading.Thread(target=end_with_parent, daemon=True).start()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
server = json.loads(sys.argv[2])
# TensorFlow imports them where they are, which takes almost half of its start.
sys.modules.update(keras=None, jax=None)
import tensorflow as tf
service = tf.data.experimental.service
if server["role"] == "dispatcher":
    os.makedirs(server["work_dir"], 0o700, exist_ok=True)
    config = service.DispatcherConfig(
        port=server["port"], work_dir=server["work_dir"], fault_tolerant_mode=True
    )
    made = service.DispatchServer(config)
else:
    made = service.WorkerServer(service.WorkerConfig(
        dispatcher_address=server["dispatcher"],
        worker_address=server["address"],
        port=server["port"],
        heartbeat_interval_ms=1000,
    ))
said.write("ready\\n")
said.flush()
made.join()
"""


class Server:
    """One server: a process, another one when it dies, until it dies too fast too often."""

    def __init__(
        self,
        spec: dict[str, Any],
        events: queue.SimpleQueue[dict[str, Any] | None],
        closing: threading.Event,
    ) -> None:
        self.spec, self.events, self.closing = spec, events, closing
        self.process: subprocess.Popen[bytes] | None = None
        self.was_ever_ready = False
        self.env = dict(os.environ)
        self.lock = threading.Lock()

    def keep(self) -> None:
        """Serve until the end."""
        deaths, wait_s = 0, FIRST_WAIT_S
        while not self.closing.is_set():
            began = time.monotonic()
            how, last_words = self.serve_once()
            if self.closing.is_set():
                return
            is_quick = time.monotonic() - began < QUICK_S
            deaths, wait_s = (deaths + 1, 2 * wait_s) if is_quick else (0, FIRST_WAIT_S)
            if deaths >= MOST_QUICK_DEATHS or not self.was_ever_ready:
                self.report("failed", how=how, said=last_words)
                return
            self.report("died", how=how, said=last_words)
            self.closing.wait(wait_s)

    def serve_once(self) -> tuple[str, str]:
        """Run the process to its end; how it ended, and the last it said."""
        with self.lock:
            if self.closing.is_set():
                return "ended", ""
            process = self.process = subprocess.Popen(  # noqa: S603 (our own code)
                [sys.executable, "-c", CHILD, os.getcwd(), json.dumps(self.spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                # With -c, Python looks for modules in the current folder first.
                cwd="/",
                start_new_session=True,
            )
        words: list[str] = []
        listening = threading.Thread(target=self.listen, args=(process, words), daemon=True)
        listening.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == b"ready":
                self.was_ever_ready = True
                self.report("ready", pid=process.pid)
        code = process.wait()
        listening.join(1.0)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return how, words[-1] if words else ""

    def listen(self, process: subprocess.Popen[bytes], words: list[str]) -> None:
        """Keep the last line of what the process complains about."""
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                words[:] = [text]

    def report(self, event: str, **more: object) -> None:
        """Report an event."""
        self.events.put(dict(more, event=event, name=self.spec["name"]))

    def end(self) -> None:
        """End the process."""
        with self.lock:
            if self.process is not None:
                self.process.kill()


def main() -> None:
    """Keep all servers until one gives up, a signal comes, or stdin ends."""
    request = json.loads(sys.argv[1])
    folder = request.get("folder")
    # Unlike a Queue, it may be filled by a signal that comes while it is being read.
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    closing = threading.Event()
    servers = [Server(spec, events, closing) for spec in request["servers"]]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: events.put(None))
    threads: list[threading.Thread] = []
    try:
        threads += isolated(request, servers) if folder else start(servers)
    except OSError as error:
        servers[0].report("failed", how="no private network", said=error.strerror or str(error))
    if request.get("stdin"):
        threading.Thread(target=wait_for_end, args=(events,), daemon=True).start()
    failed = False
    while not failed:
        event = events.get()
        if event is None:
            break
        failed = event["event"] == "failed"
        try:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
        except OSError:
            break
    closing.set()
    for server in servers:
        server.end()
    for thread in threads:
        thread.join(5.0)
    for place in [folder, *(spec.get("work_dir") for spec in request["servers"])]:
        shutil.rmtree(place or "", ignore_errors=True)
    os._exit(1 if failed else 0)


def start(servers: list[Server]) -> list[threading.Thread]:
    """Start all servers, or report the ports that are taken."""
    # In their order, before any is started: the first to fail is the one that is reported.
    taken = [server for server in servers if not is_free(server.spec["port"])]
    for server in taken:
        server.report("failed", how="no port", said=f"port {server.spec['port']} is in use")
    keep = [] if taken else servers
    threads = [threading.Thread(target=server.keep, daemon=True) for server in keep]
    for thread in threads:
        thread.start()
    return threads


def isolated(request: dict[str, Any], servers: list[Server]) -> list[threading.Thread]:
    """Start all servers in a network of their own; raises OSError where that is not possible."""
    folder = request["folder"]
    claim_folder(folder)
    # Before any thread is started: the kernel allows it to a process with a single one only.
    enter_user_namespace()
    threads: list[threading.Thread] = []
    problems: list[OSError] = []
    proxies: list[socket.socket] = []

    def enter() -> None:
        # A namespace belongs to a thread: what is started here is inside, all else outside.
        try:
            unshare(NEW_NETWORK)
            with socket.socket() as any_socket:
                loopback = struct.pack("16sh22x", b"lo", UP_AND_RUNNING)
                fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, loopback)
            proxies.append(listening(("127.0.0.1", 0)))
            url = f"http://127.0.0.1:{proxies[0].getsockname()[1]}"
            for server in servers:
                for name in ("no_proxy", "NO_PROXY"):
                    server.env.pop(name, None)
                server.env.update(http_proxy=url, https_proxy=url)
                address = ("127.0.0.1", server.spec["port"])
                entrance = listening(os.path.join(folder, server.spec["name"]))
                serve_each(entrance, functools.partial(relay, address))
            threads.extend(start(servers))
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    for error in problems:
        raise error
    serve_each(proxies[0], serve_proxy)
    token = machine_token(folder)
    event = {"event": "machine", "name": str(request.get("machine", 0)), "said": token}
    servers[0].events.put(event)
    return threads


def claim_folder(folder: str) -> None:
    """Make a folder that only we can enter, or check that it is one; raises OSError."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode != stat.S_IFDIR | 0o700:
            raise PermissionError(folder + " is not a folder that only we can enter") from None


def machine_token(folder: str) -> str:
    """Return a text that differs between folders of one path on different machines."""
    link = os.path.join(folder, "machine")
    with contextlib.suppress(FileExistsError):
        os.symlink(os.urandom(16).hex(), link)
    return os.readlink(link)


def unshare(flags: int) -> None:
    """Move this thread to a new namespace; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        code = ctypes.get_errno()
        raise OSError(code, "unshare: " + os.strerror(code))


def enter_user_namespace() -> None:
    """Get the right to make network namespaces, if we lack it; we stay the user that we are."""
    child = os.fork()
    if child == 0:
        try:
            unshare(NEW_NETWORK)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        return
    maps = {"setgroups": "deny"}
    for name, number in ("uid_map", os.geteuid()), ("gid_map", os.getegid()):
        maps[name] = f"{number} {number} 1"
    unshare(NEW_USER)
    for name, text in maps.items():
        with open("/proc/self/" + name, "w") as file:
            file.write(text)


def listening(address: str | tuple[str, int]) -> socket.socket:
    """Listen on a port, or at a path, which is as open as its folder."""
    found = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    found.bind(address)
    found.listen(128)
    return found


def serve_each(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Serve each connection in a thread, which is in the namespace of the caller."""

    def run(near: socket.socket) -> None:
        with near, contextlib.suppress(OSError, ValueError):
            serve(near)

    def accept() -> None:
        while True:
            near = listener.accept()[0]
            threading.Thread(target=run, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def relay(address: tuple[str, int], near: socket.socket, first: bytes = b"") -> None:
    """Connect to an address, send it the first bytes, and pass on all that follows."""
    with socket.create_connection(address) as far:
        far.sendall(first)
        back = threading.Thread(target=pump, args=(far, near), daemon=True)
        back.start()
        pump(near, far)
        back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until either end closes, then close the other one's input."""
    try:
        while True:
            piece = source.recv(PIECE_BYTES)
            if not piece:
                break
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def serve_proxy(near: socket.socket) -> None:
    """Answer one client as an HTTP proxy does: a tunnel, or one request to an http:// address."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = near.recv(PIECE_BYTES)
        head += piece
        if not piece or len(head) > LONGEST_HEAD:
            return
    line, _, rest = head.partition(b"\r\n")
    verb, target, version = line.decode("latin-1").split()
    if verb == "CONNECT":
        host, _, port = target.rpartition(":")
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        relay((host.strip("[]"), int(port)), near, rest.partition(b"\r\n\r\n")[2])
        return
    url = urlsplit(target)
    path = (url.path or "/") + ("?" + url.query if url.query else "")
    # The next request on this connection could be for another host.
    line = f"{verb} {path} {version}\r\nConnection: close\r\n".encode("latin-1")
    relay((url.hostname or "", url.port or 80), near, line + rest)


def is_free(port: int) -> bool:
    """Whether a port is free; gRPC would share it with another gRPC server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def wait_for_end(events: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Put an end event when stdin ends: the process that started us is gone."""
    while os.read(0, 4096):
        pass
    events.put(None)


if __name__ == "__main__":
    main()
