"""`watch`: look, decide, write it down, do it; again, until the job is done."""

from collections.abc import Callable
from dataclasses import replace

from tpuctl.errors import StoppedError, TpuctlError
from tpuctl.supervise.act import Edge
from tpuctl.supervise.decide import POLL_S, decide
from tpuctl.supervise.follow import Since
from tpuctl.supervise.memory import Store, remember
from tpuctl.supervise.messages import Watched, words
from tpuctl.supervise.models import (
    Ask,
    Close,
    Create,
    Delete,
    End,
    Follow,
    Launch,
    Memory,
    Order,
    Sight,
    Step,
    StopJobs,
    TpuSight,
    Wait,
)


def watch(
    edge: Edge,
    memory: Memory,
    order: Order,
    *,
    store: Store,
    note: Callable[[str], None],
    delete_at_end: bool = False,
) -> Watched:
    """Keep the TPU alive and the job running until it is done, or has failed too often.

    This makes TPUs, which costs money. The caller holds `store.alone()`. What was begun by an
    earlier watch, however it ended, is gone on with. On Ctrl-C the job goes on without us.
    """
    return _Watch(edge, memory, order, store, note).to_the_end(delete_at_end=delete_at_end)


class _Watch:
    def __init__(
        self, edge: Edge, memory: Memory, order: Order, store: Store, note: Callable[[str], None]
    ) -> None:
        self._edge, self._memory, self._order = edge, memory, order
        self._store, self._note = store, note
        self._sight = Sight(TpuSight("unknown"))
        now = edge.clock.now
        self._trouble, self._failing, self._coming = Since(now), Since(now), Since(now)
        self._said = ""

    def to_the_end(self, *, delete_at_end: bool) -> Watched:
        while True:
            self._look()
            step = decide(self._memory, self._order, self._sight)
            self._tell(step)
            self._remember(step)
            if isinstance(step, End):
                return self._end(step, delete_at_end)
            self._act(step)

    def _look(self) -> None:
        tpu = self._edge.look(self._memory)
        before = self._sight.tpu
        past_s = self._coming.seconds(tpu.kind == "coming")
        self._sight = replace(self._sight, tpu=replace(tpu, past_s=past_s))
        if tpu.kind != "usable":
            self._trouble.seconds(False)
        if (tpu.kind, tpu.id) != (before.kind, before.id):
            # What the workers of before said, or refused, means nothing any more.
            refused = None if before.kind == "usable" else self._sight.refused
            self._sight = replace(self._sight, workers=None, refused=refused, hung=None)

    def _remember(self, step: Step) -> None:
        memory = remember(self._memory, step, self._sight, self._edge.clock.now())
        if memory != self._memory:
            self._memory = memory
            self._store.save(memory, self._order)

    def _act(self, step: Step) -> None:
        try:
            self._do(step)
        except StoppedError:
            raise
        except TpuctlError as error:
            refusals = self._sight.refusals + 1
            self._sight = replace(self._sight, refused=error, refusals=refusals, workers=None)
            self._measure(is_troubled=True)

    def _do(self, step: Step) -> None:
        match step:
            case Create() | Delete() | Launch():
                self._change(step)
                self._sight = replace(self._sight, refused=None, refusals=0)
                self._trouble.seconds(False)
            case Wait():
                self._edge.clock.sleep(step.seconds)
                self._sight = replace(self._sight, refused=None)
            case Ask():
                workers = self._edge.ask(self._memory)
                self._sight = replace(self._sight, workers=workers)
                self._measure(is_troubled=bool(workers.errors or workers.unfit))
                return
            case StopJobs():
                self._edge.stop_jobs(step.jobs)
            case Follow():
                self._follow()
                return
            case Close():
                if self._sight.tpu.kind == "usable" and self._memory.last:
                    self._edge.show_rest(self._memory.last.job)
        self._sight = replace(self._sight, workers=None, hung=None)

    def _change(self, step: Create | Delete | Launch) -> None:
        match step:
            case Create():
                self._edge.create(self._memory)
                self._memory = replace(self._memory, creating=False)
            case Delete():
                self._edge.delete(self._memory)
            case Launch():
                self._edge.launch(self._memory, self._order, step)

    def _follow(self) -> None:
        self._measure(is_troubled=False)
        limit_s = self._order.bad_host_after_s
        followed = self._edge.follow(
            self._memory,
            self._order,
            poll_s=POLL_S,
            give_up_lost=lambda is_lost: self._trouble.seconds(is_lost) >= limit_s,
        )
        self._sight = replace(self._sight, workers=None, hung=followed.hung)

    def _measure(self, *, is_troubled: bool) -> None:
        """For how long the workers have not been as they should, or the job has been failing."""
        workers, failing_s = self._sight.workers, 0.0
        if workers:
            failing_s = self._failing.seconds(any(job.failure for job in workers.job.values()))
        troubled_s = self._trouble.seconds(is_troubled)
        self._sight = replace(self._sight, trouble_s=troubled_s, failing_s=failing_s)

    def _tell(self, step: Step) -> None:
        text = words(step, self._memory, self._sight)
        if text and text != self._said:
            self._note(text)
        self._said = text or self._said

    def _end(self, step: End, delete_at_end: bool) -> Watched:
        memory, sight = self._memory, self._sight
        last = memory.last
        is_there = sight.tpu.kind not in ("none", "unknown", "leaving")
        can_ask = sight.tpu.kind == "usable" and last and last.cause == "crash" and step.error
        tail = self._edge.tail(last) if can_ask and last else ()
        if is_there and delete_at_end and self._delete_at_end():
            is_there = False
            if tail and step.error:
                step.error.hint = "The rest of its log went with the TPU: --delete took it."
        self._store.save(memory, self._order, is_over=True)
        return Watched(
            name=memory.name,
            zone=sight.tpu.zone if is_there else None,
            job=last.job if last else None,
            attempts=memory.attempts,
            crashes=memory.crashes,
            usd_per_hour=memory.tpu.usd_per_hour if memory.tpu and is_there else None,
            tail=tail,
            error=step.error,
        )

    def _delete_at_end(self) -> bool:
        """Delete the TPU; that this fails must not hide how the job has ended."""
        self._note(f"Deleting {self._memory.name} in {self._sight.tpu.zone}.")
        try:
            self._edge.delete(self._memory)
        except StoppedError:
            raise
        except TpuctlError as error:
            self._note(f"Error: {error}")
            return False
        return True
