"""The commands that are interrupted, each in a world of its own."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import MORNING
from tests.interrupting import HONEST, Opened, Place
from tests.pictures import fill
from tpuctl.cloud.connect import connect
from tpuctl.cloud.create import create
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.cloud.requests import SURELY_MISSING
from tpuctl.datasets.verify import verify
from tpuctl.emulator.errors import ApiError
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.server import Emulator, serve
from tpuctl.emulator.service import ScaledClock
from tpuctl.storage import open_storage

A, B = "us-west4-a", "us-central1-a"
SCALE = 500
ZONE = {"types": ["v5litepod-8"], "capacity_chips": 64, "quota_chips": 64}
PIPELINE = """
import numpy as np

def images(seed=0):
    for index in range(12):
        yield {"image": np.full(400, index + seed, np.uint8), "label": index}
"""


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, byte for byte, without what Python keeps of its modules."""
    there = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    files = sorted(path for path in there if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def modes(folder: Path) -> dict[str, int]:
    """The permissions of every file and folder below a folder."""
    there = (path for path in sorted(folder.rglob("*")) if not path.is_symlink())
    return {f"mode of {path.relative_to(folder)}": path.stat().st_mode for path in there}


def content(address: str) -> dict[str, bytes]:
    storage = open_storage(address)
    return {entry.name: storage.read(entry.name) for entry in storage.list()}


def _sound(address: Path | str) -> Callable[[], None]:
    """What has a manifest is a whole data set, at any moment."""

    def check() -> None:
        there = tree(address) if isinstance(address, Path) else content(address)
        if "manifest.json" in there:
            assert verify(address, deep=True).damage == ()

    return check


def _photos(place: Place) -> Path:
    folder = fill(place.root / "given" / "photos", 6, classes=2, width=96)
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1, 1))
    return folder


def _presize(place: Place, address: Path | str, *words: str) -> list[str]:
    options = ["--size", "32", "--shard-size", "4000B", "--workers", "2", "--json"]
    return ["data", "presize", str(_photos(place)), str(address), *options, *words]


def presize_folder(place: Place, stack: ExitStack) -> Opened:
    out = place.root / "out"
    return Opened(_presize(place, out), lambda: tree(out), _sound(out))


def presize_tar(place: Place, stack: ExitStack) -> Opened:
    out = place.root / "out"
    return Opened(_presize(place, out, "--format", "wds"), lambda: tree(out), _sound(out))


def presize_array_record(place: Place, stack: ExitStack) -> Opened:
    out = place.root / "out"
    return Opened(_presize(place, out, "--format", "arrayrecord"), lambda: tree(out), _sound(out))


def presize_overwrite(place: Place, stack: ExitStack) -> Opened:
    out, words = place.root / "out", _presize(place, place.root / "out")
    assert place.run([*words, "--seed", "9"]).code == 0
    return Opened([*words, "--overwrite"], lambda: tree(out), _sound(out))


def presize_bucket(place: Place, stack: ExitStack) -> Opened:
    _cloud(place, stack, buckets={"shelf": {}})
    address = "gs://shelf/small"
    return Opened(
        _presize(place, address),
        lambda: content(address),
        _sound(address),
        methods=lambda: STORAGE,
    )


def cache_pipeline(place: Place, stack: ExitStack) -> Opened:
    (place.root / "given" / "input.py").write_text(PIPELINE)
    out = place.root / "out"
    words = ["data", "cache", "input.py:images", str(out), "--variants", "2"]
    words += ["--shard-size", "3000B", "--json"]
    return Opened(words, lambda: tree(out), _sound(out))


def cache_copy(place: Place, stack: ExitStack) -> Opened:
    _cloud(place, stack, buckets={"shelf": {}})
    assert place.run(_presize(place, "gs://shelf/small")).code == 0
    copies = place.root / "cache"
    words = ["data", "cache", "gs://shelf/small", "--json"]
    return Opened(words, lambda: tree(copies), methods=lambda: STORAGE)


def _cloud(place: Place, stack: ExitStack, *faults: dict[str, Any], **changes: Any) -> Emulator:
    """An emulator that the place's commands use, and this process for its buckets."""
    scenario = {"zones": {A: ZONE, B: ZONE}, "faults": list(faults), "time_scale": SCALE}
    scenario |= {"provision_s": 20, "delete_s": 5, "project": "p", **changes}
    machines = place.aside / "machines" if scenario.pop("machines", None) else None
    fault = dict(place.fault)
    if fault and not (is_repeated := fault.pop("repeat", False)):
        scenario["faults"] = [fault, *faults]
    clock = ScaledClock(MORNING, SCALE)
    emulator = stack.enter_context(serve(scenario, clock=clock, machines=machines))
    place.env |= {
        "TPUCTL_TPU_ENDPOINT": emulator.endpoint,
        "TPUCTL_PROJECT": "p",
        "STORAGE_EMULATOR_HOST": emulator.http,
    }
    if fault and is_repeated:
        _repeat(emulator, fault["on"])
    environment = stack.enter_context(pytest.MonkeyPatch.context())
    environment.setenv("STORAGE_EMULATOR_HOST", emulator.http)
    return emulator


def _repeat(emulator: Emulator, method: str) -> None:
    """Have a network that delivers every request of a method twice, and the second reply."""
    answer = emulator.answer

    def twice(call: Call) -> Document:
        if call.method == method:
            with suppress(ApiError):
                answer(call)
        return answer(call)

    emulator.answer = twice  # type: ignore[method-assign]


def _journal(place: Place, emulator: Emulator) -> list[tuple[str, str, str]]:
    """What the journal still has to care for, when the next command has looked."""
    found = _open_entries(place)
    if any(phase != "ready" for _, _, phase in found):
        # A request may take effect for some minutes, so it is not given up at once.
        for _ in range(2):
            assert place.run(["list", "--json"]).code == 0
            emulator.clock.sleep(SURELY_MISSING.total_seconds())
        assert place.run(["list", "--json"]).code == 0
    if place.disk_was_full:
        # The journal cannot record an end then; what it still calls ready is looked for anyway.
        there = {node.key.name for node in emulator.advance().nodes.values()}
        return [entry for entry in _open_entries(place) if entry[0] in there]
    return _open_entries(place)


def _open_entries(place: Place) -> list[tuple[str, str, str]]:
    documents = [json.loads(p.read_text()) for p in (place.root / "state/creates").glob("*.json")]
    found = [(d["name"], d["zone"], d["phase"]) for d in documents if d["phase"] != "closed"]
    return sorted(found)


STORAGE = {
    f"storage_{name}"
    for name in ("insert", "upload_chunk", "get", "stat", "list", "delete", "patch")
}


def _asked(emulator: Emulator) -> Callable[[], set[str]]:
    return lambda: {method for method, _, _ in emulator.requests}


def _billed(place: Place, emulator: Emulator) -> Callable[[], dict[str, Any]]:
    """All that exists in the cloud, and what the journal knows of it."""

    def look() -> dict[str, Any]:
        world = emulator.advance()
        return {
            "journal": _journal(place, emulator),
            "nodes": sorted((n.key.name, n.key.zone, n.state) for n in world.nodes.values()),
            "queued": sorted((q.key.name, q.key.zone, q.state) for q in world.queued.values()),
            "sessions": sorted(p.name for p in (place.root / "state/creates").rglob("*.lock")),
        }

    return look


def _known(place: Place, emulator: Emulator) -> Callable[[], None]:
    """Nothing exists, and so may be billed, without an open entry that leads to it."""

    def check() -> None:
        api, journal = (
            connect("p", endpoint=emulator.endpoint),
            Journal(place.root / "state/creates"),
        )
        known = {e.create_id for e in journal.entries(api) if e.phase != "closed"}
        things: list[Any] = [
            *api.list_nodes(ALL_ZONES).items,
            *api.list_queued_resources(ALL_ZONES).items,
        ]
        unknown = [t.name for t in things if t.labels.get(LABEL_CREATE_ID) not in known]
        assert not [t for t in things if t.name in unknown and t.state != "DELETING"], unknown

    return check


def _in_cloud(
    place: Place, emulator: Emulator, words: list[str], again: tuple[int, ...] = (0,)
) -> Opened:
    look, check = _billed(place, emulator), _known(place, emulator)
    return Opened(words, look, check, again, methods=_asked(emulator))


def create_node(place: Place, stack: ExitStack) -> Opened:
    emulator = _cloud(place, stack, zones={A: {**ZONE, "capacity_chips": 0}, B: ZONE})
    words = ["create", "t1", "--type", "v5e-8", "--zones", f"{A},{B}", "--yes", "--json"]
    return _in_cloud(place, emulator, words, again=(1,))


def create_queued(place: Place, stack: ExitStack) -> Opened:
    zones = {A: {**ZONE, "capacity_chips": 0}, B: ZONE}
    emulator = _cloud(place, stack, zones=zones)
    words = ["create", "t1", "--type", "v5e-8", "--zones", f"{A},{B}", "--queued", "--yes"]
    return _in_cloud(place, emulator, [*words, "--json"], again=(1,))


def _made(place: Place, emulator: Emulator, *names: str, **options: Any) -> None:
    """TPUs that exist, and stand in the journal as those of an earlier create."""
    api = connect("p", endpoint=emulator.endpoint)
    for name in names:
        plan = complete_plan(api, plan_create(CreateOptions(name, "v5e-8", zones=(A,), **options)))
        create(api, plan, journal=Journal(place.root / "state" / "creates"), wait=True)


def delete_two(place: Place, stack: ExitStack) -> Opened:
    emulator = _cloud(place, stack)
    _made(place, emulator, "t1", "t2", "stays")
    words = ["delete", "t1", "t2", "--yes", "--json"]
    return _in_cloud(place, emulator, words)


def gc(place: Place, stack: ExitStack) -> Opened:
    emulator = _cloud(place, stack, {"on": "node", "name": "dead", "event": "preempt", "at_s": 60})
    _made(place, emulator, "unwanted", "stays", "dead")
    api, journal = connect("p", endpoint=emulator.endpoint), Journal(place.root / "state/creates")
    for entry in journal.entries(api):
        if entry.name == "unwanted":
            journal.update(entry, phase="abandoned")
    emulator.clock.sleep(60)
    return _in_cloud(place, emulator, ["gc", "--yes", "--json"])


MODEL = """
import jax
import jax.numpy as jnp

def make(batch=8):
    S = jax.ShapeDtypeStruct
    arguments = S((batch, 128), jnp.float32), S((128, 128), jnp.float32)
    return lambda x, w: jnp.tanh(x @ w), arguments
"""
SCRIPT = """
import os
FRAMEWORKS = ("jax",)
try:
    with open(os.path.expanduser("~/ran"), "a") as file:
        file.write("once\\n")
except OSError:
    raise SystemExit(1) from None
"""


def fit(place: Place, stack: ExitStack) -> Opened:
    (place.root / "given" / "model.py").write_text(MODEL)

    def result() -> dict[str, Any]:
        data = json.loads(place.last.stdout)["data"]
        varying = ("compile_seconds", "from_cache", "compilations")
        return {key: value for key, value in data.items() if key not in varying}

    return Opened(["fit", "model.py:make", "--type", "v5e-8", "--json"], result)


def _homes(place: Place) -> dict[str, bytes]:
    """What is in the homes of all workers, without what the agent keeps for itself."""
    homes = sorted((place.aside / "machines").glob("*/*/home"))
    found = {
        f"{n}/{name}": data for n, home in enumerate(homes) for name, data in tree(home).items()
    }
    return {name: data for name, data in found.items() if "/.tpuctl/" not in name}


def _code(place: Place) -> None:
    folder = place.root / "given" / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pkg" / "data").write_bytes(bytes(range(256)) * 1000)
    (folder / "pkg" / "link").symlink_to("data")


def copy_up(place: Place, stack: ExitStack) -> Opened:
    emulator = _cloud(place, stack, machines=True)
    _made(place, emulator, "t1")
    _code(place)
    words = ["cp", "code", "t1:code", "--zone", A, "--json"]

    def result() -> dict[str, Any]:
        (copy,) = (place.aside / "machines").glob("*/*/home/code")
        return {**_homes(place), **modes(copy)}

    return Opened(words, result, methods=_asked(emulator))


def copy_down(place: Place, stack: ExitStack) -> Opened:
    opened = copy_up(place, stack)
    assert place.run(opened.words).code == 0
    out = place.root / "out"
    words = ["cp", "t1:code", str(out), "--zone", A, "--json"]
    return Opened(words, lambda: {**tree(out), **modes(out)})


def launch_on(place: Place, stack: ExitStack) -> Opened:
    emulator = _cloud(place, stack, machines=True)
    _made(place, emulator, "t1")
    _code(place)
    words = ["launch", "code/train.py", "--on", "t1", "--zone", A, "--job", "j1", "--json"]

    def result() -> dict[str, Any]:
        # A launch that was killed leaves the job running; the same name is not started twice.
        assert place.run(["logs", "t1", "--zone", A, "--job", "j1", "-f"]).code == 0
        homes = _homes(place)
        (told,) = (name for name in homes if name.endswith("/tpuctl/training.json"))
        # Its times are others in every run.
        return {**homes, told: json.loads(homes[told])["returncode"]}

    return Opened(words, result, again=(1,))


def launch_here(place: Place, stack: ExitStack) -> Opened:
    _code(place)
    ran = place.root / "home" / "ran"
    words = ["launch", "code/train.py", "--framework", "jax", "--json"]

    def result() -> dict[str, Any]:
        # A kill may cut what the script itself writes; the second run writes it whole.
        return {"ran": ran.read_text().endswith("once\n")}

    # A script that something kills gives launch its exit code.
    return Opened(words, result, honest=(*HONEST, 128 + signal.SIGKILL))


def _answers(place: Place) -> int:
    """How many watches have said that the job is done."""
    found = [run.stdout for run in place.runs if run.words[0] == "watch"]
    return sum('"status": "ok"' in text and text.endswith("}\n") for text in found)


def watch(place: Place, stack: ExitStack, *more: str) -> Opened:
    emulator = _cloud(place, stack, machines=True)
    _code(place)
    words = ["watch", "t1", "--type", "v5e-8", "--zone", A, "--code", "code", "--yes", "--json"]
    look = _billed(place, emulator)

    def result() -> dict[str, Any]:
        homes = _homes(place)
        ran = {k: len(v.split()) for k, v in homes.items() if k.endswith("ran")}
        files = {k: v for k, v in homes.items() if k not in ran}
        made = [p.read_text() for p in (place.root / "state/creates").glob("*.json")]
        tpus = len([text for text in made if json.loads(text).get("node_id")])
        # A watch that said the job is done, and is started again, may be a new one.
        often = {times if times < 1 else max(1, times + 1 - _answers(place))
                 for times in (tpus, *ran.values())}  # fmt: skip
        return {**look(), **files, "often": often}

    words = [*words, *more, "--", "python3", "train.py"]
    return Opened(words, result, methods=_asked(emulator))


def watch_delete(place: Place, stack: ExitStack) -> Opened:
    return watch(place, stack, "--delete")


CASES = {
    "presize": presize_folder,
    "presize --overwrite": presize_overwrite,
    "presize --format wds": presize_tar,
    "presize --format arrayrecord": presize_array_record,
    "presize gs://": presize_bucket,
    "cache": cache_pipeline,
    "cache gs://": cache_copy,
    "create": create_node,
    "create --queued": create_queued,
    "delete": delete_two,
    "gc": gc,
    "watch": watch,
    "watch --delete": watch_delete,
    "cp up": copy_up,
    "cp down": copy_down,
    "launch": launch_here,
    "launch --on": launch_on,
    "fit": fit,
}
