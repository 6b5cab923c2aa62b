"""What tpuctl, tpu-info, huggingface_hub and accelerate say about the same recorded machines.

Each peer's own functions run in an environment of their own, on the variables and the PCI
devices of the machine; in recorded notebooks with the interactive shell that is there. A part of
docs/peers.md: python -m benchmarks.side_by_side detection
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

from benchmarks.peers import make_environment

HEAD = ("| question | machines | tool | right |", "|---|---|---|---|")
PINS = {
    "tpu-info": ("tpu-info==0.14.2",),
    "huggingface_hub": ("huggingface_hub==2.4.0",),
    "accelerate": ("accelerate==1.15.0", "torch==2.13.0"),
}
_EACH = """
import builtins, json, os, sys, types
answers = []
for machine in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(machine["env"])
    name = "google.colab._shell" if "colab" in machine["place"] else "ipykernel.zmqshell"
    shell = type("Shell", (), {"__module__": name})()
    notebook = "colab" in machine["place"] or "kaggle" in machine["place"]
    builtins.get_ipython = (lambda: shell) if notebook else (lambda: None)
    sys.modules["IPython"] = types.SimpleNamespace(get_ipython=builtins.get_ipython)
    try:
        answers.append(answer(machine))
    except Exception as error:
        answers.append(type(error).__name__)
sys.__stdout__.write(json.dumps(answers))
"""
PEERS = {
    "tpu-info": """
import glob, pathlib, tempfile
from tpu_info import device
found = glob.glob
def answer(machine):
    with tempfile.TemporaryDirectory() as root:
        for chip in machine["pci"]:
            folder = pathlib.Path(root, "sys/bus/pci/devices", chip["addr"])
            folder.mkdir(parents=True)
            for name in ("vendor", "device", "subsystem_device"):
                (folder / name).write_text(chip.get(name) or "")
        glob.glob = lambda pattern: found(root + pattern)
        chip, count = device.get_local_chips()
    return [chip.value.name.removesuffix("x").replace("7", "tpu7x") if chip else None, count]
""",
    "huggingface_hub": """
import importlib
from huggingface_hub.utils import _runtime
def answer(machine):
    importlib.reload(_runtime)
    if _runtime.is_colab_enterprise():
        return "colab-enterprise"
    return "colab" if _runtime.is_google_colab() else "other"
""",
    "accelerate": """
import contextlib, io
from accelerate import notebook_launcher
def answer(machine):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            notebook_launcher(lambda: None, num_processes=1)
    except ModuleNotFoundError as error:
        return error.name.startswith("torch_xla")
    return "TPU" in said.getvalue()
""",
}
Machine = dict[str, Any]


def table() -> list[str]:
    """The lines of the table: each question, and who was right how often."""
    machines = _machines()
    ours = [_ours(each) for each in machines]
    peers = {name: _ask(name, machines) for name in PEERS}
    tpus = [n for n, each in enumerate(machines) if each["chips"][0] and each["pci"]]
    everywhere = list(range(len(machines)))
    placed = [n for n in everywhere if machines[n]["place"]]
    hosted = [n for n in placed if machines[n]["place"].startswith(("colab", "kaggle"))]

    def row(question: str, which: list[int], tool: str, right: Callable[[int], bool]) -> str:
        count = sum(right(n) for n in which)
        return f"| {question} | {len(which)} | {tool} | {count} |"

    def answered(name: str, field: Callable[[Machine], Any], read: Any = None) -> Any:
        return lambda n: (read(peers[name][n]) if read else peers[name][n]) == field(machines[n])

    chips, place, tpu = "which chips, and how many", "Colab, Colab Enterprise or neither", "a TPU?"
    return [
        *HEAD,
        row(chips, tpus, "tpuctl", lambda n: ours[n]["chips"] == machines[n]["chips"]),
        row(chips, tpus, _named("tpu-info"), answered("tpu-info", lambda m: m["chips"])),
        row(tpu, everywhere, "tpuctl", lambda n: ours[n]["tpu"] == machines[n]["tpu"]),
        row(tpu, everywhere, _named("tpu-info"),
            answered("tpu-info", lambda m: m["tpu"], lambda said: said[0] is not None)),
        row(f"{tpu} (Colab and Kaggle)", hosted, "tpuctl",
            lambda n: ours[n]["tpu"] == machines[n]["tpu"]),
        row(f"{tpu} (Colab and Kaggle)", hosted, _named("accelerate") + " `notebook_launcher`",
            answered("accelerate", lambda m: m["tpu"])),
        row(place, placed, "tpuctl", lambda n: _colab(ours[n]) == _colab(machines[n])),
        row(place, placed, _named("huggingface_hub"), answered("huggingface_hub", _colab)),
        row("which of 20 places", placed, "tpuctl",
            lambda n: ours[n]["place"] == machines[n]["place"]),
    ]  # fmt: skip


def _named(name: str) -> str:
    return f"{name} {PINS[name][0].partition('==')[2]}"


def _colab(machine: Machine) -> str:
    place = machine["place"]
    if place == "colab-enterprise":
        return str(place)
    return "colab" if place.startswith("colab") else "other"


def _machines() -> list[Machine]:
    """Every recorded machine that says whether it has a TPU, with the answers that are right."""
    from tests.machines import environments
    from tests.test_doctor_public_machines import MACHINES, recording

    known = [*map(recording, MACHINES), *environments().values()]
    return [
        _with_answers(each)
        for each in known
        if "accelerator" in each["expected"] or each.get("pci")
    ]


def _with_answers(document: Machine) -> Machine:
    expected = document["expected"]
    tpu = expected.get("accelerator", "tpu") == "tpu"
    return {
        "document": document,
        "env": {key: value for key, value in document.get("env", {}).items() if value is not None},
        "pci": document.get("pci") or [],
        "place": expected.get("runtime") or "",
        "tpu": tpu,
        "chips": [expected.get("generation"), expected.get("chips")] if tpu else [None, 0],
    }


def _ours(machine: Machine) -> Machine:
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.runtime.replay import RecordedMachine

    found = diagnose(RecordedMachine(machine["document"]))
    return {
        "place": found.runtime,
        "tpu": found.accelerator == "tpu",
        "chips": [found.generation, found.chips],
    }


def _ask(name: str, machines: list[Machine]) -> list[Any]:
    asked = [{key: each[key] for key in ("env", "pci", "place")} for each in machines]
    done = subprocess.run(
        [make_environment(name, PINS[name]), "-c", PEERS[name] + _EACH],
        input=json.dumps(asked), check=True, capture_output=True, text=True,
    )  # fmt: skip
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers
