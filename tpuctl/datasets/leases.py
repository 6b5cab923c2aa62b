"""Which machine builds which shard when several machines share the work freely: `--steal`.

A lease is an object that only one machine can create, and that it replaces every 20 seconds while
it works. If another machine has not seen it change for 90 seconds, it takes it over by replacing
that very version: no two clocks are compared. A lease that an earlier, killed run of the same share
left behind is taken over at once. Leases only save work: a shard that two machines build after all
has the same bytes and the same name.
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
from tpuctl.storage.port import Storage, StoredObject

POLL_S = 5.0
_RENEW_S = 20.0
# Four renewals may fail before another machine takes over.
_EXPIRES = timedelta(seconds=90)


class Leases:
    """The leases at the address of a data set, and which of them are ours. Thread-safe.

    No two runs of one `owner` may be at work at the same time.
    """

    def __init__(self, storage: Storage, clock: Clock, owner: str) -> None:
        self._storage, self._clock = storage, clock
        self._owner = f"{owner} ".encode()
        self._ours: dict[str, StoredObject] = {}
        self._seen: dict[str, tuple[StoredObject, datetime]] = {}
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read the leases, and note since when each has not changed."""
        now = self._clock.now()
        seen = {}
        for entry in self._storage.list(LEASE):
            before = self._seen.get(entry.name)
            same = before is not None and before[0].version == entry.version
            seen[entry.name] = (entry, before[1] if before and same else now)
        self._seen = seen

    def claim(self, job: ShardJob) -> bool:
        """Take the lease of a shard; False if another machine holds it."""
        name = f"{LEASE}{job.id}"
        there = self._seen.get(name)
        try:
            if there is None:
                entry = self._storage.write(name, self._token())
            elif self._clock.now() - there[1] >= _EXPIRES or self._was_ours(there[0]):
                entry = self._storage.write(name, self._token(), over=there[0])
            else:
                return False
        except AlreadyExistsError:
            return False
        with self._lock:
            self._ours[name] = entry
        return True

    def renew(self) -> None:
        """Show that we are still at work; a lease that another machine took over is dropped."""
        for name, entry in list(self._ours.items()):
            try:
                renewed = self._storage.write(name, self._token(), over=entry)
            except TpuctlError:
                renewed = None
            with self._lock:
                if renewed is None:
                    del self._ours[name]
                else:
                    self._ours[name] = renewed

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew our leases until the end of the block, then delete them."""
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

    def _was_ours(self, entry: StoredObject) -> bool:
        """Whether an earlier run of this owner took the lease; it is dead, or we would not run."""
        try:
            return self._storage.read(entry.name, version=entry.version).startswith(self._owner)
        except NotFoundError:
            return False

    def _token(self) -> bytes:
        # Unique, because creating an object that exists with the same bytes succeeds.
        return self._owner + uuid.uuid4().hex.encode()
