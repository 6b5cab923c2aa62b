"""`profile run` on pipelines that are not TensorFlow's: generators, Grain, PyTorch.

Whether the machine is quiet is not ours to say: a verdict is asserted where busy neighbours cannot
rightly change it, else the signals that it stands on.
"""

import importlib.util
import inspect
import os
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline_cases import up_to_three_times
from tpuctl.errors import InvalidInputError, TargetError
from tpuctl.profiling.frameworks.iterables import open_iterable
from tpuctl.profiling.frameworks.meter import FEW, Meter, Metered
from tpuctl.profiling.frameworks.source import count_examples, holds_a_batch
from tpuctl.profiling.measure.loop import BatchReader
from tpuctl.profiling.measure.probe import Sampler
from tpuctl.profiling.measure.sources import kind_of, open_source
from tpuctl.profiling.models import Profile
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.request import Request, parse_target

BODY = """
import time
import numpy as np

def fetch(index):
    time.sleep(0.01)
    return np.full((8, 8), index % 7, "float32")

def count(index):
    total = 0
    for value in range(60_000):
        total += value
    return np.full((8, 8), total % 7, "float32")

def waiting():
    while True:
        yield np.stack([fetch(index) for index in range(4)])

def mixed():
    while True:
        yield np.stack([count(index) + count(index) + fetch(index) for index in range(2)])

def breaks():
    yield np.zeros((4, 2))
    raise OSError("the disk is gone")

def leaves():
    yield np.zeros((4, 2))
    raise SystemExit(5)

def asks():
    yield np.full((4, 2), int(input("how many? ")))

def nothing():
    return iter(())

def number():
    return 7

def ragged():
    for index in range(1 << 30):
        yield [np.zeros(1 + index % 5), "text", None]

def pooled():
    from multiprocessing.pool import ThreadPool
    with ThreadPool(3) as pool:
        for image in pool.imap(fetch, range(1 << 16)):
            yield np.stack([image] * 4)

class Pictures:
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return fetch(index)

def by_index():
    return Pictures()

def grain_threads():
    import grain
    data = grain.MapDataset.range(1 << 20).map(count).map(fetch).batch(4)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=4))

def grain_loader():
    import grain
    class Tokenize(grain.transforms.Map):
        def map(self, element):
            return count(element)
    return grain.DataLoader(
        data_source=grain.sources.RangeDataSource(0, 1 << 20, 1),
        sampler=grain.samplers.IndexSampler(1 << 20),
        operations=[Tokenize(), grain.transforms.Batch(4)],
    )

def grain_operations():
    import functools
    from grain import python as grain
    return grain.DataLoader(
        data_source=range(1 << 20),
        sampler=grain.IndexSampler(1 << 20, shard_options=grain.NoSharding(), num_epochs=1),
        operations=[grain.MapOperation(functools.partial(count)), grain.Batch(4)],
    )

def grain_iterator():
    return iter(grain_loader())

def grain_workers():
    import grain
    data = grain.MapDataset.range(1 << 20).map(count).batch(4)
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=1)).mp_prefetch(options)

def torch_workers():
    import torch.utils.data
    return torch.utils.data.DataLoader(Pictures(), batch_size=4, num_workers=2)

class Wrapper:
    def __init__(self, loader):
        self.pipeline = [loader]
    def __iter__(self):
        for batch in self.pipeline[0]:
            yield batch, batch

def torch_wrapped():
    return Wrapper(torch_workers())

def torch_alone():
    import torch.utils.data
    class Counting(Pictures):
        def __getitem__(self, index):
            return count(index)
    return torch.utils.data.DataLoader(Counting(), batch_size=4)
"""
needs_grain = pytest.mark.skipif(
    importlib.util.find_spec("grain") is None, reason="Grain is not installed"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed (its package brings a GPU's libraries, too large for CI)",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("sources") / "pipelines.py"
    file.write_text(textwrap.dedent(BODY))
    return str(file)


def take(place: str, name: str, **options: Any) -> Profile:
    return profile_target(f"{place}:{name}", seconds=1.5, **options)


def costliest(profile: Profile) -> str:
    return max(profile.stages, key=lambda stage: stage.cpu_ms_per_example).name


def bottleneck(profile: Profile) -> str | None:
    """Return the stage that limits the rate; it may wait, and so cost hardly any CPU time."""
    return next((stage.name for stage in profile.stages if stage.is_bottleneck), None)


@pytest.mark.slow
def test_a_generator_that_waits_is_waiting_whatever_else_runs_here(place: str) -> None:
    profile = up_to_three_times(lambda: take(place, "waiting"), lambda found: found.verdict == "io")
    assert (profile.kind, profile.batch_size) == ("iterable", 4)
    assert profile.verdict == "io"
    fetch = next(stage for stage in profile.stages if stage.is_bottleneck)
    assert (fetch.name, fetch.location) == ("fetch", f"{place}:5")
    assert fetch.active_ms_per_example > 5 * fetch.cpu_ms_per_example
    assert [advice.code for advice in profile.advice] == ["parallel_calls"]


@pytest.mark.slow
def test_the_function_that_works_is_told_from_the_one_that_waits(place: str) -> None:
    assert costliest(take(place, "mixed")) == "count"


@pytest.mark.slow
def test_what_can_only_be_indexed_is_iterated_by_index(place: str) -> None:
    profile = take(place, "by_index", batch_size=5)
    assert profile.batch_size == 5
    assert "does not batch" in " ".join(profile.notes)
    assert "fetch" in {stage.name for stage in profile.stages}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("breaks", TargetError, r"OSError: the disk is gone .*pipelines.py:\d+"),
        ("leaves", TargetError, r"SystemExit: 5 .*pipelines.py:\d+"),
        ("asks", TargetError, r"EOFError: .*pipelines.py:\d+"),
        ("nothing", TargetError, "empty"),
        ("number", InvalidInputError, "cannot be iterated"),
    ],
)
def test_an_iterable_that_fails_is_one_clear_error(
    place: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        take(place, name)


@pytest.mark.slow
def test_ragged_elements_of_any_kind_are_counted(place: str) -> None:
    profile = take(place, "ragged", batch_size=100)
    assert profile.batch_size == 100
    assert (profile.pipeline_examples_per_s or 0) > 0


@pytest.mark.slow
def test_what_a_pool_of_threads_does_for_a_generator_is_seen(place: str) -> None:
    profile = up_to_three_times(lambda: take(place, "pooled"), lambda found: found.verdict == "io")
    fetch = next(stage for stage in profile.stages if stage.is_bottleneck)
    assert (profile.verdict, fetch.name, fetch.parallelism) == ("io", "fetch", 3)
    assert fetch.calls_in_flight > 1.5
    assert [advice.change for advice in profile.advice] == [
        "concurrent.futures.ThreadPoolExecutor(12).map(fetch, ...)"
    ]


@needs_grain
@pytest.mark.slow
def test_the_functions_of_a_grain_pipeline_count_themselves_in_its_threads(place: str) -> None:
    profile = take(place, "grain_threads")
    assert (profile.kind, profile.batch_size) == ("grain", 4)
    assert [stage.name for stage in profile.stages] == ["count", "fetch", "batch"]
    assert costliest(profile) == "count"
    assert {stage.parallelism for stage in profile.stages} == {4}
    assert profile.stages[0].location == f"{place}:9"


@needs_grain
@pytest.mark.slow
def test_a_transformation_in_a_grain_loader_has_its_name_and_its_one_thread(place: str) -> None:
    # What the loader's iterator yields is measured in the same way.
    profile = take(place, "grain_iterator")
    assert costliest(profile) == "Tokenize"
    found = {stage.name: stage for stage in profile.stages}
    assert (found["Tokenize"].location or "").startswith(f"{place}:")
    assert {found[name].parallelism for name in ("Tokenize", "batch")} == {1}
    assert profile.settings["loader"] == "grain_loader"


@needs_grain
@pytest.mark.slow
def test_an_older_operation_of_a_grain_loader_has_the_name_of_its_function(place: str) -> None:
    assert costliest(take(place, "grain_operations")) == "count"


@needs_grain
@pytest.mark.slow
def test_the_functions_of_a_grain_pipeline_count_themselves_in_its_workers(place: str) -> None:
    profile = profile_target(f"{place}:grain_workers", seconds=15, steps=20)
    assert costliest(profile) == "count"
    assert profile.settings["num_workers"] == 1


@needs_torch
@pytest.mark.slow
def test_the_workers_of_a_torch_loader_are_seen(place: str) -> None:
    profile = up_to_three_times(
        lambda: take(place, "torch_workers"), lambda found: found.verdict == "io"
    )
    assert (profile.kind, profile.batch_size) == ("torch", 4)
    assert profile.verdict == "io"
    fetch = next(stage for stage in profile.stages if stage.name == "fetch")
    assert fetch.calls_in_flight > 1.2
    assert "num_workers" in profile.advice[0].change


@needs_torch
@pytest.mark.slow
def test_the_workers_of_a_loader_inside_another_object_are_seen(place: str) -> None:
    profile = up_to_three_times(
        lambda: take(place, "torch_wrapped"), lambda each: bottleneck(each) == "fetch"
    )
    assert (profile.kind, profile.batch_size) == ("torch", 4)
    assert bottleneck(profile) == "fetch"


@needs_torch
@pytest.mark.slow
def test_a_torch_loader_without_workers_runs_in_one_process(place: str) -> None:
    profile = take(place, "torch_alone")
    assert costliest(profile) == "count"
    if profile.signals and profile.signals.taken_s < 0.1 * profile.signals.wall_s:
        assert profile.verdict in ("gil", "serial")


@needs_torch
@pytest.mark.slow
def test_advice_that_can_be_tried_is_measured_beside_its_prediction(place: str) -> None:
    profile = take(place, "torch_workers", verify=True)
    (advice,) = (each for each in profile.advice if each.code == "parallel_calls")
    assert advice.predicted_examples_per_s
    assert advice.measured_examples_per_s
    assert advice.measured_examples_per_s > 1.5 * (profile.pipeline_examples_per_s or 0)
    error = advice.predicted_examples_per_s / advice.measured_examples_per_s - 1
    assert advice.error_fraction == pytest.approx(error)


@pytest.mark.slow
def test_advice_that_cannot_be_tried_is_said_to_be_so(place: str) -> None:
    profile = take(place, "waiting", verify=True)
    assert not any(advice.measured_examples_per_s for advice in profile.advice)
    # Where other programs take the vCPUs, there may be no advice.
    assert "tried from outside" in " ".join(profile.notes) or profile.verdict == "stolen"


class Array:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("element", "examples", "is_batch"),
    [
        ((Array(32, 224, 224, 3), Array(32)), 32, True),
        ({"image": Array(16, 784)}, 16, True),
        (Array(224, 224, 3), 224, False),
        ((Array(224, 224, 3), 5), 224, False),
        ((Array(28, 28), Array()), 28, False),
        ((Array(28, 28, 3), Array(28, 28, 21)), 28, False),
        ((Array(64, 20, 3), Array(64, 20, 11), Array(64, 20)), 64, True),
        (Array(10), 10, False),
        (Array(32), 32, True),
        ("text", 1, False),
        (7, 1, False),
        (["a"] * 32, 32, True),
        (["a"] * 3, 3, False),
        (["a.jpg"] * 8, 8, True),
        ([("a.jpg", 1)] * 8, 8, True),
        ([(Array(224, 224, 3), 1)] * 8, 8, True),
        ([{"x": Array(5)}] * 8, 8, True),
        ([Array(224, 200 + side, 3) for side in range(8)], 8, True),
        ([Array(5), Array(7), Array(6), Array(5)], 4, True),
        ([Array(16), Array(16), Array(16), Array(16)], 16, True),
        ([Array(16, 2), Array(16, 3), Array(16, 1), Array(16, 1)], 16, True),
        ([Array(224, 224, 3), "a", 5, 6], 224, False),
        (("a.jpg", "cat", "train", "photo"), 4, False),
        (None, 1, False),
    ],
)
def test_batches_are_told_from_examples(element: object, examples: int, is_batch: bool) -> None:
    assert count_examples(element) == examples
    assert holds_a_batch(element, 32) == is_batch
    assert not holds_a_batch([5] * 8, 32, indexed=True)  # the tokens of one text


def test_calls_are_counted_over_processes_and_quick_ones_mostly_not_timed(tmp_path: Path) -> None:
    meter = Meter(str(tmp_path))
    quick = Metered(abs, meter, 0)
    for number in range(10 * FEW):
        quick(number)
    child = os.fork()
    if not child:
        Metered(sum, meter, 1)([1, 2])
        os._exit(0)
    os.waitpid(child, 0)
    first, second = meter.read(2)
    assert (first.calls, second.calls) == (10 * FEW, 1)
    assert 0 < first.cpu_s <= first.wall_s * 1.5
    assert len(list(tmp_path.glob("*.meter"))) == 2


def test_a_damaged_counter_file_is_left_out(tmp_path: Path) -> None:
    meter = Meter(str(tmp_path))
    Metered(abs, meter, 0)(1)
    (tmp_path / "1-1.meter").write_bytes(b"half")
    assert meter.read(1)[0].calls == 1


def test_what_cannot_be_iterated_has_no_kind() -> None:
    assert kind_of(iter([])) == "iterable"
    assert kind_of([1]) == "iterable"
    assert [kind_of(made) for made in (7, "text", {"a": 1}, None)] == [None] * 4


class Odd:
    """An iterator that cannot be asked whether it is true, as those of some loaders."""

    def __iter__(self) -> "Odd":
        return self

    def __next__(self) -> list[int]:
        return [0, 1]

    def __len__(self) -> int:
        raise TypeError("it has no len()")


def test_nothing_is_asked_of_an_iterator_but_its_elements(tmp_path: Path) -> None:
    source = open_iterable(Odd(), Odd, str(tmp_path), name="odd", batch_size=2)
    source.starts = ()
    reader = BatchReader(source, batch_size=2)
    assert reader.step() == 2
    reader.poll()


def test_a_fork_while_a_pipeline_opens_does_not_wait_for_the_thread_that_samples_it(
    tmp_path: Path,
) -> None:
    """The loader of `num_workers` forks at the start of every epoch."""
    asked, children = threading.Event(), []

    def fork() -> Iterator[list[int]]:
        asked.clear()
        # The thread is about to read what this opens.
        assert asked.wait(10)
        children.append(os.fork() or os._exit(0))
        return iter([[1, 2]])

    def sample() -> None:
        asked.set()
        reader.poll()

    source = open_iterable([], list, str(tmp_path), name="forks", batch_size=2)
    source.starts, source.opened = (), fork
    reader, counts = BatchReader(source, batch_size=2), list[int]()
    sampler = Sampler(sample, every_s=0.001)
    loop = threading.Thread(
        target=lambda: counts.extend(reader.step() for _ in range(3)), daemon=True
    )
    loop.start()
    loop.join(30)
    sampler.end()
    assert counts == [2, 2, 2]
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def test_a_sample_that_waits_for_the_thread_that_forks_does_not_stop_it() -> None:
    lock, asked, has_forked = threading.Lock(), threading.Event(), threading.Event()

    def sample() -> None:
        asked.set()
        with lock:
            pass

    def fork() -> None:
        with lock:
            assert asked.wait(10)
            os.waitpid(os.fork() or os._exit(0), 0)
        asked.clear()
        # It goes on after the fork, once.
        assert asked.wait(10)
        has_forked.set()

    sampler = Sampler(sample, every_s=0.001)
    threading.Thread(target=fork, daemon=True).start()
    assert has_forked.wait(30)
    sampler.end()


def sized(batch_size=256):
    while True:
        yield np.zeros((batch_size, 1, 3, 4, 4)), np.zeros((batch_size, 1, 1))


@pytest.mark.parametrize(("keeps", "size"), [(True, 256), (False, 16)])
def test_a_function_keeps_its_own_batch_size_unless_another_one_is_asked_for(
    tmp_path: Path, keeps: bool, size: int
) -> None:
    place = tmp_path / "sized.py"
    place.write_text("import numpy as np\n" + inspect.getsource(sized))
    target = parse_target(f"{place}:sized")
    request = Request(target, 16, 32, 1.0, None, None, 3.0, keeps_batch_size=keeps)
    source = open_source(request, str(tmp_path))
    assert source.count(next(source.opened())) == source.batch_size == size
