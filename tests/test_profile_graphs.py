"""Loops that TensorFlow turns into graphs, and data sets that a strategy deals out to devices."""

import json
from typing import Any

import pytest

from tests.training_runs import printed

pytestmark = pytest.mark.tf

PROGRAM = """
import json
import time
import tensorflow as tf
import tpuctl
import tpuctl.errors

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)

def heavy(index):
    square = tf.random.stateless_uniform((200, 200), seed=tf.stack([index, index]))
    for _ in range(3):
        square = tf.linalg.matmul(square, square) / 100.0
    return square[0]

def make():
    return tf.data.Dataset.range(many).map(heavy, num_parallel_calls=2).batch(4).prefetch(2)

# What graphs took is read twice a second: a machine of any speed is to need several.
def seconds_for(elements):
    global many
    many, began_s = elements, time.perf_counter()
    for _ in make():
        pass
    return time.perf_counter() - began_s

# The fastest of several, because other programs may be at work for a while.
seconds_for(40)  # starts the threads
many = 4 * round(100 * max(0.1, 2 / min(seconds_for(400) for _ in range(4))))

def report(result):
    print(json.dumps({
        "steps": result.steps, "most": many // 4, "batch": result.batch_size,
        "wait": result.input_wait_fraction,
        "stages": [each.name for each in result.stages],
        "where": [each.location for each in result.stages], "notes": result.notes,
    }))

@tf.function
def by_argument(data, weights):
    total = tf.constant(0.0)
    for batch in data:
        total += tf.reduce_sum(batch)
        if total > 1e30:
            break
    return total

captured = make()

@tf.function
def by_closure():
    count = tf.constant(0)
    for batch in captured:
        count += tf.shape(batch)[0]
    return count

with tpuctl.profile() as p:
    # A second trace of the same function must not create its variables again.
    print(json.dumps([int(by_closure()) == many, float(by_argument(make().take(3), 1)) > 0]))
with tpuctl.profile() as p:
    by_argument(make(), tf.zeros(2))
report(p.result)
with tpuctl.profile() as p:
    assert int(by_closure()) == many
report(p.result)

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dealt = strategy.experimental_distribute_dataset(make())
with tpuctl.profile() as p:
    for batch in dealt:
        strategy.run(lambda x: tf.reduce_sum(x), args=(batch,))
report(p.result)

@tf.function
def epoch(data):
    for batch in data:
        strategy.run(lambda x: tf.reduce_sum(x), args=(batch,))

with tpuctl.profile() as p:
    epoch(dealt)
report(p.result)

with tpuctl.profile() as p:
    by_argument(make().take(4), tf.zeros(2))
try:
    report(p.result)
except tpuctl.errors.TargetError as error:
    print(json.dumps([str(error)]))
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a program with four kinds of loops saw of itself."""
    text = printed("tensorflow", PROGRAM, tmp_path_factory.mktemp("graphs"))
    return [json.loads(line) for line in text.splitlines() if line.startswith(("{", "["))]


@pytest.mark.parametrize("number", [1, 2], ids=["argument", "closure"])
def test_a_loop_inside_a_function_is_found_with_its_stages(reports: list[Any], number: int) -> None:
    found = reports[number]
    assert 0 < found["steps"] <= found["most"]
    assert found["batch"] == 4
    (heavy,) = [index for index, name in enumerate(found["stages"]) if name.startswith("heavy")]
    assert "program.py" in found["where"][heavy]


@pytest.mark.parametrize("number", [3, 4], ids=["eager", "graph"])
def test_a_data_set_that_is_dealt_out_shows_its_waits_and_says_what_it_lacks(
    reports: list[Any], number: int
) -> None:
    found = reports[number]
    assert 0 < found["steps"] <= found["most"]
    assert found["wait"] is not None
    assert found["stages"] == []
    assert any("a strategy distributes" in note for note in found["notes"])


def test_the_program_computes_the_same(reports: list[Any]) -> None:
    assert reports[0] == [True, True]


def test_a_loop_that_is_over_before_it_was_looked_at_twice_says_how_many_it_took(
    reports: list[Any],
) -> None:
    assert reports[5][0].startswith("Only 4 batches were taken in the profiled block.")
