"""Every command has a Python function that gives the same data.

Each entry of TWINS says how to run a command on the command line and from Python. Where the two
need a thing each, such as a TPU to delete, its name ends in `cli` or in `api`.
"""

import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests import contract
from tests.cloud_world import Worlds
from tests.conftest import Tpuctl
from tests.warm_child import start_warm_child
from tpuctl.api.workers import as_pairs, as_words
from tpuctl.cli import app as program
from tpuctl.cli.contents import CONTENTS
from tpuctl.errors import UsageError
from tpuctl.reporters import envelope
from tpuctl.usercode.function import target_of

ZONE = "us-central1-a"
CHIPS = {"types": ["v5litepod-8"], "capacity_chips": 32, "quota_chips": 64}
FAST = {"zones": {ZONE: CHIPS}, "time_scale": 500, "provision_s": 20, "delete_s": 20}
PIPELINE = "import numpy as np\n\ndef make():\n    return [np.full(3, i) for i in range(20)]\n"
STEP = """
import jax
import jax.numpy as jnp

def make(batch):
    shape = jax.ShapeDtypeStruct
    return lambda w, x: x @ w, (shape((8, 8), jnp.float32), shape((batch, 8), jnp.float32))
"""
TRAINING = """
import time
import tensorflow as tf
import tpuctl
for batch in tf.data.Dataset.range(4000).batch(8):
    time.sleep(0.005)
"""


@dataclass
class Bench:
    """What the samples may use."""

    folder: Path
    tpuctl: Tpuctl
    world: Worlds
    stack: ExitStack
    photos: Path
    made: dict[str, Any] = field(default_factory=dict)

    def cloud(self, *names: str) -> None:
        """An emulated cloud with some TPUs in it."""
        self.world(FAST, real_time=True)
        for name in names:
            words = ("--accelerator-type", "v5e-8", "--zone", ZONE, "--yes", "--no-wait")
            assert self.tpuctl("create", name, *words).exit_code == 0
        for name in names:
            assert self.tpuctl("wait", name, "--zone", ZONE).exit_code == 0

    def workers(self) -> tuple[list[str], "library.Workers"]:
        """Two workers with SSH servers: options for the command line, and the same in Python."""
        pytest.importorskip("asyncssh")
        from tests.workers import running_slice

        if "workers" not in self.made:
            root = self.folder / "slice"
            self.made["workers"] = self.stack.enter_context(running_slice(root, 2))
        found = self.made["workers"]
        return (
            ["--host", found.option, "--key", str(found.key)],
            library.Workers(hosts=found.option, key=found.key),
        )

    def shards(self) -> Path:
        """A small data set."""
        target = self.folder / "shards"
        library.data.presize(self.photos, target, library.data.PresizeOptions(size=(16, 16)))
        return target

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


Call = Callable[[], Any]
Sample = Callable[[Bench], tuple[Sequence[object], Call]]
TWINS: dict[str, Any] = {}


def twin(command: str, *marks: Any, by_kind: bool = False) -> Callable[[Sample], Sample]:
    """Register a sample; `by_kind` where the numbers are measurements."""

    def register(sample: Sample) -> Sample:
        TWINS[command] = pytest.param(command, sample, by_kind, marks=marks, id=command)
        return sample

    return register


def needs(*modules: str) -> list[Any]:
    lacking = [module for module in modules if find_spec(module) is None]
    skip = pytest.mark.skipif(bool(lacking), reason=f"{lacking} not installed")
    return [skip, *([pytest.mark.tf] if "tensorflow" in modules else [])]


def quiet(stream: int, data: bytes) -> None:
    """Throw away what workers print."""


@twin("doctor")
def _(at: Bench) -> Any:
    return [], lambda: library.doctor()


@twin("explain")
def _(at: Bench) -> Any:
    log = at.file("train.log", "RuntimeError: The TPU is already in use by process with pid 7\n")
    return [log], lambda: library.explain(str(log))


@twin("config")
def _(at: Bench) -> Any:
    return [], library.config


@twin("types")
def _(at: Bench) -> Any:
    return ["v5e-8"], lambda: library.types("v5e-8")


@twin("offers")
def _(at: Bench) -> Any:
    at.cloud()
    return ["v5e-8"], lambda: library.offers("v5e-8")


@twin("quota")
def _(at: Bench) -> Any:
    at.cloud()
    return ["v5e-8"], lambda: library.quota("v5e-8")


@twin("migrate")
def _(at: Bench) -> Any:
    at.cloud("t1")
    return ["t1"], lambda: library.migrate("t1")


@twin("create")
def _(at: Bench) -> Any:
    at.cloud()
    words = ["tpu-cli", "--accelerator-type", "v5e-8", "--zone", ZONE, "--ttl", "1h", "--yes"]
    return words, lambda: library.create("tpu-api", "v5e-8", zone=ZONE, ttl_s=3600)


@twin("list")
def _(at: Bench) -> Any:
    at.cloud("t1")
    return [], library.list


@twin("show")
def _(at: Bench) -> Any:
    at.cloud("t1")
    return ["t1"], lambda: library.show("t1")


@twin("wait")
def _(at: Bench) -> Any:
    at.cloud("t1")
    return ["t1"], lambda: library.wait("t1")


@twin("delete")
def _(at: Bench) -> Any:
    at.cloud("tpu-cli", "tpu-api")
    return ["tpu-cli", "--yes"], lambda: library.delete("tpu-api")


@twin("gc")
def _(at: Bench) -> Any:
    at.cloud("t1")
    return [], library.gc


@twin("watch")
def _(at: Bench) -> Any:
    at.cloud("t1")
    words = ["t1", "--dry-run", "--", "python3", "train.py"]
    return words, lambda: library.watch("t1", ["python3", "train.py"], dry_run=True)


@twin("run", pytest.mark.slow)
def _(at: Bench) -> Any:
    options, where = at.workers()
    return [*options, "--", "echo", "hi"], lambda: library.run(where, ["echo", "hi"], sink=quiet)


@twin("cp", pytest.mark.slow)
def _(at: Bench) -> Any:
    options, where = at.workers()
    source = str(at.file("source.txt", "text"))
    return (
        [*options, source, ":copy-cli"],
        lambda: library.cp(source, ":copy-api", where=where),
    )


@twin("logs", pytest.mark.slow)
def _(at: Bench) -> Any:
    options, where = at.workers()
    library.run(where, ["echo", "hi"], job="j1", check=False)
    return [*options, "--follow"], lambda: library.logs(where, follow=True, sink=quiet)


@twin("stop", pytest.mark.slow)
def _(at: Bench) -> Any:
    options, where = at.workers()
    for name in ("job-cli", "job-api"):
        library.run(where, ["sleep", "60"], job=name, check=False)
    return [*options, "--job", "job-cli"], lambda: library.stop(where, job="job-api")


@twin("ssh", pytest.mark.slow)
def _(at: Bench) -> Any:
    options, where = at.workers()
    one = library.Workers(hosts=where.hosts, key=where.key, worker="0")
    return [*options, "--worker", "0"], lambda: library.ssh(one, dry_run=True)


@twin("top", by_kind=True)
def _(at: Bench) -> Any:
    return ["local", "--once"], lambda: library.top("local")


@twin("free", by_kind=True)
def _(at: Bench) -> Any:
    return ["local", "--dry-run"], lambda: library.free("local", dry_run=True)


@twin("profile run", *needs("tensorflow"), pytest.mark.slow, by_kind=True)
def _(at: Bench) -> Any:
    words = [at.photos, "--seconds", "0.5", "--batch-size", "4", "--device-step-ms", "5"]
    patch = at.stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    return words, lambda: library.profile.run(
        str(at.photos), seconds=0.5, batch_size=4, device_step_ms=5
    )


@twin("profile watch", *needs("tensorflow"), pytest.mark.soak, by_kind=True)
def _(at: Bench) -> Any:
    script = str(at.file("training.py", TRAINING))
    return (
        ["--seconds", "300", "--", sys.executable, script],
        lambda: library.profile.watch([sys.executable, script], seconds=300),
    )


@twin("profile trace")
def _(at: Bench) -> Any:
    from tests.test_profile_trace import SCENES, write

    logs = write(at.folder, SCENES["input"])
    return [logs], lambda: library.profile.trace(logs)


def saved(folder: Path, name: str) -> Path:
    from tests.pipeline_cases import measurement, phase, profile
    from tpuctl.profiling.tpuprof import save

    save(profile(measurement(phase())), folder / name)
    return folder / name


@twin("profile show")
def _(at: Bench) -> Any:
    file = saved(at.folder, "a.tpuprof")
    return [file], lambda: library.profile.show(file)


@twin("profile diff")
def _(at: Bench) -> Any:
    pair = saved(at.folder, "a.tpuprof"), saved(at.folder, "b.tpuprof")
    return pair, lambda: library.profile.diff(*pair)


@twin("data presize", *needs("cv2"))
def _(at: Bench) -> Any:
    options = library.data.PresizeOptions(size=(16, 16))
    return (
        [at.photos, at.folder / "shards-cli", "--size", "16"],
        lambda: library.data.presize(at.photos, at.folder / "shards-api", options),
    )


@twin("data cache", *needs("numpy", "google_crc32c"))
def _(at: Bench) -> Any:
    target = f"{at.file('pipe.py', PIPELINE)}:make"
    return (
        [target, at.folder / "cache-cli"],
        lambda: library.data.cache(target, at.folder / "cache-api"),
    )


@twin("data verify", *needs("cv2"))
def _(at: Bench) -> Any:
    shards = at.shards()
    return [shards, "--deep"], lambda: library.data.verify(shards, deep=True)


@twin("data show", *needs("cv2"))
def _(at: Bench) -> Any:
    shards, sheet = at.shards(), at.folder / "sheet.png"
    return [shards, "--sheet", sheet], lambda: library.data.show(shards, sheet=sheet)


@twin("data serve", *needs("tensorflow"), pytest.mark.soak)
def _(at: Bench) -> Any:
    def until_ready() -> Any:
        seen: list[Any] = []

        def stop(service: Any) -> None:
            seen.append(service)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            library.data.serve(workers=1, on_ready=stop)
        return seen[0]

    return ["--workers", "1"], until_ready


@twin("templates")
def _(at: Bench) -> Any:
    return [], library.templates


@twin("templates list")
def _(at: Bench) -> Any:
    return [], library.templates.list


@twin("templates show")
def _(at: Bench) -> Any:
    return ["images"], lambda: library.templates.show("images")


@twin("templates new")
def _(at: Bench) -> Any:
    return (
        ["images", at.folder / "new-cli"],
        lambda: library.templates.new("images", at.folder / "new-api"),
    )


@twin("lint")
def _(at: Bench) -> Any:
    old = at.file("old.py", "import jax\nprint(jax.host_count())\n")
    words = [old, "--select", "T1", "--runtime", "colab", "--diff"]
    return words, lambda: library.lint(old, select=["T1"], runtime="colab", diff=True)


@twin("launch", *needs("tensorflow"))
def _(at: Bench) -> Any:
    return (
        ["images", "--dry-run", "--set", "steps=2", "--", "--seed", "3"],
        lambda: library.launch("images", ["--seed", "3"], settings=["steps=2"], dry_run=True),
    )


@twin("fit", *needs("libtpu"), pytest.mark.aot, pytest.mark.slow, by_kind=True)
def _(at: Bench) -> Any:
    target = f"{at.file('step.py', STEP)}:make"
    return (
        [target, "--accelerator-type", "v2-8", "--batch", "64"],
        lambda: library.fit(target, "v2-8", batch_size=64),
    )


@twin("bench", *needs("tensorflow"), pytest.mark.soak, by_kind=True)
def _(at: Bench) -> Any:
    return (
        ["--batch", "32", "--epochs", "2", "--examples", "64", "--framework", "tensorflow"],
        lambda: library.bench(batch_sizes="32", epochs=2, examples=64, framework="tensorflow"),
    )


@twin("bench compare")
def _(at: Bench) -> Any:
    from tests.test_bench import sweep

    for name in ("gpu", "tpu"):
        at.file(f"{name}.json", envelope.success("bench", sweep(name, {256: 6.0})))
    pair = at.folder / "gpu.json", at.folder / "tpu.json"
    return pair, lambda: library.bench.compare(*pair)


@twin("emulator start", *needs("grpc"), by_kind=True)
def _(at: Bench) -> Any:
    def start_again() -> Any:
        library.emulator.stop()
        at.stack.callback(library.emulator.stop)
        return library.emulator.start(fresh=True)

    return ["--detach"], start_again


@twin("emulator stop")
def _(at: Bench) -> Any:
    return [], library.emulator.stop


@twin("emulator status")
def _(at: Bench) -> Any:
    return [], library.emulator.status


def commands(words: tuple[str, ...], command: Any) -> Iterator[str]:
    """Every command that can be run, those of groups included."""
    below = getattr(command, "commands", {})
    if not below or getattr(command, "invoke_without_command", False):
        yield " ".join(words)
    for name, child in below.items():
        yield from commands((*words, name), child)


COMMANDS = [each for entry in CONTENTS for each in commands((entry.name,), program._load(entry))]


def test_every_command_has_a_twin() -> None:
    assert COMMANDS
    # A demo takes a minute: test_demo.py runs it from both.
    assert {*TWINS, "demo"} == set(COMMANDS)


@pytest.fixture
def at(
    tmp_path: Path, tpuctl: Tpuctl, world: Worlds, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TPUCTL_PROJECT", "practice")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Bench(tmp_path, tpuctl, world, stack, photos)


# What differs from one run to the next: times, what is measured in them, and who ran it.
VOLATILE = re.compile(
    r"seconds|.*_s|.*_per_s|created|started|expires|as_of|usd_so_far|id|pid|internal_ip|external_ip"
    r"|disk_free_bytes|endpoint|port|address|target|line"
)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def comparable(value: Any, key: str = "") -> Any:
    """Reduce what may differ to its kind, and names that end in `cli` or `api` to one name."""
    is_volatile = VOLATILE.fullmatch(key)
    if isinstance(value, dict):
        return {name: comparable(v, key if is_volatile else name) for name, v in value.items()}
    if isinstance(value, list):
        return [comparable(item, key) for item in value]
    if is_volatile:
        return "number" if isinstance(value, (int, float)) else type(value).__name__
    if isinstance(value, str):
        return UUID.sub("UUID", re.sub(r"-(cli|api)\b", "", value))
    return value


def run_command(command: str, arguments: Sequence[object]) -> dict[str, Any]:
    """Run a command that ends with Ctrl-C, and read its document."""
    words = [sys.executable, "-m", "tpuctl", *command.split(), *map(str, arguments), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        process.send_signal(2)
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.slow
@pytest.mark.parametrize(("command", "sample", "by_kind"), TWINS.values())
def test_a_command_and_its_function_give_the_same(
    at: Bench, tpuctl: Tpuctl, command: str, sample: Sample, by_kind: bool
) -> None:
    arguments, call = sample(at)
    if command == "data serve":
        document = run_command(command, arguments)
    else:
        before_dashes = list(arguments)
        place = before_dashes.index("--") if "--" in before_dashes else len(before_dashes)
        before_dashes.insert(place, "--json")
        document = tpuctl(*command.split(), *map(str, before_dashes)).document
    result = call()
    twin_document = json.loads(envelope.success(command, result))
    assert contract.problems(document, command) == []
    assert contract.problems(twin_document, command) == []
    assert [error["code"] for error in document["errors"]] == [e.code for e in result.failures]
    if by_kind:
        assert document["data"].keys() == twin_document["data"].keys()
        assert contract.other_keys(document["data"], twin_document["data"]) == []
    else:
        assert document["status"] == result.status
        for part in ("data", "warnings"):
            assert comparable(document[part]) == comparable(twin_document[part])


def test_a_difference_would_be_seen() -> None:
    ours = {"name": "tpu-cli", "seconds": 1.5, "chips": 8}
    assert comparable(ours) == comparable({"name": "tpu-api", "seconds": 2.5, "chips": 8})
    for other in ({**ours, "chips": 4}, {**ours, "seconds": None}, {**ours, "more": 1}):
        assert comparable(ours) != comparable(other)
    assert contract.other_keys({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}) == ["data.a[].c"]
    assert contract.other_keys({"a": [{"b": 1}]}, {"a": []}) == []


def test_python_refuses_what_the_command_line_cannot_express() -> None:
    with pytest.raises(UsageError, match="What should be profiled"):
        library.profile.run([])
    wrong: Any = "f64"
    with pytest.raises(UsageError, match="Unknown dtype 'f64'"):
        library.fit(Path("images"), "v5e-8", dtype=wrong)
    with pytest.raises(UsageError, match="must be at least 1"):
        library.bench(batch_sizes=[])
    with pytest.raises(UsageError, match="exclude each other"):
        library.delete("t1", everything=True)


def test_a_command_in_one_string_is_split_as_a_shell_splits_it() -> None:
    assert as_words("python train.py --name 'a b'") == ["python", "train.py", "--name", "a b"]
    assert as_words(("echo", "a b")) == ["echo", "a b"]


def test_settings_and_variables_may_be_a_dictionary() -> None:
    assert as_pairs({"steps": 20, "augment": True}) == ["steps=20", "augment=True"]
    assert as_pairs("steps=20") == as_pairs(["steps=20"]) == ["steps=20"]


def test_a_training_takes_its_settings_from_a_dictionary() -> None:
    plan: Any = library.launch("mnist-cnn", settings={"steps": 20, "overwrite": True}, dry_run=True)
    assert " --steps 20 --overwrite " in " ".join(plan.argv)


def test_an_exception_is_explained_as_its_traceback_is() -> None:
    try:
        raise RuntimeError("The TPU is already in use by process with pid 7")
    except RuntimeError as error:
        found = library.explain(error)
        assert found.matches == library.explain(traceback.format_exc()).matches
        assert found.matches


@pytest.mark.parametrize("size", [48, "48", (48, 48)])
def test_the_options_of_presize_are_given_by_name(photos: Path, tmp_path: Path, size: Any) -> None:
    made = library.data.presize(photos, tmp_path / "out", size=size, encode="png", workers=1)
    assert made.written
    chosen = library.data.show(tmp_path / "out").options
    assert (chosen["size"], chosen["encode"]) == ([48, 48], "png")
    wrong: Any = (48, 48, 3)
    with pytest.raises(UsageError, match="48x48x3 is not a valid size"):
        library.data.presize(photos, tmp_path / "out", size=wrong)
    with pytest.raises(TypeError, match="sizee"):
        library.data.presize(photos, tmp_path / "out", sizee=48)


def test_a_function_of_a_module_is_measured_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_pipeline.py").write_text("def make():\n    return iter(range(9))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    make = import_module("own_pipeline").make
    assert target_of(make) == f"{tmp_path / 'own_pipeline.py'}:make"
    kept = library.data.cache(make, tmp_path / "kept", elements=4)
    assert isinstance(kept, library.data.CacheResult)
    assert kept.elements == 4
    with pytest.raises(UsageError, match="process of its own") as refused:
        library.profile.run(lambda: make())
    assert '"pipeline.py:make"' in (refused.value.hint or "")
    endless: Any = count()
    with pytest.raises(UsageError, match="A count cannot be sent"):
        library.profile.run(endless)
    with pytest.raises(UsageError, match="A count cannot be sent"):
        library.fit(endless, "v5e-8")
