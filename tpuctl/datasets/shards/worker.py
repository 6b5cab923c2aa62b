"""One worker process: jobs come in, and reports go out, through a `Channel`.

It ends when its parent does, so it cannot outlive the run that started it, not even a killed one.
"""

import signal
import sys
from pathlib import Path

from tpuctl.codec import from_plain, to_plain
from tpuctl.datasets.plan import ShardJob
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
    from tpuctl.datasets.shards._builder import Recipe, ShardBuilder
    from tpuctl.datasets.shards.originals import open_originals
    from tpuctl.datasets.shards.work import Work

    _shrink.prepare_decoders()
    limits = {name: setup[name] for name in ("budget_bytes", "image_bytes", "workers")}
    admit = Admission(Path(setup["work"]), **limits)
    originals = open_originals(setup["source"], most_bytes=setup["image_bytes"] // 2)
    work, recipe = Work(Path(setup["work"])), from_plain(Recipe, setup["options"])

    def tell(index: int) -> None:
        channel.send(phase=AT_WORK, at=index)

    for document in requests:
        builder = ShardBuilder(ShardJob.from_json(document), work=work, recipe=recipe)
        crashed = {int(index): detail for index, detail in document["crashed"].items()}
        try:
            done = builder.build(originals, admit, crashed, tell)
        except TpuctlError as error:
            channel.send(error=error.code, message=str(error), hint=error.hint)
        else:
            channel.send(done=to_plain(done))


if __name__ == "__main__":
    main()
