"""`profile run -- CMD`: real trainings in a process of their own, watched without an edit."""

import importlib.util
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import contract
from tests.conftest import Result, Tpuctl
from tests.pipeline_cases import is_io_or_disturbed, up_to_three_times
from tpuctl.cli.app import app
from tpuctl.errors import NotFoundError, TargetError, UsageError
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.models import ChainNode, Profile, Stage
from tpuctl.profiling.program import run
from tpuctl.profiling.program._tf_graphs import GraphTimes, collect
from tpuctl.profiling.program.hook.tpuctl_after_import import AfterImport
from tpuctl.profiling.program.run import (
    is_program,
    profile_program,
    read_few,
    read_other_steps,
)
from tpuctl.profiling.program.watch import Watch

Program = Callable[[str], list[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Write a training and say how to run it."""

    def write(body: str) -> list[str]:
        place = tmp_path / "train.py"
        place.write_text(textwrap.dedent(body))
        return [sys.executable, str(place)]

    return write


def costliest(profile: Profile) -> Stage:
    """The stage with the most work."""
    return max(profile.stages, key=lambda stage: stage.active_ms_per_example or 0.0)


def only_stage(profile: Profile) -> Stage:
    """The stage of a loader; where much else runs, other functions may be seen as they wait."""
    signals = profile.signals
    if signals and signals.taken_s <= 0.1 * signals.wall_s:
        assert len(profile.stages) == 1
    return costliest(profile)


def is_blurred(profile: Profile) -> bool:
    """Whether so much else runs that it may be the cause, or that nothing can be told."""
    signals = profile.signals
    others = signals.taken_s / signals.wall_s if signals else 0.0
    return others > 0.1 and profile.verdict in ("stolen", "unknown")


KERAS = """
import time
import keras
import tensorflow as tf

def nap(x):
    time.sleep(0.1)
    return x

def slow(x):
    tf.ensure_shape(tf.numpy_function(nap, [x], tf.int64), ())
    return tf.ones((8,)), tf.ones((1,))

data = tf.data.Dataset.range(40).map(slow).batch(2).prefetch(2)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=0)
print("trained")
"""


@pytest.mark.tf
def test_keras_fit_is_seen_through_its_graph(program: Program) -> None:
    words = ["profile", "run", "--json", "--", *program(KERAS)]
    run = up_to_three_times(
        lambda: CliRunner().invoke(app, words),
        lambda run: run.exit_code == 0 and json.loads(run.stdout)["data"]["verdict"] == "io",
    )
    result = Result(run.exit_code, run.stdout, run.stderr)
    assert result.exit_code == 0
    assert contract.problems(result.document, "profile run", contract.PROFILE) == []
    assert (result.data["kind"], result.data["batch_size"]) == ("tf.data", 2)
    assert result.data["steps"] > 20
    assert result.data["input_wait_fraction"] > 0.5
    assert is_io_or_disturbed(result.data["verdict"], result.data["evidence"])
    slow = next(stage for stage in result.data["stages"] if stage["is_bottleneck"])
    # The function that `slow` calls, where sampling saw it.
    assert slow["name"].startswith(("nap", "slow"))
    assert slow["caller" if slow["caller"] else "location"].endswith("train.py:10")


@pytest.mark.tf
@pytest.mark.slow
def test_a_training_that_must_be_deterministic_runs_and_is_said_to_be_unseen(
    program: Program, tpuctl: Tpuctl, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = KERAS.replace("data =", "tf.config.experimental.enable_op_determinism()\ndata =")
    words = program(plain.replace("import keras", "import keras\nkeras.utils.set_random_seed(0)"))
    result = tpuctl("profile", "run", "--", *words)
    assert "trained" in capfd.readouterr().out
    assert "exited with code 0 and no training step was seen" in result.stderr
    assert "enable_op_determinism(): leave that out" in result.stderr


@pytest.mark.tf
def test_a_plain_loop_that_keeps_the_device_busy(program: Program) -> None:
    profile = profile_program(
        program(
            """
            import time
            import tensorflow as tf

            data = tf.data.Dataset.range(1 << 30).map(lambda x: x + 1).batch(8).prefetch(2)
            for batch in data:
                time.sleep(0.05)
            """
        ),
        steps=30,
    )
    assert profile.batch_size == 8
    assert profile.step_ms
    assert profile.verdict == "device" or is_blurred(profile)
    assert profile.step_ms.p50 >= 50


PY_DATASET = """
import os
os.environ["KERAS_BACKEND"] = "CHOSEN"
import time
import keras
import numpy as np

class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.02)
        return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Batches(workers=WORKERS), epochs=2, verbose=0)
"""


def py_dataset_program(backend: str, workers: int) -> str:
    return PY_DATASET.replace("CHOSEN", backend).replace("WORKERS", str(workers))


@pytest.mark.tf
def test_the_method_of_a_py_dataset_is_the_stage(program: Program) -> None:
    profile = profile_program(program(py_dataset_program("jax", workers=1)))
    assert profile.batch_size == 4
    stage = only_stage(profile)
    assert stage.name == "Batches.__getitem__"
    assert stage.active_ms_per_example > 4
    if not is_blurred(profile):
        assert profile.verdict == "io"
        assert stage.is_bottleneck
        assert [a.change for a in profile.advice] == ["set .workers = 4 on the Batches before fit"]


# On JAX, above, there is no generator in between.
@pytest.mark.tf
@pytest.mark.soak
def test_the_method_behind_the_generator_of_keras_is_the_stage(program: Program) -> None:
    profile = profile_program(program(py_dataset_program("tensorflow", workers=1)))
    assert profile.batch_size == 4
    # In a training of a second and a half, the share of waiting is not always enough for a verdict.
    stage = costliest(profile)
    assert stage.name == "Batches.__getitem__"
    assert stage.location
    assert stage.location.endswith("train.py:11")
    assert stage.active_ms_per_example > 1
    own = [each.change for each in profile.advice if not is_blurred(profile)]
    assert all(".workers = " in change and "the Batches" in change for change in own)


@pytest.mark.tf
def test_what_threads_of_keras_run_is_seen(program: Program) -> None:
    profile = profile_program(program(py_dataset_program("jax", workers=2)))
    assert only_stage(profile).name == "Batches.__getitem__"
    assert only_stage(profile).parallelism == 2
    assert profile.stages[0].active_ms_per_example > 1


@pytest.mark.tf
def test_what_processes_of_keras_run_is_said_to_be_unseen(program: Program) -> None:
    text = py_dataset_program("jax", workers=2)
    text = text.replace("workers=2", "workers=2, use_multiprocessing=True")
    text = text.replace("epochs=2", "epochs=1")
    # A fork of a process with threads of JAX may wait for one of their locks for ever.
    made, run = text.split("model = ")
    run = textwrap.indent(
        f"import multiprocessing\nmultiprocessing.set_start_method('spawn')\nmodel = {run}", "    "
    )
    text = f"{made}if __name__ == '__main__':\n{run}"
    profile = profile_program(program(text))
    assert profile.stages == ()
    assert "Batches runs in 2 processes of Keras" in " ".join(profile.notes)
    assert "between stages" not in " ".join((profile.headline, *profile.evidence))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_torch_loader_and_its_workers_are_seen(program: Program) -> None:
    profile = profile_program(
        program(
            """
            import time
            from torch.utils.data import DataLoader, Dataset

            class Slow(Dataset):
                def __len__(self):
                    return 160
                def __getitem__(self, index):
                    time.sleep(0.02)
                    return index

            def begin(number):
                print("worker", number)

            loader = DataLoader(Slow(), batch_size=4, num_workers=2, worker_init_fn=begin)
            for _ in range(2):
                for batch in loader:
                    time.sleep(0.002)
                assert loader.worker_init_fn is begin
            """
        )
    )
    assert not profile.program_code
    assert (profile.kind, profile.verdict) == ("torch", "io")
    assert [s.name for s in profile.stages if s.is_bottleneck] == ["Slow.__getitem__"]


@pytest.mark.slow
def test_a_program_that_fails_or_has_no_steps_is_one_clear_error(program: Program) -> None:
    with pytest.raises(TargetError, match="code 3 and no training step") as failed:
        profile_program(program("import sys\nsys.exit(3)\n"))
    assert failed.value.exit_code == 3
    with pytest.raises(TargetError, match="killed by SIGTERM and no training step") as failed:
        profile_program(program("import os\nos.kill(os.getpid(), 15)\n"))
    assert failed.value.exit_code == 143
    with pytest.raises(NotFoundError, match="could not be started"):
        profile_program(["/nowhere/python", "train.py"])


def test_a_program_ends_as_it_does_alone_where_its_error_cannot_be_noted(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    removes = "import os, shutil; shutil.rmtree(os.environ['TPUCTL_PROFILE_FOLDER'])\n"
    with pytest.raises(TargetError, match="code 1 and no training step"):
        profile_program(program(f"{removes}1 / 0\n"))
    assert capfd.readouterr().err.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("text", ["", '{"function": "st'])
def test_a_note_that_was_not_written_whole_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.steps").write_text(text)
    (tmp_path / "1.few").write_text("")
    assert (read_few(tmp_path), read_other_steps(tmp_path)) == (0, None)


@pytest.mark.slow
def test_a_program_of_two_batches_is_too_short(program: Program) -> None:
    pytest.importorskip("grain")
    few = "import grain\nlist(grain.MapDataset.range(8).batch(4).to_iter_dataset())"
    with pytest.raises(TargetError, match="after 2 batches: too few"):
        profile_program(program(few))


JAX_LOOP = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np

@jax.jit
def normalize(batch):
    return batch / 255

@jax.jit
def step(weights, batch):
    return weights + batch.sum(), batch.mean()

weights = np.zeros((64, 64), "float32")
for _ in range(40):
    for _ in range(2):
        batch = normalize(np.ones((16, 8), "float32"))
    weights, loss = step(weights, np.asarray(batch))
"""


@pytest.mark.slow
def test_the_steps_of_a_plain_jax_loop_are_counted(
    program: Program, tmp_path: Path, tpuctl: Tpuctl
) -> None:
    pytest.importorskip("jax")
    words = program(JAX_LOOP)
    with pytest.raises(
        TargetError, match=r"calls of step at .*:10, one every .* not seen"
    ) as failed:
        profile_program(words)
    assert "p.watch(batches)" in str(failed.value.hint)
    watched = tpuctl("launch", words[-1], "--framework", "jax", "--json").data["watched"]
    # JAX does not report the calls that compile.
    assert 30 < watched["steps"] < 40
    assert watched["step_ms"] > 0
    assert watched["examples_per_s"] == pytest.approx(16e3 / watched["step_ms"], rel=0.01)
    assert watched["input_wait_fraction"] is None
    # A hook of the program's own stays in place.
    checked = program(
        JAX_LOOP.replace("import jax,", "os.environ['JAX_DEBUG_NANS'] = '1'\nimport jax,")
    )
    with pytest.raises(TargetError, match="no training step was seen"):
        profile_program(checked)


def test_a_program_that_hangs_is_stopped_at_its_time(
    program: Program, tmp_path: Path, tpuctl: Tpuctl
) -> None:
    """Neither a step nor its end ever comes; the file would show that it was waited for."""
    words = program(f"""
        import time
        time.sleep(60)
        open({str(tmp_path / "end")!r}, "w")
    """)
    with pytest.raises(TargetError, match=r"ran for 0\.5 s and no training step"):
        profile_program(words, limit_s=0.5)
    result = tpuctl("profile", "watch", "--seconds", "0.5", "--", *words)
    assert (result.exit_code, "ran for 0.5 s" in result.stderr) == (1, True)
    assert not (tmp_path / "end").exists()


def test_a_program_is_told_from_a_target(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert is_program(["python", "train.py"])
    assert is_program([str(script)])
    assert not is_program([f"{script}:make"])
    assert not is_program([str(tmp_path)])


def test_a_device_of_paper_does_not_go_with_a_program() -> None:
    words = ["profile", "run", "--device-step-ms", "5", "--", "python", "train.py"]
    assert CliRunner().invoke(app, words).exit_code == UsageError.exit_code


def source() -> Source:
    return Source("iterable", ChainNode("Iterable", "made"))


def test_waits_and_steps_are_those_of_the_loop() -> None:
    watch = Watch()
    series = watch.of(source, source)
    for number in range(5):
        series.arrived(10.0 * number, 10.0 * number + 2.0, 4)
    assert list(series.waits) == [2.0] * 4
    assert list(series.steps) == [10.0] * 4
    assert series.first_batch_s == 2.0


def test_batches_of_a_graph_share_what_it_waited() -> None:
    series = Watch().of(source, source)
    series.arrived_unseen(1, 0.5, 100.0, 4)
    series.arrived_unseen(4, 2.0, 108.0, 4)
    assert list(series.waits) == [0.5] * 4
    assert list(series.steps) == [2.0] * 4


class Taken(GraphTimes):
    """What one `next` of a graph added up, whose data set is not known."""

    model_bytes = b""

    def __init__(self, batches: int, waited_s: float, examples: int = 0) -> None:
        self.find, self.sums = None, (batches, waited_s, examples)

    def since(self) -> tuple[int, float, int]:
        return self.sums


def test_replicas_that_take_their_parts_at_once_make_one_step() -> None:
    watch = Watch()
    settings = {"batch_size": 4}
    series = watch.of(source, lambda: Source("tf.data", ChainNode("Batch", ""), settings=settings))
    alive = Watch()
    watch.opened(series, alive)
    for _ in range(2):
        collect(watch, [Taken(10, 1.0), Taken(10, 0.7)])
    # The first ones are counted: how long they took is not known.
    assert (series.count, len(series.steps)) == (19, 10)
    assert set(series.examples) == {8}


def test_a_graph_counts_the_examples_of_batches_whose_size_nobody_declares() -> None:
    watch = Watch()
    series = watch.of(source, lambda: Source("tf.data", ChainNode("FlatMap", "")))
    alive = Watch()
    watch.opened(series, alive)
    for _ in range(2):
        collect(watch, [Taken(10, 1.0, examples=80)])
    assert set(series.examples) == {8}


def test_the_last_batches_of_a_graph_count_though_its_iterator_is_gone() -> None:
    watch = Watch()
    series = watch.of(source, lambda: Source("tf.data", ChainNode("Batch", "")))
    ended = Watch()
    watch.opened(series, ended)
    del ended
    collect(watch, [Taken(87, 0.1)])
    assert series.count + 1 == 87


def test_a_data_set_that_is_gone_leaves_its_steps_and_not_its_identity() -> None:
    watch = Watch()
    for epoch in range(3):
        data = type("Data", (), {})()
        series = watch.of(data, source)
        assert series.count == 0
        for number in range(4 + epoch):
            series.arrived(10.0 * number, 10.0 * number + 2.0, 4)
        del data
    other = type("Data", (), {})()
    watch.of(other, source)
    longest = watch.main()
    assert longest
    assert longest.count == 5
    assert len(watch.series) == 1


def test_an_iterator_inside_another_is_part_of_it() -> None:
    watch = Watch()
    outer, inner = watch.of(source, source), watch.of(Watch, source)
    numbers = iter(range(20))
    for _ in range(10):
        watch.take(outer, lambda: watch.take(inner, lambda: next(numbers)))
    assert (outer.count, inner.count) == (9, 0)
    assert watch.main() is outer


def test_a_module_is_patched_right_after_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patient.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    finder = AfterImport(["patient"], lambda module: seen.append(module.value))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import patient  # type: ignore[import-not-found]

    assert seen == [1]
    assert json.dumps(patient.value) == "1"


def test_a_program_without_a_step_is_told_so_while_it_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "TELL_AFTER_S", 0.0)
    with pytest.raises(TargetError, match="no training step was seen"):
        profile_program(program("import time\nwhile True: time.sleep(0.1)"), limit_s=1)
    assert capfd.readouterr().err.count("continues until it ends or you press Ctrl-C") == 1
