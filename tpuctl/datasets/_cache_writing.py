"""The user's pipeline as elements, and the shards they are written to, one variant at a time."""

import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tpuctl.datasets._elements import Structure, flatten, structure_of
from tpuctl.datasets.formats._tfrecord import FOOTER_BYTES, HEADER_BYTES, RecordWriter
from tpuctl.datasets.formats.records import Digest, encode_example
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.models import CacheOptions
from tpuctl.datasets.shards.work import Work
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.storage.local import open_own, publish, translated_write_errors
from tpuctl.usercode.function import (
    Function,
    load_function,
    parameters,
    parse_function,
    user_code_errors,
)

_INFINITE = -1
_SAMPLE_ELEMENTS = 64
_SAMPLE_S = 5.0
_END = object()


@dataclass(frozen=True)
class PipelineSource:
    """A function of the user's that returns a tf.data pipeline or any other iterable."""

    text: str
    name: Function
    function: Callable[..., Any]
    code_sha256: str

    @property
    def takes_seed(self) -> bool:
        """Whether the function takes `seed`."""
        return "seed" in parameters(self.function)

    def open(self, seed: int) -> Iterable[Any]:
        """Make the pipeline for one variant; raises TargetError."""
        _seed_everything(seed)
        with user_code_errors(f"Calling {self.text} failed", self.name):
            made = self.function(seed=seed) if self.takes_seed else self.function()
        if not isinstance(made, Iterable):
            raise InvalidInputError(
                f"{self.text} returned a {type(made).__name__}, which has no elements.",
                hint="Return a tf.data.Dataset or anything else that can be iterated over.",
            )
        return made


def load_source(text: str) -> PipelineSource:
    """Import the module or file and find the function in it.

    Raises UsageError, NotFoundError, InvalidInputError and TargetError.
    """
    name = parse_function(text)
    if name is None:
        raise UsageError(
            f"{text!r} is not a pipeline; data cache takes module:function or path.py:function.",
            hint="For a folder of images: tpuctl data presize SRC DST",
        )
    function = load_function(name, given=("seed",), caller="data cache")
    file = name.place if name.place.endswith(".py") else sys.modules[name.place].__file__
    code = Path(file).read_bytes() if file else b""
    return PipelineSource(text, name, function, hashlib.sha256(code).hexdigest())


def count_elements(made: Iterable[Any], *, at_most: int | None) -> int | None:
    """Return how many elements there will be; None if that is unknown.

    Raises UsageError for a pipeline that never ends, unless it is cut off.
    """
    cardinality = getattr(made, "cardinality", None)
    count = int(cardinality()) if cardinality is not None else None
    if count == _INFINITE and at_most is None:
        raise UsageError(
            "The pipeline never ends; say how much of it to keep.",
            hint="Write --elements N, or remove .repeat().",
        )
    if count is None and isinstance(made, Sized):
        count = len(made)
    if count is None or count < 0:
        return at_most
    return count if at_most is None else min(count, at_most)


def _seed_everything(seed: int) -> None:
    """Seed the random generators of all libraries that the pipeline has imported."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


class Feed:
    """The records of one variant, the first few of which can be sampled before."""

    def __init__(
        self,
        source: PipelineSource,
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
        """Measure the first elements, up to 64 or for 5 seconds: bytes and seconds of each."""
        sample: list[tuple[int, float]] = []
        begun_s = time.monotonic()
        while len(sample) < _SAMPLE_ELEMENTS and time.monotonic() - begun_s < _SAMPLE_S:
            started_s = time.monotonic()
            record = self._next()
            if record is None:
                break
            self._sampled.append(record)
            sample.append((HEADER_BYTES + len(record) + FOOTER_BYTES, time.monotonic() - started_s))
        if not sample:
            raise self.no_elements_error()
        # The first element pays for starting up; replace its time if there are others.
        if len(sample) > 2:
            sample[0] = (sample[0][0], sample[1][1])
        return sample

    def no_elements_error(self) -> InvalidInputError:
        """Return the error for a pipeline without elements."""
        return InvalidInputError(f"{self._source.text} yielded no elements.")

    def records(self) -> Iterator[bytes]:
        """Yield every record; raises TargetError and InvalidInputError."""
        sampled, self._sampled = self._sampled, []
        return chain(sampled, iter(self._next, None))

    def _next(self) -> bytes | None:
        doing = f"{self._source.text} failed while making element {self._taken}"
        with user_code_errors(doing, self._source.name, "any(False for _ in {})"):
            element = next(self._elements, _END)
        if element is _END:
            return None
        try:
            if self._structure is None:
                self._structure = structure_of(element)
                self._agree(self._structure)
            features = flatten(element, self._structure)
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
    report: Callable[[int], None],
    check: Callable[[int], None] | None,
) -> list[FinishedShard]:
    """Write every record of a feed into shards of about that size, and finish them together.

    `report` is called with the number of elements so far, `check` too before each shard but the
    first. Raises WriteError, and TargetError and InvalidInputError for what the pipeline does.
    """
    records = feed.records()
    parts: list[_Part] = []
    start = 0
    while (record := next(records, None)) is not None:
        if parts and check:
            check(start)
        path = work.part(f"v{feed.variant:03}-{len(parts):05}")
        with translated_write_errors(path), open_own(path, "wb") as file:
            writer = RecordWriter(file)
            writer.write(record)
            count = 1
            while writer.size_bytes < shard_bytes and (record := next(records, None)) is not None:
                writer.write(record)
                count += 1
                report(start + count)
        parts.append(_Part(path, writer.digest(), start, count))
        start += count
    if not parts:
        raise feed.no_elements_error()
    return [_finish(work, feed.variant, number, parts) for number in range(len(parts))]


@dataclass(frozen=True)
class _Part:
    """A complete file of records whose final name depends on how many others there are."""

    path: Path
    digest: Digest
    start: int
    count: int


def _finish(work: Work, variant: int, number: int, parts: Sequence[_Part]) -> FinishedShard:
    part = parts[number]
    job = f"v{variant:03}-{number:05}-of-{len(parts):05}"
    publish(part.path, work.shard(job))
    return FinishedShard(
        job=job,
        name=f"{job}-{part.digest.crc32c}.tfrecord",
        bytes=part.digest.bytes,
        records=part.count,
        crc32c=part.digest.crc32c,
        sha256=part.digest.sha256,
        first_key=f"{variant}/{part.start}",
        last_key=f"{variant}/{part.start + part.count - 1}",
    )
