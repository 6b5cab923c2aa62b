"""The server side of a WebSocket (RFC 6455), limited to what Colab's clients need."""

import base64
import hashlib
import socket
import struct
import threading
from io import BufferedIOBase

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_MOST_BYTES = 16 << 20


def accept_key(key: str) -> str:
    """Return the header that answers a client's key."""
    # The protocol requires SHA-1, which protects nothing here.
    digest = hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class WebSocket:
    """One connection after the upgrade."""

    def __init__(self, reader: BufferedIOBase, connection: socket.socket) -> None:
        self._reader, self._connection = reader, connection
        self._lock = threading.Lock()

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next message; None after the end. Answers pings and the closing frame."""
        whole, kind = b"", 0
        while True:
            head = self._reader.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 0x7F
            if size >= 126:
                width = 2 if size == 126 else 8
                size = int.from_bytes(self._reader.read(width), "big")
            if size > _MOST_BYTES or not head[1] & 0x80:
                return None
            mask = self._reader.read(4)
            data = self._reader.read(size)
            repeated = (mask * (len(data) // 4 + 1))[: len(data)]
            number = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
            data = number.to_bytes(len(data), "big")
            code = head[0] & 0x0F
            if code == CLOSE:
                self.send(data, CLOSE)
                return None
            if code == PING:
                self.send(data, PONG)
            elif code != PONG:
                kind, whole = kind or code, whole + data
                if head[0] & 0x80:
                    return kind, whole

    def send(self, data: bytes, kind: int = BINARY) -> None:
        """Send a message; ignores a closed connection, which its reader notices."""
        size = len(data)
        head = bytes([0x80 | kind, size]) if size < 126 else (
            struct.pack("!BBH", 0x80 | kind, 126, size) if size < 1 << 16
            else struct.pack("!BBQ", 0x80 | kind, 127, size)
        )  # fmt: skip
        with self._lock:
            try:
                self._connection.sendall(head + data)
            except OSError:
                return

    def cut(self) -> None:
        """Close the connection at once."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
