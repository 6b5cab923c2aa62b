"""`profile run` on functions that raise, hang, leave or return something else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline_cases import take_two_batches, write_target
from tests.warm_child import start_warm_child
from tpuctl.errors import InvalidInputError, TargetError
from tpuctl.profiling.profile import measure, profile_target
from tpuctl.profiling.request import Request, parse_target
from tpuctl.progress import silent

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in processes that have already imported TensorFlow."""
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)


@pytest.fixture
def target(tmp_path: Path) -> Callable[[str], str]:
    """Write a Python file with a function `make` and name it as a target."""
    return lambda body: write_target(tmp_path, body)


FAILURES = {
    "raises": ("def make():\n    raise OSError('no such bucket')\n", "OSError: no such bucket"),
    "does not import": ("import nonsense_module\n", "nonsense_module"),
    "is no Python": ("def make(:\n", r"SyntaxError: .* \(.*train.py:3\)"),
    "exits": ("import sys\ndef make():\n    sys.exit(3)\n", "SystemExit"),
    "yields nothing": ("def make():\n    return tf.data.Dataset.range(0).batch(4)\n", "empty"),
    "fails later": (
        "def make():\n"
        "    check = lambda x: tf.ensure_shape(tf.fill((x,), 1), (2,))\n"
        "    return tf.data.Dataset.range(2, 9).map(check).batch(1)\n",
        "while producing a batch",
    ),
    "checks its numbers": (
        "def make():\n"
        "    check = lambda x: tf.debugging.check_numerics(1 / tf.cast(x * 0, tf.float32), 'bad')\n"
        "    return tf.data.Dataset.range(9).map(check).batch(3)\n",
        "InvalidArgumentError: bad : Tensor had Inf",
    ),
    "fails in Python": (
        "def fail(x):\n"
        "    raise ValueError('my own words')\n"
        "def make():\n"
        "    fetch = lambda x: tf.numpy_function(fail, [x], tf.int64)\n"
        "    return tf.data.Dataset.range(9).map(fetch)\n",
        r"ValueError: my own words \(.*train.py:4\)",
    ),
    "calls what is not there": (
        "def broken(x):\n"
        "    return nonsense + x\n"
        "def make():\n"
        "    return tf.data.Dataset.range(9).map(broken).batch(3)\n",
        r"'nonsense' is not defined \(.*train.py:4\)",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_target_that_fails_is_one_clear_error(
    case: str, target: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, words = FAILURES[case]
    with pytest.raises(TargetError, match=words) as caught:
        take_two_batches(target(body), monkeypatch)
    assert len(str(caught.value)) < 800
    assert "{{" not in str(caught.value)
    assert "frozen" not in str(caught.value)


def test_a_failure_comes_out_of_the_measuring_process_as_it_was(
    target: Callable[[str], str],
) -> None:
    body, words = FAILURES["checks its numbers"]
    with pytest.raises(TargetError, match=words) as caught:
        profile_target(target(body), seconds=1)
    assert "python -c" in str(caught.value.hint)
    assert "range(1000)))" in str(caught.value.hint)


HANGS = {
    "when called": ("def make():\n    time.sleep(3600)\n", "train.py:4"),
    "when iterated": (
        "def make():\n"
        "    def stuck():\n"
        "        time.sleep(3600)\n"
        "        yield 1\n"
        "    spec = tf.TensorSpec((), tf.int64)\n"
        "    return tf.data.Dataset.from_generator(stuck, output_signature=spec)\n",
        "train.py:5",
    ),
}


@pytest.mark.parametrize("case", HANGS)
def test_a_target_that_hangs_is_ended_and_its_line_named(
    case: str, target: Callable[[str], str]
) -> None:
    body, words = HANGS[case]
    request = Request(
        target=parse_target(target(body)),
        batch_size=4,
        image_size=32,
        seconds=1.0,
        steps=None,
        device_step_ms=None,
        wait_limit_s=3.0,
    )
    with pytest.raises(TargetError, match=words):
        measure(request, on_progress=silent)


ENDS = {
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL; .*memory"),
    "leaves": ("os._exit(7)", "exited with code 7 without a result.$"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_target_that_ends_the_process_is_one_clear_error(
    case: str, target: Callable[[str], str]
) -> None:
    call, words = ENDS[case]
    place = target(f"import os, signal\ndef make():\n    tf.constant(1)\n    {call}\n")
    with pytest.raises(TargetError, match=words) as caught:
        profile_target(place, seconds=1)
    assert "python -c" in str(caught.value.hint)


UNSUITABLE = {
    "a number": ("def make():\n    return 7\n", "builtins.int", "any iterable"),
    "text": ("def make():\n    return 'abc'\n", "builtins.str", "any iterable"),
    "nothing": ("def make():\n    return None\n", "NoneType", "a tf.data.Dataset"),
    "another function": ("def other():\n    pass\n", "no function make", "other"),
    "arguments": ("def make(path):\n    return path\n", "requires arguments", "default values"),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_a_target_that_does_not_fit_says_what_does(
    case: str, target: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, words, hint = UNSUITABLE[case]
    with pytest.raises(InvalidInputError, match=words) as caught:
        take_two_batches(target(body), monkeypatch)
    assert hint in str(caught.value.hint)


def test_a_target_that_fits_gives_batches(
    target: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = target("def make():\n    return tf.data.Dataset.range(9).batch(4)\n")
    assert take_two_batches(place, monkeypatch) == 4
