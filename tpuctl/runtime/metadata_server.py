"""Google's metadata server, asked with half a second of patience for all questions together."""

import threading
import time
from collections.abc import Callable, Mapping

from tpuctl.runtime.machine import parse_count

PATIENCE_S = 0.5


class MetadataServer:
    """A metadata server that may hang, lie or not exist; whatever happens costs half a second."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # An IP first: looking up the server's name can take long where there is none.
        self._address = (
            env.get("GCE_METADATA_IP") or env.get("GCE_METADATA_HOST") or "169.254.169.254"
        )
        self._left_s = patience_s
        self._clock = clock
        self._known: dict[str, str | None] = {}
        self._answers: bool | None = None

    @property
    def answers(self) -> bool:
        """Whether the server answers at all."""
        if self._answers is None:
            self.get("instance/attributes/agent-worker-number")
        return bool(self._answers)

    def get(self, path: str) -> str | None:
        """Read one value; None for a 404, and for everything once patience has run out."""
        if path not in self._known:
            self._known[path] = self._ask(path)
        return self._known[path]

    def _ask(self, path: str) -> str | None:
        if self._left_s <= 0 or self._answers is False:
            return None
        box: list[bytes] = []
        began = self._clock()
        asking = threading.Thread(target=self._fetch, args=(path, box), daemon=True)
        asking.start()
        asking.join(self._left_s)
        self._left_s -= self._clock() - began
        body = _parse(box[0]) if box else None
        if self._answers is None:
            self._answers = body is not None
        return body[1] if body and body[0] == 200 else None

    def _fetch(self, path: str, box: list[bytes]) -> None:
        import socket

        host, _, port = self._address.partition(":")
        request = (
            f"GET /computeMetadata/v1/{path} HTTP/1.0\r\nHost: metadata.google.internal\r\n"
            "Metadata-Flavor: Google\r\n\r\n"
        )
        try:
            with socket.create_connection((host, int(port or 80)), timeout=PATIENCE_S) as server:
                server.sendall(request.encode())
                reply = b""
                while len(reply) < 1 << 20 and (part := server.recv(1 << 16)):
                    reply += part
        except (OSError, ValueError, OverflowError):
            return
        box.append(reply)


def _parse(reply: bytes) -> tuple[int, str] | None:
    """Split a reply into status and body; None when it does not come from a metadata server."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split()
    status = parse_count(words[1]) if len(words) > 1 else None
    if status is None or not words[0].startswith("HTTP/"):
        return None
    if not any(line.lower().replace(" ", "") == "metadata-flavor:google" for line in lines[1:]):
        return None
    return status, body.decode(errors="replace")
