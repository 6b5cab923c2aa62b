"""Which of the user's functions cost most in a stage that calls Python."""

import json
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline_cases import JPEG, measurement, phase, profile, up_to_three_times, write_target
from tests.warm_child import start_warm_child
from tpuctl.profiling.measure.loop import prompt_switches
from tpuctl.profiling.models import Profile, Stage
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.windows import StageCost
from tpuctl.usercode.frames import native_ids

PYTHON = {**JPEG, "augment": 6.0}
AUGMENT = "/home/me/train.py:7"
WALL_S, EXAMPLES = 5.0, 1330


def cost(name: str, milliseconds: float, *, ready: float = 1.0, threads: int = 2) -> StageCost:
    """What was sampled of a function that takes so long for each example."""
    wall_s = milliseconds * EXAMPLES / 1000
    place = f"/home/me/augment.py:{len(name)}" if name else None
    return StageCost(
        name, "Python", place, 9, wall_s, ready * wall_s, threads, "sampled", caller="unknown"
    )


def divided(*costs: StageCost, only_calls: bool = True, **signals: Any) -> Profile:
    """The profile of a pipeline whose `augment` calls Python."""
    free = replace(phase(active_ms=PYTHON, **signals), costs=costs)
    measured = measurement(free, python="augment", active_ms=PYTHON)
    chain = measured.chain.inputs[0].inputs[0]
    chain = replace(chain, only_calls=only_calls)
    batch = replace(measured.chain.inputs[0], inputs=(chain,))
    return profile(replace(measured, chain=replace(measured.chain, inputs=(batch,))))


def named(found: Profile, name: str) -> Stage:
    return next(stage for stage in found.stages if stage.name == name)


def test_the_functions_of_a_stage_share_its_time_and_name_their_lines() -> None:
    whole = named(divided(), "augment")
    found = divided(cost("rotate", 4.0), cost("blur", 1.0))
    rotate, blur = named(found, "rotate"), named(found, "blur")
    assert (rotate.location, rotate.caller) == ("/home/me/augment.py:6", AUGMENT)
    assert rotate.cpu_ms_per_example == pytest.approx(0.8 * whole.cpu_ms_per_example)
    assert blur.cpu_ms_per_example == pytest.approx(0.2 * whole.cpu_ms_per_example)
    assert [stage.index for stage in found.stages] == list(range(len(found.stages)))
    assert "augment" not in {stage.name for stage in found.stages}
    assert "decode uses most" in divided().headline
    assert "decode uses most" in found.headline


def test_a_function_that_waits_takes_time_but_no_vcpu() -> None:
    found = divided(cost("fetch", 4.0, ready=0.0), cost("blur", 1.0))
    assert named(found, "fetch").cpu_ms_per_example == 0
    assert named(found, "fetch").active_ms_per_example == pytest.approx(4.0)
    assert named(found, "blur").cpu_ms_per_example > 1


def test_a_delay_that_ended_in_a_short_function_does_not_make_the_others_wait() -> None:
    found = divided(cost("rotate", 4.0, ready=0.15), cost("blur", 0.02, ready=90.0))
    assert named(found, "rotate").cpu_ms_per_example > 10 * named(found, "blur").cpu_ms_per_example


def test_what_no_python_code_did_is_the_stages_own_if_it_has_operations() -> None:
    assert "augment" not in {each.name for each in divided(cost("blur", 3.0)).stages}
    found = divided(cost("blur", 3.0), only_calls=False)
    own, blur = named(found, "augment"), named(found, "blur")
    assert own.cpu_ms_per_example == pytest.approx(blur.cpu_ms_per_example)
    found = divided(cost("blur", 3.0), cost("", 1.0))
    own, blur = named(found, "augment"), named(found, "blur")
    assert own.cpu_ms_per_example == pytest.approx(blur.cpu_ms_per_example / 3)


def test_what_the_clocks_of_functions_leave_no_time_for_is_waiting_for_the_lock() -> None:
    free, held = (
        divided(cost("blur", 3.0), only_calls=False, gil_overshoot_p50_ms=late_ms)
        for late_ms in (0.1, 3.0)
    )
    own = [named(found, "augment").cpu_ms_per_example for found in (free, held)]
    blur = [named(found, "blur").cpu_ms_per_example for found in (free, held)]
    assert own[1] < 0.4 * own[0]
    assert sum(own) + sum(blur) == pytest.approx(2 * (own[0] + blur[0]))


def test_functions_in_threads_of_their_own_take_what_no_stage_claims() -> None:
    idle = {**JPEG, "augment": 0.01}
    free = replace(phase(active_ms=idle, own=0.98), costs=(cost("load", 3.0, threads=4),))
    found = profile(measurement(free, python="augment", active_ms=idle))
    alone = profile(measurement(replace(free, costs=()), python="augment", active_ms=idle))
    assert found.residual
    assert alone.residual
    gained = alone.residual.cpu_ms_per_example - found.residual.cpu_ms_per_example
    load = named(found, "load")
    assert load.cpu_ms_per_example == pytest.approx(
        named(alone, "augment").cpu_ms_per_example + gained
    )
    assert load.parallelism == 4


def test_iterators_that_end_at_once_are_known_by_the_samples_of_their_threads() -> None:
    idle = {**JPEG, "augment": 0.01}
    free = replace(phase(active_ms=idle), costs=(cost("load", 3.0, threads=1),))
    kept = profile(measurement(free, python="augment", active_ms=idle))
    lost = replace(free, nodes_vanished=True)
    found = profile(measurement(lost, python="augment", active_ms=idle))
    assert named(kept, "load").calls_in_flight < 0.1
    assert named(found, "load").calls_in_flight == pytest.approx(3.0 * 266 / 1000)
    assert named(found, "load").cpu_ms_per_example > named(kept, "load").cpu_ms_per_example


def test_a_stage_of_which_nothing_was_sampled_stays_whole() -> None:
    assert [each.name for each in divided().stages] == [
        each.name for each in divided(cost("", 2.0)).stages
    ]


def test_the_threads_of_this_process_have_the_ids_of_the_kernel() -> None:
    expected: dict[int, int] = {}
    ready, end = threading.Event(), threading.Event()

    def wait() -> None:
        expected[threading.get_ident()] = threading.get_native_id()
        ready.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    found = native_ids()
    end.set()
    thread.join()
    assert expected.items() <= found.items()
    assert found[threading.get_ident()] == threading.get_native_id()


def test_the_switch_interval_is_the_usual_one_after_the_last_thread_wanted_a_short_one() -> None:
    usual_s = sys.getswitchinterval()
    first, second = prompt_switches(0.001), prompt_switches(0.0001)
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.0001)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual_s


THREAD = """
import json, sys, threading, time, zlib
from tpuctl.profiling.frameworks.threads import ThreadSampler

CONTENT = bytes(range(256)) * 400

def holds():
    for _ in range(60_000):
        pass

def releases():
    zlib.compress(CONTENT, 1)

spent = {"holds": 0.0, "releases": 0.0}

def work():
    while True:
        for function in (holds, releases):
            start = time.thread_time()
            function()
            spent[function.__name__] += time.thread_time() - start

threading.Thread(target=work, daemon=True).start()
sampler = ThreadSampler()
sampler.start()
while sum(each.calls for each in sampler.costs()) < 300:
    threading.Event().wait(0.1)
seen = {each.name: each.wall_s for each in sampler.costs()}
print(json.dumps([spent["holds"] / sum(spent.values()), seen.get("holds", 0) / sum(seen.values())]))
"""


@pytest.mark.slow
def test_a_function_that_releases_the_interpreter_lock_is_not_seen_too_often(
    tmp_path: Path,
) -> None:
    place = tmp_path / "program.py"
    place.write_text(THREAD)
    command = [sys.executable, str(place)]
    true, seen = up_to_three_times(
        lambda: json.loads(subprocess.check_output(command, text=True, timeout=120)),
        lambda shares: shares[1] > 0.5 * shares[0],
    )
    assert true > 0.5
    assert seen > 0.5 * true


PIPELINES = """
import numpy as np

def cheap():
    return sum(range(2_000))

def costly():
    total = 0
    for number in range(60_000):
        total += number
    return total

def example():
    return np.float32(cheap() + costly())

def generate():
    while True:
        yield example()

def mapped():
    data = tf.data.Dataset.range(10_000).repeat()
    return data.map(lambda _: tf.numpy_function(example, [], tf.float32)).batch(4)

def zipped():
    spec = tf.TensorSpec((), tf.float32)
    made = tf.data.Dataset.from_generator(generate, output_signature=spec)
    other = tf.data.Dataset.range(10_000).repeat()
    other = other.map(lambda _: tf.py_function(cheap, [], tf.int64), 2)
    return tf.data.Dataset.zip((made, other)).batch(4)
"""


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mapped", "zipped"])
def test_the_costliest_function_that_tensorflow_calls_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    target = write_target(tmp_path, PIPELINES).replace(":make", f":{name}")
    found = profile_target(target, seconds=2)
    costliest = max(found.stages, key=lambda stage: stage.cpu_ms_per_example)
    assert costliest.name == "costly"
    line = 2 + PIPELINES.split("\n").index("def costly():") + 1
    assert (costliest.location or "").endswith(f"train.py:{line}")
    assert costliest.share_of_cpu > 0.4


FIT = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np

def cheap():
    return sum(range(2_000))

def costly():
    total = 0
    for number in range(400_000):
        total += number
    return total

class Numbers(keras.utils.PyDataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return np.full((4, 1), cheap() + costly(), "float32"), np.zeros(4)

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Numbers(), epochs=100, verbose=0)
"""


@pytest.mark.tf
@pytest.mark.slow
def test_the_costliest_function_of_a_py_dataset_inside_fit_is_named(tmp_path: Path) -> None:
    from tpuctl.profiling.program.run import profile_program

    place = tmp_path / "fit.py"
    place.write_text(textwrap.dedent(FIT))
    found = profile_program([sys.executable, str(place)], seconds=3, limit_s=200)
    costliest = max(found.stages, key=lambda stage: stage.cpu_ms_per_example)
    assert costliest.name == "costly"
    assert found.settings["loader_class"] == "Numbers"
