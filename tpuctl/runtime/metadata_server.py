"""Google's metadata server, with a budget of half a second for all queries together."""

import threading
import time
from collections.abc import Callable, Mapping

from tpuctl.runtime.machine import parse_count

BUDGET_S = 0.5


class MetadataServer:
    """A metadata server that may hang or not exist; it never costs more than half a second."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # An IP address, because resolving the name can take long where there is no server.
        self._address = (
            env.get("GCE_METADATA_IP") or env.get("GCE_METADATA_HOST") or "169.254.169.254"
        )
        self._left_s = budget_s
        self._clock = clock
        self._known: dict[str, str | None] = {}
        self._answers: bool | None = None

    @property
    def answers(self) -> bool:
        """Whether the server answers."""
        if self._answers is None:
            self.get("instance/attributes/agent-worker-number")
        return bool(self._answers)

    def get(self, path: str) -> str | None:
        """Read a value; None for a 404, or once the budget is spent."""
        if path not in self._known:
            self._known[path] = self._query(path)
        return self._known[path]

    def _query(self, path: str) -> str | None:
        if self._left_s <= 0 or self._answers is False:
            return None
        # In a thread: a socket timeout is per call, so a server that trickles would never end.
        box: list[bytes] = []
        began = self._clock()
        thread = threading.Thread(target=self._fetch, args=(path, box), daemon=True)
        thread.start()
        thread.join(self._left_s)
        self._left_s -= self._clock() - began
        body = _parse(box[0]) if box else None
        if self._answers is None:
            self._answers = body is not None
        return body[1] if body and body[0] == 200 else None

    def _fetch(self, path: str, box: list[bytes]) -> None:
        import socket

        # An emulator's address ends with a path, which has its secret.
        address, slash, prefix = self._address.partition("/")
        host, _, port = address.partition(":")
        request = (
            f"GET {slash}{prefix}/computeMetadata/v1/{path} HTTP/1.0\r\n"
            "Host: metadata.google.internal\r\n"
            "Metadata-Flavor: Google\r\n\r\n"
        )
        try:
            with socket.create_connection((host, int(port or 80)), timeout=BUDGET_S) as server:
                server.sendall(request.encode())
                reply = b""
                while len(reply) < 1 << 20 and (part := server.recv(1 << 16)):
                    reply += part
        except (OSError, ValueError, OverflowError):
            return
        box.append(reply)


def _parse(reply: bytes) -> tuple[int, str] | None:
    """Split a reply into status and body; None if it is not from a metadata server."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split()
    status = parse_count(words[1]) if len(words) > 1 else None
    if status is None or not words[0].startswith("HTTP/"):
        return None
    if not any(line.lower().replace(" ", "") == "metadata-flavor:google" for line in lines[1:]):
        return None
    return status, body.decode(errors="replace")
