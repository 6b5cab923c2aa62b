"""Elements out of the user's pipeline and into shards, one variant at a time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from tpuctl.datasets._elements import Structure, structure_of, take_apart
from tpuctl.datasets.cache_models import CacheOptions
from tpuctl.datasets.formats._tfrecord import RecordWriter
from tpuctl.datasets.formats.container import Digest
from tpuctl.datasets.formats.example import encode_example
from tpuctl.datasets.sources import Source, count_elements
from tpuctl.datasets.state import Finished, Work
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.storage.local import publish, translated_write_errors

_SAMPLE_ELEMENTS = 64
_SAMPLE_S = 5.0
_FRAME_BYTES = 16


class Feed:
    """The records of one variant, the first few of which can be looked at beforehand."""

    def __init__(
        self,
        source: Source,
        options: CacheOptions,
        variant: int,
        agree: Callable[[Structure], None],
    ) -> None:
        self._source, self._agree, self.variant = source, agree, variant
        made = source.open(options.seed + variant)
        self.count = count_elements(made, at_most=options.elements)
        self._elements = islice(iter(made), options.elements)
        self._structure: Structure | None = None
        self._sampled: list[bytes] = []
        self._taken = 0

    def take_sample(self) -> list[tuple[int, float]]:
        """Look at the first elements, 64 or 5 seconds of them: bytes and seconds of each."""
        sample: list[tuple[int, float]] = []
        begun_s = time.monotonic()
        while len(sample) < _SAMPLE_ELEMENTS and time.monotonic() - begun_s < _SAMPLE_S:
            started_s = time.monotonic()
            record = self._next()
            if record is None:
                break
            self._sampled.append(record)
            sample.append((len(record) + _FRAME_BYTES, time.monotonic() - started_s))
        if not sample:
            raise self.nothing()
        # The first element pays for starting up; where there are others, they know better.
        if len(sample) > 2:
            sample[0] = (sample[0][0], sample[1][1])
        return sample

    def nothing(self) -> InvalidInputError:
        """Say that there is nothing to keep."""
        return InvalidInputError(f"{self._source.text} gave no element.")

    def records(self) -> Iterator[bytes]:
        """Yield every record; raises TargetError and InvalidInputError."""
        return chain(self._drain_sample(), iter(self._next, None))

    def _drain_sample(self) -> Iterator[bytes]:
        while self._sampled:
            yield self._sampled.pop(0)

    def _next(self) -> bytes | None:
        try:
            element = next(self._elements)
        except StopIteration:
            return None
        except TpuctlError:
            raise
        except Exception as error:
            raise self._source.failed(error, f"making element {self._taken}") from error
        try:
            if self._structure is None:
                self._structure = structure_of(element)
                self._agree(self._structure)
            features = take_apart(element, self._structure)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"Could not keep element {self._taken} of {self._source.text}: {error}.",
                hint="Elements are nested tuples and dicts of arrays, numbers, bytes or strings.",
            ) from error
        key = f"{self.variant}/{self._taken}".encode()
        self._taken += 1
        return encode_example({"key": key, **features})


def write_variant(
    feed: Feed,
    work: Work,
    shard_bytes: int,
    tell: Callable[[int], None],
    may_go_on: Callable[[int], None],
) -> list[Finished]:
    """Write every record of a feed into shards of about that size, and finish them together.

    `tell` hears how many elements there are, `may_go_on` before each shard but the first. Raises
    WriteError, and TargetError and InvalidInputError for what the pipeline does.
    """
    records = feed.records()
    parts: list[_Part] = []
    start = 0
    while (record := next(records, None)) is not None:
        if parts:
            may_go_on(start)
        path = work.part(f"v{feed.variant:03}-{len(parts):05}")
        with translated_write_errors(path), path.open("wb") as file:
            writer = RecordWriter(file)
            writer.write(record)
            count = 1
            while writer.size_bytes < shard_bytes and (record := next(records, None)) is not None:
                writer.write(record)
                count += 1
                tell(start + count)
        parts.append(_Part(path, writer.digest(), start, count))
        start += count
    if not parts:
        raise feed.nothing()
    return [_finish(work, feed.variant, number, parts) for number in range(len(parts))]


@dataclass(frozen=True)
class _Part:
    """A complete file of records whose final name depends on how many others there are."""

    path: Path
    digest: Digest
    start: int
    count: int


def _finish(work: Work, variant: int, number: int, parts: Sequence[_Part]) -> Finished:
    part = parts[number]
    job = f"v{variant:03}-{number:05}-of-{len(parts):05}"
    publish(part.path, work.shard(job))
    return Finished(
        job=job,
        name=f"{job}-{part.digest.crc32c}.tfrecord",
        bytes=part.digest.bytes,
        records=part.count,
        crc32c=part.digest.crc32c,
        sha256=part.digest.sha256,
        first_key=f"{variant}/{part.start}",
        last_key=f"{variant}/{part.start + part.count - 1}",
        salvaged=0,
        bytes_in=0,
        left_out=(),
    )
