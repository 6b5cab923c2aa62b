"""One worker process: jobs come in as lines on stdin, reports go out as lines on stdout.

It ends when stdin does, so it cannot outlive the run that started it, not even a killed one.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from tpuctl.datasets.plan import Entry, ShardJob
from tpuctl.errors import TpuctlError


def main() -> None:
    """Serve jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reports = _take_over_stdout()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    setup = jobs.get()

    from tpuctl.datasets import _images
    from tpuctl.datasets._shard import Recipe
    from tpuctl.datasets.memory import Admission
    from tpuctl.datasets.originals import open_originals
    from tpuctl.datasets.state import Work

    _images.prepare_decoders()
    work = Work(Path(setup["work"]))
    serve = _Server(
        reports,
        originals=open_originals(setup["source"]),
        work=work,
        recipe=Recipe.from_options(setup["options"]),
        admit=Admission(work.folder, budget_bytes=setup["budget_bytes"], workers=setup["workers"]),
    )
    serve.report({"ready": True})
    while True:
        serve.run(jobs.get())


class _Server:
    def __init__(self, reports: BinaryIO, **building: Any) -> None:
        self._reports = reports
        self._building = building

    def report(self, message: dict[str, Any]) -> None:
        try:
            self._reports.write(json.dumps(message).encode() + b"\n")
            self._reports.flush()
        except BrokenPipeError:
            os._exit(1)

    def run(self, job: dict[str, Any]) -> None:
        from tpuctl.datasets._shard import ShardBuilder

        entries = tuple(Entry(*fields) for fields in job["entries"])
        shard = ShardJob(job["id"], job["index"], job["of"], entries)
        crashed = {int(index): detail for index, detail in job["crashed"].items()}
        builder = ShardBuilder(shard, **self._building)
        try:
            finished = builder.build(crashed, lambda index: self.report({"at": index}))
        except TpuctlError as error:
            self.report({"failed": [type(error).__name__, str(error), error.hint]})
        else:
            self.report({"done": json.loads(finished.to_json())})


def _listen(jobs: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    os._exit(0)


def _take_over_stdout() -> BinaryIO:
    """Keep stdout for reports: what a decoder prints must not mix with them."""
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reports


if __name__ == "__main__":
    main()
