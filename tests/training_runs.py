"""Run templates in processes of their own, and look at what they leave."""

import io
import json
import os
import signal
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sharing import HEAVY, made_once
from tests.warm_python import WarmPython, warm_python
from tpuctl import data
from tpuctl.training import run
from tpuctl.training.catalog import find_template

# What programs import. `test_templates.py` starts a template with a Python of its own.
IMPORTS = {"tensorflow": ("tensorflow", "keras"), "jax": ("keras", "jax", "PIL.Image")}


def command(template: str, out: Path, *options: object) -> list[str]:
    return [str(word) for word in (find_template(template), "--out", out, *options)]


def warm(backend: str) -> WarmPython:
    # Keras reads its backend when it is imported, JAX where it keeps what it compiles.
    return warm_python(IMPORTS.get(backend, ()), tuple(chosen(backend).items()))


def warm_launch(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Start what `launch` and `bench` run with the imports of a backend already done."""
    command = run._command
    monkeypatch.setattr(run, "_command", lambda plan: warm(backend).command(*command(plan)[1:]))


def printed(backend: str, code: str, folder: Path, *arguments: str) -> str:
    """Run a program of a test to its end; returns what it printed."""
    place = folder / "program.py"
    place.write_text(textwrap.dedent(code))
    done = warm(backend).run([str(place), *arguments], environment(backend))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def chosen(backend: str) -> dict[str, str]:
    return {**HEAVY, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}


def environment(backend: str) -> dict[str, str]:
    return {**os.environ, **chosen(backend)}


def digit_shards(factory: pytest.TempPathFactory) -> Path:
    """240 pictures of the digits 0, 1 and 2, presized to 32x32 in three shards."""
    return made_once(factory, "digits", _write_digits) / "shards"


def _write_digits(folder: Path) -> None:
    bunch = pytest.importorskip("sklearn.datasets").load_digits(n_class=3)
    from PIL import Image

    for label in range(3):
        (folder / "photos" / f"digit-{label}").mkdir(parents=True)
        for number, pixels in enumerate(bunch.images[bunch.target == label][:80]):
            picture = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((32, 32))
            picture.convert("RGB").save(folder / "photos" / f"digit-{label}" / f"{number:03}.png")
    options = data.PresizeOptions(size=(32, 32), shard_bytes=100_000)
    data.presize(folder / "photos", folder / "shards", options)


def train(template: str, backend: str, out: Path, *options: object) -> dict[str, Any]:
    """Train to the end; returns the result.json."""
    said(template, backend, out, *options)
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def said(template: str, backend: str, out: Path, *options: object) -> str:
    """Run a template to its end; returns what it said."""
    program = command(template, out, *options)
    done = warm(backend).run(program, environment(backend))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(template: str, backend: str, out: Path, *options: object) -> str:
    """What a template says when it cannot begin."""
    program = command(template, out, *options)
    done = warm(backend).run(program, environment(backend))
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def interrupt(
    template: str, backend: str, out: Path, number: signal.Signals, after: str, *options: object
) -> int:
    """Send a signal when a line of the output begins with `after`; returns the exit code."""
    read, write = os.pipe()
    with open(read) as lines:
        with open(write, "wb") as stdout, open(os.devnull, "wb") as stderr:
            words = command(template, out, *options)
            streams = {1: stdout.fileno(), 2: stderr.fileno()}
            program = warm(backend).start(words, environment(backend), streams)
        for line in lines:
            if line.startswith(after):
                os.kill(program.pid, number)
                break
        lines.read()
    return program.wait()


SPEAKING_TO_ITSELF = """
import builtins, os, runpy, signal, sys

def speak(*words, say=print, **options):
    say(*words, **options)
    if str(words[0]).startswith("step "):
        os.kill(os.getpid(), signal.SIGTERM)

builtins.print = speak
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def told_to_stop_while_speaking(template: str, backend: str, out: Path, *options: object) -> str:
    """Run a template that gets SIGTERM as it says how a step went; returns what it said."""
    place = out.parent / "speaking.py"
    place.write_text(SPEAKING_TO_ITSELF)
    program = [str(place), *command(template, out, *options)]
    done = warm(backend).run(program, environment(backend))
    assert done.returncode == 128 + signal.SIGTERM, done.stdout + done.stderr
    return done.stdout


def weights(model: Path) -> dict[str, np.ndarray]:
    """Every array of a model.keras, optimizer and random generators included."""
    import h5py

    found: dict[str, np.ndarray] = {}

    def collect(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item)

    with (
        zipfile.ZipFile(model) as archive,
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file,
    ):
        file.visititems(collect)
    assert found
    return found


def different(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> list[str]:
    """The names of arrays that are not equal to the bit."""
    assert one.keys() == two.keys()
    return [name for name in one if not np.array_equal(one[name], two[name])]
