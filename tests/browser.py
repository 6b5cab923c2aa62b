"""A headless Chromium that a test can talk to, over the two pipes it was started with."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium reads commands from and writes answers to these when told --remote-debugging-pipe.
COMMANDS, ANSWERS = 3, 4


class Page:
    """One page: asks it to evaluate JavaScript and hands back the value."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive = send, receive
        self.buffer, self.count, self.session = b"", 0, ""

    def open(self, address: str, *, again: bool = False) -> None:
        """Open a page in a new window, or in the one of the last page."""
        if not again:
            self.session = ""
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self.session = attached["sessionId"]
            self.call("Page.enable")
        self.call("Page.navigate", url=address)
        while self.hear().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while (answer := self.hear()).get("id") != self.count:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def hear(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            chunk = os.read(self.receive, 1 << 16)
            assert chunk, "Chromium is gone"
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    (read_commands, send), (receive, write_answers) = os.pipe(), os.pipe()
    become = (
        f"import os, sys; os.dup2({read_commands}, {COMMANDS}); "
        f"os.dup2({write_answers}, {ANSWERS}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    child = subprocess.Popen(
        [sys.executable, "-c", become, program, *flags, f"--user-data-dir={profile}"],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Page(send, receive)
    finally:
        child.kill()
        child.wait()
        os.close(send)
        os.close(receive)
