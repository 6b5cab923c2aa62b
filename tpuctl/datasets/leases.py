"""Which machine builds which shard while any number of them take what is left: `--steal`.

A lease is an object that only one machine can make, and that it replaces now and then while it
works. One that another machine has not seen change for a while belongs to nobody, and is taken over
by replacing that very version: no clocks are compared. One that an earlier run of the same share
has left, killed, is taken over at once. A lease only saves work; a shard that two machines build
after all has the same bytes, and is there once.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from tpuctl.clock import Clock
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.publish import LEASE
from tpuctl.errors import AlreadyExistsError, NotFoundError, TpuctlError
from tpuctl.storage.port import Entry, Storage

POLL_S = 5.0
_RENEW_S = 20.0
_EXPIRES = timedelta(seconds=90)


class Leases:
    """The leases at the address of a data set, and which of them are ours. Safe with threads.

    No two runs of one `owner` are at work at the same time.
    """

    def __init__(self, storage: Storage, clock: Clock, owner: str) -> None:
        self._storage, self._clock, self._owner = storage, clock, owner
        self._ours: dict[str, Entry] = {}
        self._theirs: dict[str, tuple[Entry, datetime]] = {}
        self._lock = threading.Lock()
        self.look()

    def look(self) -> None:
        """See which leases there are, and since when each has not changed."""
        now = self._clock.now()
        seen = {}
        for entry in self._storage.list(LEASE):
            before = self._theirs.get(entry.name)
            same = before is not None and before[0].version == entry.version
            seen[entry.name] = (entry, before[1] if before and same else now)
        self._theirs = seen

    def claim(self, job: ShardJob) -> bool:
        """Take the lease of a shard, or say that somebody else is at it."""
        name = _lease_of(job)
        there = self._theirs.get(name)
        try:
            if there is None:
                entry = self._storage.create(name, self._token())
            elif self._clock.now() - there[1] >= _EXPIRES or self._was_ours(there[0]):
                entry = self._storage.replace(there[0], self._token())
            else:
                return False
        except AlreadyExistsError:
            return False
        with self._lock:
            self._ours[name] = entry
        return True

    def renew(self) -> None:
        """Show that we are still here; a lease that somebody has taken over is theirs."""
        for name, entry in list(self._ours.items()):
            try:
                renewed = self._storage.replace(entry, self._token())
            except TpuctlError:
                renewed = None
            with self._lock:
                if renewed is None:
                    del self._ours[name]
                else:
                    self._ours[name] = renewed

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew our leases until the end of the block, then give them back."""
        over = threading.Event()

        def keep() -> None:
            while not over.wait(_RENEW_S):
                self.renew()

        thread = threading.Thread(target=keep, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for entry in self._ours.values():
                with suppress(TpuctlError):
                    self._storage.delete(entry)

    def _was_ours(self, entry: Entry) -> bool:
        """Whether an earlier run of this owner took a lease: it is over, or we would not run."""
        try:
            return self._storage.read(entry.name, version=entry.version).startswith(self._prefix)
        except NotFoundError:
            return False

    def _token(self) -> bytes:
        """What no other lease holds: to make an object that is there with the same bytes works."""
        return self._prefix + uuid.uuid4().hex.encode()

    @property
    def _prefix(self) -> bytes:
        return f"{self._owner} ".encode()


def _lease_of(job: ShardJob) -> str:
    return f"{LEASE}{job.id}"
