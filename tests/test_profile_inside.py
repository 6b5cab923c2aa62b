"""`with tpuctl.profile() as p:` in a program of one's own, and what `profile watch` prints."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import tpuctl
from tests.pipeline_cases import (
    is_io_or_disturbed,
    measurement,
    profile,
    starving,
    up_to_three_times,
)
from tests.training_runs import printed
from tpuctl.errors import TargetError
from tpuctl.profiling.program import recording
from tpuctl.reporters import profile as report


def in_a_process(body: str, folder: Path) -> str:
    """Run a program; what it printed."""
    place = folder / "program.py"
    place.write_text(textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, str(place)], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_loop_of_ones_own_is_profiled_inside_a_with(tmp_path: Path) -> None:
    body = """
        import json, time
        import tpuctl

        def fetch():
            time.sleep(0.08)
            return [0] * 8

        def batches():
            for _ in range(30):
                yield fetch()

        with tpuctl.profile() as p:
            for batch in p.watch(batches()):
                time.sleep(0.02)
        time.sleep(0.1)
        result = p.result
        stage = max(result.stages, key=lambda each: each.active_ms_per_example)
        print(json.dumps([result.verdict, result.kind, result.batch_size, stage.name,
                          result.input_wait_fraction, result.reasons]))
        """
    verdict, kind, batch, stage, wait, reasons = up_to_three_times(
        lambda: json.loads(in_a_process(body, tmp_path)), lambda seen: seen[0] == "io"
    )
    assert is_io_or_disturbed(verdict, reasons)
    assert (kind, batch, stage) == ("iterable", 8, "fetch")
    assert 0.5 < wait < 0.95


@pytest.mark.slow
def test_every_block_of_a_process_sees_the_same_and_leaves_nothing(tmp_path: Path) -> None:
    words = in_a_process(
        """
        import json, os, tempfile, threading, time
        import tpuctl

        tempfile.tempdir = os.getcwd()

        class Batches:
            def __iter__(self):
                for _ in range(40):
                    time.sleep(0.01)
                    yield [0] * 8

        batches, before, seen = Batches(), set(os.listdir()), []
        for _ in range(2):
            with tpuctl.profile() as p:
                for batch in p.watch(batches):
                    pass
            seen.append([stage.name for stage in p.result.stages])
        time.sleep(1.5)
        print(json.dumps([seen, [each.name for each in threading.enumerate()],
                          sorted(set(os.listdir()) - before)]))
        """,
        tmp_path,
    )
    seen, threads, left = json.loads(words)
    assert seen == [["Batches.__iter__"]] * 2
    assert threads == ["MainThread"]
    assert left == []


@pytest.mark.slow
def test_every_epoch_of_grain_is_seen_and_those_after_the_block_go_on(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    words = in_a_process(
        """
        import json, time
        import grain
        import tpuctl

        def fetch(number):
            time.sleep(0.02)
            return number

        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
        data = grain.MapDataset.range(80).map(fetch).batch(4).to_iter_dataset(options)
        seen = []
        for epochs in (1, 2):
            with tpuctl.profile() as p:
                for _ in range(epochs):
                    for batch in data:
                        pass
            seen.append(p.result.steps)
        print(json.dumps([seen, sum(1 for _ in data)]))
        """,
        tmp_path,
    )
    (first, second), after = json.loads(words.splitlines()[-1])
    assert first > 10
    assert second > first + 15
    assert after == 20


CELL = """
import time
from tpuctl.profiling.program.inside import current
def batches():
    for _ in range(40):
        time.sleep(0.02)
        yield [0] * 4
for batch in current().watch(batches()):
    pass
"""


@pytest.mark.slow
def test_a_cell_is_profiled_by_a_magic(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    words = in_a_process(
        f"""
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "tpuctl")
        card = shell.run_cell_magic("tpuprofile", "found", {CELL!r})
        print(shell.user_ns["found"].steps)
        print("tpuctl-card" in card._repr_html_(), "Evidence" in str(card))
        """,
        tmp_path,
    )
    steps, shown = words.splitlines()[-2:]
    assert 30 < int(steps) <= 40
    assert shown == "True True"


def test_a_profiled_cell_that_fails_fails_the_cell_and_is_shown_once(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    words = in_a_process(
        f"""
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance(colors="NoColor")
        shell.run_line_magic("load_ext", "tpuctl")
        failed = shell.run_cell("%%tpuprofile found\\n" + {CELL!r} + "raise ValueError('bad data')")
        print(repr(failed.error_in_exec), shell.user_ns["found"].steps > 20)
        print("wrong", shell.run_cell("%%tpuprofile\\nif True print(1)").success)
        shell.run_cell("raise KeyError('another one')")
        """,
        tmp_path,
    )
    assert "ValueError('bad data') True" in words
    assert "wrong False" in words
    assert words.count("ValueError: bad data") == 1
    assert words.count("SyntaxError:") == 1
    assert words.count("KeyError: 'another one'") == 1
    assert "No training step" not in words


@pytest.mark.tf
def test_keras_takes_a_callback(tmp_path: Path) -> None:
    words = printed(
        "tensorflow",
        """
        import json, time
        import keras
        import tensorflow as tf
        import tpuctl

        def slow(x):
            def nap(v):
                time.sleep(0.01)
                return v
            tf.ensure_shape(tf.numpy_function(nap, [x], tf.int64), ())
            return tf.ones((8,)), tf.ones((1,))

        data = tf.data.Dataset.range(160).map(slow).batch(4).prefetch(2)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        callback = tpuctl.ProfileCallback()
        model.fit(data, epochs=2, verbose=0, callbacks=[callback])
        found = callback.result
        others = found.signals.taken_s / found.signals.wall_s
        print(json.dumps([found.verdict, found.steps, others]))
        """,
        tmp_path,
    )
    verdict, steps, others = json.loads(words.splitlines()[-1])
    # Where much else runs, it may be the neighbours, or too much of both to tell.
    assert verdict == "io" or (others > 0.1 and verdict in ("stolen", "unknown"))
    assert steps > 30


def test_a_block_without_steps_says_so_when_asked() -> None:
    block = tpuctl.profile()
    with pytest.raises(TargetError, match="No training step"):
        _ = block.result


def test_a_short_training_is_too_little_and_its_batches_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "LEAST_S", 1e6)  # A busy machine takes its time.
    with tpuctl.profile() as block:
        for _ in block.watch([[0, 1]] * 87):
            pass
    with pytest.raises(TargetError, match="Only 87 batches"):
        _ = block.result


def test_outside_the_block_an_iterable_is_just_iterated() -> None:
    assert list(tpuctl.profile().watch([1, 2])) == [1, 2]


def test_a_live_row_fits_a_hundred_columns_under_its_header() -> None:
    found = profile(measurement(*starving()))
    named = replace(found.stages[1], name="a_stage_with_a_very_long_name" * 4, is_bottleneck=True)
    row = report.live_row(replace(found, stages=(named,)))
    assert len(row) <= 100
    assert "vcpu" in row
    assert row.index("vcpu") + 4 == report.live_header().index("verdict") + len("verdict")
