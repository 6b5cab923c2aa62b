"""Who has fallen silent: a program on many hosts hangs when one of them does."""

from dataclasses import dataclass, field

from tpuctl.watch.models import Silence


@dataclass
class Talk:
    """When each worker has said something, in seconds of any one clock.

    While a connection is broken nothing is known of a worker: it counts as heard from when it is
    back.
    """

    workers: tuple[int, ...]
    started_s: float
    _first_s: dict[int, float] = field(default_factory=dict)
    _last_s: dict[int, float] = field(default_factory=dict)
    _away: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def heard(self, worker: int, now_s: float) -> None:
        """It has said something."""
        self._first_s.setdefault(worker, now_s)
        self._last_s[worker] = now_s

    def lost(self, worker: int) -> None:
        """Its connection is broken."""
        self._away.add(worker)

    def back(self, worker: int, now_s: float) -> None:
        """Its connection is there again."""
        self._away.discard(worker)
        if worker in self._last_s:
            self._last_s[worker] = now_s

    def ended(self, worker: int) -> None:
        """Its program has ended: it has nothing more to say."""
        self._ended.add(worker)

    def silent(self, now_s: float, *, after_s: float) -> Silence | None:
        """Who is taken for hung: said nothing for `after_s`, although it used to.

        It used to when it had talked for as long as that; or when it has talked at all, and nobody
        does any more. While a worker is away that cannot be said of all. Where nobody has ever
        said a word, all are.
        """
        if not self._last_s:
            waited_s = now_s - self.started_s
            is_hung = waited_s >= after_s and not self._away
            return Silence(self.workers, waited_s) if is_hung else None
        live = self._last_s.keys() - self._ended
        quiet = {w: now_s - self._last_s[w] for w in live - self._away}
        quiet = {worker: seconds for worker, seconds in quiet.items() if seconds >= after_s}
        nobody_talks = len(quiet) == len(live)
        hung = [
            worker
            for worker in quiet
            if nobody_talks or self._last_s[worker] - self._first_s[worker] >= after_s
        ]
        if not hung:
            return None
        hung.sort(key=lambda worker: (self._last_s[worker], worker))
        return Silence(tuple(hung), quiet[hung[0]])
