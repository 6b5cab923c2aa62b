"""The user's pipeline as elements, and the shards they are written to, one variant at a time."""

import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.datasets._elements import Structure, structure_of, take_apart
from tpuctl.datasets.formats._tfrecord import RecordWriter
from tpuctl.datasets.formats.container import Digest
from tpuctl.datasets.formats.records import encode_example
from tpuctl.datasets.models import CacheOptions
from tpuctl.datasets.shards.work import Finished, Work
from tpuctl.errors import InvalidInputError, NotFoundError, TargetError, TpuctlError, UsageError
from tpuctl.storage.local import publish, translated_write_errors

_INFINITE = -1


@dataclass(frozen=True)
class PipelineSource:
    """A function of the user's that returns a tf.data pipeline or any other iterable."""

    text: str
    function: Callable[..., Any]
    code_sha256: str

    @property
    def takes_seed(self) -> bool:
        """Whether it can be told which variant to make."""
        return "seed" in inspect.signature(self.function).parameters

    def open(self, seed: int) -> Iterable[Any]:
        """Make the pipeline for one variant; raises TargetError."""
        _seed_everything(seed)
        try:
            made = self.function(seed=seed) if self.takes_seed else self.function()
        except Exception as error:
            raise self.failed(error, "calling it") from error
        if not isinstance(made, Iterable):
            raise InvalidInputError(
                f"{self.text} returned a {type(made).__name__}, which has no elements.",
                hint="Return a tf.data.Dataset or anything else that can be iterated over.",
            )
        return made

    def failed(self, error: Exception, doing: str) -> TargetError:
        """Turn an exception of the user's code into our error."""
        first = str(error).strip().splitlines()[:1]
        detail = f"{type(error).__name__}: {''.join(first)}"
        return TargetError(f"{self.text} failed while {doing}: {detail}")


def load_source(text: str) -> PipelineSource:
    """Import the module or file and find the function in it.

    Raises UsageError, NotFoundError, InvalidInputError and TargetError.
    """
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise UsageError(
            f"{text!r} is no pipeline; data cache takes module:function or path.py:function.",
            hint="For a folder of photographs: tpuctl data presize SRC DST",
        )
    module = _load(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(f"{place} has no function {name}.")
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name != "seed"
    ]
    if needed:
        raise InvalidInputError(
            f"{text} needs arguments ({', '.join(needed)}); data cache gives it at most a seed.",
            hint="Give them defaults, or name a function that calls it.",
        )
    code = Path(module.__file__).read_bytes() if module.__file__ else b""
    return PipelineSource(text, function, hashlib.sha256(code).hexdigest())


def count_elements(made: Iterable[Any], *, at_most: int | None) -> int | None:
    """Say how many elements there will be; None when nobody knows.

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


def _load(place: str) -> ModuleType:
    if place.endswith(".py") and not Path(place).is_file():
        raise NotFoundError(f"There is no file {place}.", hint="Check the path.")
    try:
        return _run_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name == place.partition(".")[0]:
            raise NotFoundError(
                f"There is no module {place}.", hint="Write path.py:function."
            ) from error
        raise TargetError(f"Importing {place} failed: {error}") from error
    except Exception as error:
        raise TargetError(f"Importing {place} failed: {type(error).__name__}: {error}") from error


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _seed_everything(seed: int) -> None:
    """Seed whatever random numbers the pipeline may draw; only what it has imported itself."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


_SAMPLE_ELEMENTS = 64
_SAMPLE_S = 5.0
_FRAME_BYTES = 16


class Feed:
    """The records of one variant, the first few of which can be looked at beforehand."""

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
