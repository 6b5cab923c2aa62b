"""Reading small objects from a bucket: our reader against Google's client, in CPU time.

The target is 0.5 of google-cloud-storage's `download_as_bytes`; both check crc32c. The emulator
serves them from a process of its own.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

OBJECTS = 60
SIZE_BYTES = 560 << 10
ROUNDS = 5
TARGET = 0.5


def serve_bucket(address: Connection, ended: Event) -> None:
    from tpuctl.clock import WallClock
    from tpuctl.emulator.server import serve

    with serve({"buckets": {"shelf": {}}}, clock=WallClock()) as emulator:
        address.send(emulator.http)
        ended.wait()


def cpu_ms(read: Callable[[str], bytes]) -> float:
    """CPU milliseconds of this process for one object."""
    began = time.process_time()
    for number in range(OBJECTS):
        assert len(read(f"photo-{number}")) == SIZE_BYTES
    return 1000 * (time.process_time() - began) / OBJECTS


def measure() -> tuple[float, float]:
    """Median of ours and of theirs, the two in turns."""
    from google.cloud import storage

    from tpuctl.storage import open_storage

    shelf = open_storage("gs://shelf")
    for number in range(OBJECTS):
        shelf.write(f"photo-{number}", os.urandom(SIZE_BYTES))
    bucket = storage.Client.create_anonymous_client().bucket("shelf")

    def theirs(name: str) -> bytes:
        data: bytes = bucket.blob(name).download_as_bytes(checksum="crc32c")
        return data

    pairs = [(cpu_ms(shelf.read), cpu_ms(theirs)) for _ in range(ROUNDS + 1)][1:]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    """Print the figure; fail when it is not reached."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    ended = context.Event()
    server = context.Process(target=serve_bucket, args=(sending, ended), daemon=True)
    server.start()
    os.environ["STORAGE_EMULATOR_HOST"] = receiving.recv()
    try:
        ours_ms, theirs_ms = measure()
    finally:
        ended.set()
        server.join()
    ratio = ours_ms / theirs_ms
    print(
        f"reading {SIZE_BYTES >> 10} KiB from a bucket: ours {ours_ms:.2f} ms CPU, "
        f"google-cloud-storage {theirs_ms:.2f} ms, ratio {ratio:.2f} (at most {TARGET})"
    )
    assert ratio <= TARGET


if __name__ == "__main__":
    main()
