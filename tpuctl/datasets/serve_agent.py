"""Keep the servers of a tf.data service alive on one machine: this process watches, others serve.

It runs wherever Python 3.8 and TensorFlow are; tpuctl does not have to be there. Its only argument
is JSON: `{"servers": [...], "stdin": true}`, each server with a `name`, a `role` and what that
needs. What happens goes to stdout, a JSON object per line. With `stdin`, it ends when stdin does.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A server that dies within 20 seconds, five times in a row, is not restarted again. The waits
# between the attempts double from half a second on.
QUICK_S = 20.0
MOST_QUICK_DEATHS = 5
FIRST_WAIT_S = 0.5

CHILD = """
import json, os, sys, threading
def end_with_parent():
    while os.read(0, 4096):
        pass
    os._exit(0)
threading.Thread(target=end_with_parent, daemon=True).start()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
server = json.loads(sys.argv[1])
import tensorflow as tf
service = tf.data.experimental.service
if server["role"] == "dispatcher":
    os.makedirs(server["work_dir"], exist_ok=True)
    config = service.DispatcherConfig(
        port=server["port"], work_dir=server["work_dir"], fault_tolerant_mode=True
    )
    made = service.DispatchServer(config)
else:
    made = service.WorkerServer(service.WorkerConfig(
        dispatcher_address=server["dispatcher"],
        worker_address=server["address"] + ":" + str(server["port"]),
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
        events: queue.Queue[dict[str, Any] | None],
        closing: threading.Event,
    ) -> None:
        self.spec, self.events, self.closing = spec, events, closing
        self.process: subprocess.Popen[bytes] | None = None
        self.was_ever_ready = False
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
                self.tell("failed", how=how, said=last_words)
                return
            self.tell("died", how=how, said=last_words)
            self.closing.wait(wait_s)

    def serve_once(self) -> tuple[str, str]:
        """Run the process to its end; how it ended, and the last it said."""
        with self.lock:
            if self.closing.is_set():
                return "ended", ""
            process = self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, json.dumps(self.spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        words: list[str] = []
        listening = threading.Thread(target=self.listen, args=(process, words), daemon=True)
        listening.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == b"ready":
                self.was_ever_ready = True
                self.tell("ready", pid=process.pid)
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

    def tell(self, event: str, **more: object) -> None:
        """Report."""
        self.events.put(dict(more, event=event, name=self.spec["name"]))

    def end(self) -> None:
        """End the process."""
        with self.lock:
            if self.process is not None:
                self.process.kill()


def main() -> None:
    """Keep all servers until one gives up, a signal comes, or stdin ends."""
    request = json.loads(sys.argv[1])
    events: queue.Queue[dict[str, Any] | None] = queue.Queue()
    closing = threading.Event()
    servers = [Server(spec, events, closing) for spec in request["servers"]]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: events.put(None))
    if request.get("stdin"):
        threading.Thread(target=wait_for_end, args=(events,), daemon=True).start()
    threads = start(servers)
    failed = False
    while not failed:
        event = take(events)
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
    for spec in request["servers"]:
        shutil.rmtree(spec.get("work_dir", ""), ignore_errors=True)
    os._exit(1 if failed else 0)


def start(servers: list[Server]) -> list[threading.Thread]:
    """Start all servers, or report the ports that are taken."""
    # In their order, before any is started: the first to fail is the one that is reported.
    taken = [server for server in servers if not is_free(server.spec["port"])]
    for server in taken:
        server.tell("failed", how="no port", said=f"port {server.spec['port']} is in use")
    keep = [] if taken else servers
    threads = [threading.Thread(target=server.keep, daemon=True) for server in keep]
    for thread in threads:
        thread.start()
    return threads


def is_free(port: int) -> bool:
    """Whether a port is free; gRPC would share it with another gRPC server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError):  # a port above 65535 overflows
            return False
    return True


def take(events: queue.Queue[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Wait for an event, so that signals are heard at once."""
    while True:
        try:
            return events.get(timeout=0.2)
        except queue.Empty:
            pass


def wait_for_end(events: queue.Queue[dict[str, Any] | None]) -> None:
    """Put an end event when stdin ends: the process that started us is gone."""
    while os.read(0, 4096):
        pass
    events.put(None)


if __name__ == "__main__":
    main()
