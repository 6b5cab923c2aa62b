"""Whom the samples of a stack are credited to."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.waiting import wait_until
from tpuctl.profiling.frameworks.iterables import LINE, remember_lines
from tpuctl.profiling.frameworks.stacks import StackSampler, producer_of
from tpuctl.usercode.frames import no_collection

pytestmark = pytest.mark.slow

# A process of its own: the timer of a test's time limit has the signal here.
PROGRAM = """
import json, sys
import numpy as np
from tpuctl.profiling.frameworks.iterables import iterate
from tpuctl.profiling.frameworks.stacks import StackSampler, name_producer

PICTURES = np.ones((4, 512, 512, 3), np.float32)

def scaled():
    while True:
        yield PICTURES / 255.0

class Scaled:
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        return PICTURES / 255.0

def named():
    return name_producer(scaled(), scaled())

def indexed():
    return name_producer(Scaled(), iterate(Scaled()))

def taken(iterator):
    sampler = StackSampler(sys.argv[1])
    sampler.start()
    for _ in range(5_000):
        next(iterator)
        if sum(each.count for each in list(sampler.samples.values())) > 20:
            break
    sampler.stop()
    cpu_s = {name: each.cpu_s for (name, _), each in sampler.samples.items()}
    return max(cpu_s, key=cpu_s.get)

print(json.dumps({make.__name__: taken(make()) for make in (scaled, named, indexed)}))
"""


@pytest.fixture(scope="module")
def costliest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The function that most CPU time is credited to, where a loop takes from an iterator."""
    folder = tmp_path_factory.mktemp("stacks")
    place = folder / "program.py"
    place.write_text(PROGRAM)
    command = [sys.executable, str(place), str(folder)]
    found: dict[str, str] = json.loads(subprocess.check_output(command, text=True, timeout=120))
    return found


def test_an_operation_before_a_yield_is_the_generators(costliest: dict[str, str]) -> None:
    assert costliest["named"] == "scaled"


def test_without_the_name_of_the_giver_it_would_be_the_takers(costliest: dict[str, str]) -> None:
    assert costliest["scaled"] == "taken"


def test_an_operation_before_a_return_is_the_data_sets(costliest: dict[str, str]) -> None:
    assert costliest["indexed"] == "Scaled.__getitem__"


def numbers() -> Iterator[int]:
    yield 1


def test_what_a_library_gives_has_no_giver_of_the_users(tmp_path: Path) -> None:
    assert producer_of(iter([1])) is None
    assert producer_of(None) is None
    assert producer_of(tmp_path) is None
    assert producer_of(numbers()) == ("numbers", f"{__file__}:{numbers.__code__.co_firstlineno}")


DECODING = """
import json, sys
from PIL import Image
from tpuctl.profiling.frameworks.iterables import iterate
from tpuctl.profiling.frameworks.stacks import StackSampler
import site_packages_like

class Own:
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        image = Image.open(sys.argv[2])
        image = image.convert("RGB")
        return image

class Shared(site_packages_like.Images):
    pass

found = {}
for number, data in enumerate((iterate(Own()), site_packages_like.loader(Shared(sys.argv[2])))):
    sampler = StackSampler(sys.argv[1])
    sampler.start()
    for _ in range(5_000):
        next(data)
        if any("decode" in name for name, _ in list(sampler.samples)):
            break
    sampler.stop()
    found[number] = [list(key) for key in sampler.samples]
print(json.dumps(found))
"""
# As PyTorch's loader takes from a data set of torchvision: no frame of the user's in between.
LIBRARY = """
from PIL import Image

class Fetcher:
    def __init__(self, dataset):
        self.dataset = dataset
    def fetch(self, index):
        return [self.dataset[each] for each in (index,)]

class Images:
    def __init__(self, path):
        self.path = path
    def __getitem__(self, index):
        return open_image(self.path)

def open_image(path):
    return Image.open(path).convert("RGB")

def loader(dataset):
    fetcher = Fetcher(dataset)
    while True:
        yield fetcher.fetch(0)
"""


def test_decoding_is_a_stage_and_names_the_call_that_needs_the_pixels(tmp_path: Path) -> None:
    from PIL import Image

    image = tmp_path / "large.jpg"
    Image.effect_mandelbrot((1500, 1000), (-2, -1, 1, 1), 30).convert("RGB").save(image)
    program = tmp_path / "program.py"
    program.write_text(DECODING)
    library = tmp_path / "site-packages" / "torch"
    library.mkdir(parents=True)
    (library / "site_packages_like.py").write_text(LIBRARY)
    command = [sys.executable, str(program), str(tmp_path), str(image)]
    environment = {**os.environ, "PYTHONPATH": str(library)}
    found = json.loads(subprocess.check_output(command, text=True, timeout=120, env=environment))
    assert ["image decode in Own.__getitem__", f"{program}:13"] in found["0"]
    assert ["image decode in Shared.open_image", ""] in found["1"]


RANDOM = """
import sys
import textwrap
import threading
import numpy as np
from tpuctl.profiling.frameworks.iterables import sampled_costs
from tpuctl.profiling.frameworks.stacks import StackSampler

def cropped():
    start = np.random.randint(9)
    return sum(range(20_000))

def scaled():
    return sum(range(20_000))

sampler = StackSampler(sys.argv[1])
sampler.start()
while len(sampler.samples) < 3 or min(each.count for each in list(sampler.samples.values())) < 3:
    cropped()
    scaled()
sampler.stop()
print({each.name: each.is_random for each in sampled_costs(sys.argv[1], lanes=1)})
"""


def test_a_function_that_draws_random_numbers_is_random(tmp_path: Path) -> None:
    place = tmp_path / "program.py"
    place.write_text(RANDOM)
    command = [sys.executable, str(place), str(tmp_path)]
    found = subprocess.check_output(command, text=True, timeout=120)
    assert "'cropped': True" in found
    assert "'scaled': False" in found


THREADS = """
import queue, sys, threading
from tpuctl.profiling.frameworks.iterables import sampled_costs
from tpuctl.profiling.frameworks.stacks import StackSampler

ready = queue.Queue(2)

def worked():
    # Longer than a sample's interval: what is sampled between two calls is not its doing.
    return sum(range(2_000_000))

def fill():
    while True:
        ready.put(worked())

threading.Thread(target=fill, daemon=True).start()

def taken():
    sampler = StackSampler(sys.argv[1])
    sampler.start()
    while sum(each.count for each in list(sampler.samples.values())) < 30:
        ready.get()
    sampler.stop()

taken()
costs = sampled_costs(sys.argv[1], lanes=1)
print(max(costs, key=lambda each: each.cpu_s).name)
"""


def test_what_a_thread_of_the_program_runs_is_credited_to_its_function(tmp_path: Path) -> None:
    place = tmp_path / "program.py"
    place.write_text(THREADS)
    command = [sys.executable, str(place), str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=120).strip() == "worked"


FORKS = """
import multiprocessing.util, sys
from tpuctl.profiling.frameworks.iterables import read_stacks, sampled_costs, start_in_child
from tpuctl.profiling.frameworks.stacks import StackSampler

def worked():
    return sum(range(2_000_000))

def fill(queue):
    while True:
        queue.put(worked())

sampler = StackSampler(sys.argv[1])
multiprocessing.util.register_after_fork(sampler, start_in_child)
sampler.start()
fork = multiprocessing.get_context("fork")
queue = fork.Queue(2)
workers = [fork.Process(target=fill, args=(queue,), daemon=True) for _ in range(2)]
for each in workers:
    each.start()

def taken():
    while not any(each.threads == 2 for each in read_stacks(sys.argv[1]).values()):
        queue.get()

taken()
costs = sampled_costs(sys.argv[1], lanes=1, own=sampler)
found = max(costs, key=lambda each: each.cpu_s)
print(found.name, found.parallelism)
for each in workers:
    each.terminate()
sampler.stop()
"""


def test_what_forked_processes_run_is_credited_to_their_functions(tmp_path: Path) -> None:
    place = tmp_path / "program.py"
    place.write_text(FORKS)
    command = [sys.executable, str(place), str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=120).strip() == "worked 2"


GARBAGE = """
import gc, os, sys, threading, time
from tpuctl.profiling.frameworks.stacks import StackSampler

class Closes:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.stat("/")

def begin_and_end():
    while True:
        each = threading.Thread(target=Closes)
        each.start()
        each.join()

gc.set_threshold(5)
threading.Thread(target=begin_and_end, daemon=True).start()
sampler = StackSampler(sys.argv[1])
sampler.start()
while time.process_time() < 3:
    Closes()
    sum(range(2_000))
sampler.stop()
print("ended")
"""


def test_garbage_that_lets_threads_end_does_not_stop_the_program(tmp_path: Path) -> None:
    place = tmp_path / "program.py"
    place.write_text(GARBAGE)
    command = [sys.executable, str(place), str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=120).strip() == "ended"


KERAS = "/x/site-packages/keras/src/trainers/data_adapters/py_dataset_adapter.py"
PHOTOS = """
import sys
import textwrap
import threading
class Generator:
    def transform(self):
        return sys._getframe()
def load():
    return sys._getframe()
class Photos:
    def __init__(self, call):
        self.call = call
    def _batch(self):
        return self.call()
    def __getitem__(self, index):
        return self._batch()
class Part:
    def __init__(self, photos):
        self.photos = photos
    def __getitem__(self, index):
        return [self.photos[each] for each in (0,)][0]
"""


@pytest.mark.parametrize(
    ("call", "name"),
    [("load", "Photos.load"), ("Generator().transform", "Generator.transform")],
)
@pytest.mark.parametrize("whole", ["Photos({})", "Part(Photos({}))"])
def test_the_work_of_a_librarys_data_set_is_the_call_that_leaves_it(
    call: str, name: str, whole: str
) -> None:
    code: dict[str, Any] = {}
    exec(compile(PHOTOS, "/x/site-packages/keras/src/photos.py", "exec"), code)
    reader = f"def read():\n    return {whole.format(call)}[0]"
    exec(compile(reader, KERAS, "exec"), code)
    sampler = StackSampler("")
    assert sampler.stage_of(code["read"]())[0] == (name, "")


def test_a_librarys_object_knows_the_line_of_the_user_that_made_it() -> None:
    code: dict[str, Any] = {}
    text = "class Data:\n    pass\ndef from_folder():\n    return Data()\n"
    exec(compile(text, "/x/site-packages/library.py", "exec"), code)
    remember_lines(code["Data"])
    remember_lines(code["Data"])
    made = code["from_folder"]()
    line = test_a_librarys_object_knows_the_line_of_the_user_that_made_it.__code__.co_firstlineno
    assert getattr(made, LINE) == ("from_folder", f"{__file__}:{line + 6}")


def test_collection_comes_back_when_the_last_of_two_threads_is_done_with_frames() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with no_collection():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    assert gc.isenabled()
    with no_collection():
        thread.start()
        inside.wait()
    try:
        assert not gc.isenabled()
        with warnings.catch_warnings():
            # Python 3.12 and newer advise against forking beside threads, as loaders do.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(not gc.isenabled())
        assert os.waitpid(child, 0)[1] == 0
    finally:
        leave.set()
        thread.join()
    assert gc.isenabled()


def test_no_collection_runs_while_the_frames_of_other_threads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before this, another thread could leave a frame meanwhile, and any object came instead."""
    begun, ended = threading.Event(), threading.Event()

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            begun.set()
            while not ended.is_set():
                pass

    collected_in: set[str] = set()

    def note(_phase: str, _about: dict[str, int]) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            collected_in.add(frame.f_code.co_name)
            frame = frame.f_back

    sampler = StackSampler(str(tmp_path))
    monkeypatch.setattr(sampler, "_is_running", True)

    def sampled() -> bool:
        sampler._in_cpu(0, sys._getframe())
        return "deep" in {name for name, _ in sampler.samples}

    thread = threading.Thread(target=deep, args=(50,))
    thread.start()
    threshold = gc.get_threshold()
    try:
        begun.wait()
        gc.callbacks.append(note)
        gc.set_threshold(1)
        wait_until(sampled)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
        ended.set()
        thread.join()
    assert "stage_of" not in collected_in


def test_an_error_in_a_handler_does_not_reach_the_program() -> None:
    program = """
        import time
        from tpuctl.profiling.frameworks.timers import start_timers
        calls = []
        def fail(number, frame):
            calls.append(number)
            raise AttributeError("ours")
        (timer,) = start_timers((time.CLOCK_MONOTONIC, 0.001, fail))
        timer.resume()
        while len(calls) < 3:
            pass
        print("unharmed")
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unharmed\n", "")
