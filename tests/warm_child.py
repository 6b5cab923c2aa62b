"""The measuring process of `profile run` in a Python that has already imported TensorFlow."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.training_runs import warm
from tpuctl.start_python import child_environment, python_command
from tpuctl.usercode.child import QUIET, Child

# Higher than any that the warm Python has open.
ANSWERS = 100


@contextmanager
def start_warm_child(module: str) -> Iterator[Child]:
    """Run a module as `start_child` does; its imports take no time."""
    python = warm("tensorflow")
    receive, answers = os.pipe()
    requests, ask = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(receive, "rb") as messages:
        streams = {0: requests, 1: log.fileno(), 2: log.fileno(), ANSWERS: answers}
        command = python_command(module, str(ANSWERS))[1:]
        process = python.start(command, child_environment(QUIET), streams, new_group=True)
        os.close(answers)
        os.close(requests)
        process.stdin = os.fdopen(ask, "wb")
        child = Child(cast("Any", process), messages, log)
        try:
            yield child
        finally:
            child.end()
