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
from typing import TYPE_CHECKING, Any, BinaryIO

from tpuctl.codec import from_plain, to_plain
from tpuctl.datasets.plan import ShardJob
from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.datasets.images.memory import Admit
    from tpuctl.datasets.shards.originals import Originals


def main() -> None:
    """Serve jobs until there are no more."""
    # Ctrl-C goes to the whole process group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reports = _take_over_stdout()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    setup = jobs.get()

    from tpuctl.datasets.images import _shrink
    from tpuctl.datasets.images.memory import Admission
    from tpuctl.datasets.shards.originals import open_originals

    _shrink.prepare_decoders()
    limits = {name: setup[name] for name in ("budget_bytes", "image_bytes", "workers")}
    admit = Admission(Path(setup["work"]), **limits)
    originals = open_originals(setup["source"], most_bytes=setup["image_bytes"] // 2)
    serve = _Server(reports, setup, originals, admit)
    serve.report({"ready": True})
    while True:
        serve.run(jobs.get())


class _Server:
    def __init__(
        self, reports: BinaryIO, setup: dict[str, Any], originals: "Originals", admit: "Admit"
    ) -> None:
        self._reports, self._setup = reports, setup
        self._originals, self._admit = originals, admit

    def report(self, message: dict[str, Any]) -> None:
        try:
            self._reports.write(json.dumps(message).encode() + b"\n")
            self._reports.flush()
        except BrokenPipeError:
            os._exit(1)

    def run(self, document: dict[str, Any]) -> None:
        from tpuctl.datasets.shards._builder import Recipe, ShardBuilder
        from tpuctl.datasets.shards.work import Work

        job = ShardJob.from_json(document)
        recipe = from_plain(Recipe, self._setup["options"])
        builder = ShardBuilder(job, work=Work(Path(self._setup["work"])), recipe=recipe)
        crashed = {int(index): detail for index, detail in document["crashed"].items()}
        try:
            done = builder.build(self._originals, self._admit, crashed, self._tell)
        except TpuctlError as error:
            self.report({"failed": [type(error).__name__, str(error), error.hint]})
        else:
            self.report({"done": to_plain(done)})

    def _tell(self, index: int) -> None:
        self.report({"at": index})


def _listen(jobs: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    # The run that started us has ended or was killed: stop at once, even in the middle of decoding.
    os._exit(0)


def _take_over_stdout() -> BinaryIO:
    """Keep stdout for reports: what a decoder prints must not mix with them."""
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reports


if __name__ == "__main__":
    main()
