"""One worker process: jobs come in, and reports go out, through a `Channel`.

It ends when its parent does, so it cannot outlive the run that started it, not even a killed one.
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path

from tpuctl.codec import from_plain, to_plain
from tpuctl.datasets.plan import ShardJob, SiblingShard
from tpuctl.datasets.shards.pool import AT_WORK
from tpuctl.errors import TpuctlError
from tpuctl.usercode.child import Channel


def main() -> None:
    """Build shards until there are no more."""
    # Ctrl-C goes to the whole process group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(int(sys.argv[1]))
    requests = channel.requests()
    setup = next(requests)

    from tpuctl.datasets.images import _shrink
    from tpuctl.datasets.images.memory import Admission
    from tpuctl.datasets.shards._builder import Recipe, ShardBuilder, build_together
    from tpuctl.datasets.shards.originals import open_originals
    from tpuctl.datasets.shards.work import Work

    _shrink.prepare_decoders()
    limits = {name: setup[name] for name in ("budget_bytes", "image_bytes", "workers")}
    admit = Admission(Path(setup["work"]), **limits)
    originals = open_originals(setup["source"], most_bytes=setup["image_bytes"] // 2)

    def report(index: int) -> None:
        channel.send(phase=AT_WORK, at=index)

    for document in requests:
        job = ShardJob.from_json(document)
        lead = SiblingShard(job.id, setup["work"], setup["options"])
        builders = [
            ShardBuilder(
                replace(job, id=each.id),
                work=Work(Path(each.work)),
                recipe=from_plain(Recipe, each.options),
            )
            for each in (lead, *job.siblings)
        ]
        crashed = {int(index): detail for index, detail in document["crashed"].items()}
        try:
            done = build_together(builders, originals, admit, crashed, report)
        except TpuctlError as error:
            channel.send(error=error.code, message=str(error), hint=error.hint)
        else:
            channel.send(done=to_plain(done))


if __name__ == "__main__":
    main()
