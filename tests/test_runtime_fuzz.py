"""Whatever a machine says: a diagnosis or one clear error, never a traceback."""

import contextlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.machines import codes, environments
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import InvalidInputError
from tpuctl.reporters import envelope
from tpuctl.reporters import machine as report
from tpuctl.runtime.live import LiveMachine
from tpuctl.runtime.replay import RecordedMachine, open_recorded

pytestmark = pytest.mark.slow

Check = Callable[[dict[str, Any]], Diagnosis]

VARIABLES = (
    "KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL", "ISTPUVM", "COLAB_RELEASE_TAG",
    "COLAB_JUPYTER_IP", "TBE_RUNTIME_ADDR", "COLAB_TPU_ADDR", "COLAB_TPU_1VM", "VERTEX_PRODUCT",
    "KUBERNETES_SERVICE_HOST", "TPU_TOPOLOGY", "TPU_NAME", "TPU_CONFIG", "TF_CONFIG", "HOSTNAME",
    "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_PROCESS_ADDRESSES", "TPU_ACCELERATOR_TYPE", "TPU_SKIP_MDS_QUERY", "JAX_PLATFORMS",
    "TPU_VISIBLE_CHIPS", "VBAR_CONTROL_SERVICE_URL", "TPU_LIBRARY_PATH", "KERAS_BACKEND", "HOME",
    "TPU_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES_PATH", "TORCH_TPU_SLICEBUILDER_ADDRESSES",
    "MEGASCALE_SLICE_ID", "SLURM_STEP_NUM_NODES", "OMPI_COMM_WORLD_SIZE", "SM_HOSTS", "NODE_RANK",
    "MEGASCALE_NUM_SLICES", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "PJRT_DEVICE", "container",
)  # fmt: skip
PATHS = (
    "/dev/accel0", "/dev/accel/", "/dev/vfio/0", "/dev/vfio/vfio", "/dev/vfio/x", "/dev/nvidia0",
    "/dev/nvidiactl", "/dev/dxg", "/.dockerenv", "/etc/tpu/tpu-env", "/etc/hostname",
    "/sys/class/dmi/id/product_name", "/sys/class/dmi/id/sys_vendor", "/kaggle/working/",
    "/sys/class/accel/accel0/device_owner", "/sys/class/accel/accel0/is_device_owned",
    "/sys/class/accel/accel0/status", "/var/colab/hostname", "/etc/passwd",
    "/proc/driver/nvidia/gpus/0/information", "/sys/class/kfd/kfd/topology/nodes/0/properties",
    "/sys/kernel/mm/transparent_hugepage/enabled",
)  # fmt: skip
DISTS = (
    "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "jax", "jaxlib", "libtpu", "libtpu_nightly",
    "torch", "torch-xla", "keras", "tf_keras", "protobuf", "accelerate", "lightning",
    "jax-cuda12-plugin", "google-api-python-client",
)  # fmt: skip
VALUES = st.sampled_from(
    ["", "1", "0", "local", "localhost", "2,2,1", "2,4,1", ",,,", "-1", "99999999999", "tpu,cpu",
     "grpc://1.2.3.4:8470", '{"cluster": {"worker": 3}}', "v6e-8", "a b", "WARNING: x",
     "unix:///x", "/home/x", "t1v-n-0f-w-3"]
) | st.text(max_size=30)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "ACCELERATOR_TYPE: 'v4-16'\nHOST_BOUNDS: '1,1,2'\n", "Google Compute Engine", "31337\n",
     "always [madvise] never", "simd_count 4", "Model: Tesla P100", ":::", "\x00\ufffd"]
) | st.text(max_size=30)  # fmt: skip
VERSIONS = st.sampled_from(["0.7.2", "2.18.0", "0.0.23", "", "x", "1!2.0", "2.9.0+cpu"]) | st.text(
    max_size=8
)
PCI = st.fixed_dictionaries(
    {
        "addr": st.sampled_from(["0000:00:05.0", "0000:00:05.1", "0000:00:06.0", "", "x"]),
        "vendor": st.sampled_from(["0x1ae0", "0x10de"]),
        "device": st.sampled_from(
            ["0x0027", "0x005e", "0x0063", "0x0062", "0x006f", "0x0076", "0x0083", "0x0042", "?"]
        ),
    },
    optional={
        "subsystem_device": st.sampled_from(["0x004e", "0x004f", None, "?"]),
        "driver": st.sampled_from(["vfio-pci", "tpu_v2", None]),
        "iommu_group": st.none() | st.integers(0, 3),
    },
)
KEYS = st.sampled_from(
    ["instance/attributes/agent-worker-number", "instance/attributes/worker-network-endpoints",
     "instance/attributes/tpu-env", "instance/attributes/accelerator-type", "instance/preempted"]
)  # fmt: skip
PROCESS = st.fixed_dictionaries(
    {},
    optional={
        "comm": st.none() | st.text(max_size=5),
        "cmdline": st.none() | st.text(max_size=20) | st.just("python -m ipykernel_launcher -f x"),
        "ppid": st.none() | st.integers(0, 4),
        "uid": st.none() | st.integers(0, 2),
        "fds": st.just("unreadable") | st.lists(st.sampled_from(PATHS), max_size=3),
    },
)
MACHINES = st.fixed_dictionaries(
    {
        "env": st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=12),
        "files": st.dictionaries(st.sampled_from(PATHS), st.none() | TEXTS, max_size=10),
        "pci": st.lists(PCI, max_size=4),
        "metadata": st.none() | st.dictionaries(KEYS, VALUES | TEXTS, max_size=4),
        "packages": st.dictionaries(st.sampled_from(DISTS), VERSIONS, max_size=8),
    },
    optional={
        "requires": st.dictionaries(st.sampled_from(DISTS), st.lists(st.text(max_size=20))),
        "python": st.none() | VERSIONS,
        "proc": st.fixed_dictionaries(
            {
                "self": st.fixed_dictionaries({"pid": st.integers(0, 4)}),
                "processes": st.dictionaries(st.integers(0, 4).map(str), PROCESS, max_size=4),
            },
            optional={
                "locks": st.lists(
                    st.text(max_size=20) | st.just("1: POSIX ADVISORY WRITE 2 fe:00:77 0 EOF")
                ),
                "lockfile_inode": st.just(77),
                "lockfile_uid": st.integers(0, 2),
                "listening_ports": st.just([8431]),
            },
        ),
    },
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["addr", "fds", "self"]), inner)
    ),
    max_leaves=6,
)
FIELDS = ("env", "files", "pci", "metadata", "packages", "requires", "python", "proc", "host")


def check(document: dict[str, Any]) -> Diagnosis:
    diagnosis = diagnose(RecordedMachine(document))
    json.loads(envelope.success("doctor", diagnosis))
    assert "<script" not in diagnosis._repr_html_().lower()
    assert report.render_diagnosis(diagnosis)
    assert diagnosis.exit_code == (1 if diagnosis.blocking else 0)
    return diagnosis


@dataclass
class Survey:
    """What came of many machines: a refusal is an answer, but it must not be the only one."""

    accepted: int = 0
    refused: int = 0
    runtimes: set[str] = field(default_factory=set)
    accelerators: set[str] = field(default_factory=set)
    problems: set[str] = field(default_factory=set)

    def add(self, document: dict[str, Any], check: Check) -> None:
        try:
            diagnosis = check(document)
        except InvalidInputError:
            self.refused += 1
            return
        self.accepted += 1
        self.runtimes.add(diagnosis.runtime)
        self.accelerators.add(diagnosis.accelerator)
        self.problems |= codes(diagnosis)

    def require(self, *, share: float, runtimes: int, problems: int) -> None:
        """Fail unless enough machines were accepted, and they were different enough."""
        assert self.accepted >= share * (self.accepted + self.refused), self
        assert len(self.runtimes) >= runtimes, self.runtimes
        assert len(self.problems) >= problems, self.problems
        assert {"tpu", "none"} <= self.accelerators, self.accelerators


def survey(
    machines: st.SearchStrategy[dict[str, Any]], examples: int, check: Check = check, **how: Any
) -> Survey:
    found = Survey()

    # The floors below count what is generated, which must not change from run to run.
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, **how)
    @given(machines)
    def run(document: dict[str, Any]) -> None:
        found.add(document, check)

    run()
    return found


@st.composite
def damaged(draw: st.DrawFn, machines: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """A machine with one field missing, null, extended or replaced by anything."""
    document = draw(machines)
    name = draw(st.sampled_from(FIELDS))
    damage = draw(st.sampled_from(["drop", "null", "extend", "replace"]))
    if damage == "drop":
        return {key: value for key, value in document.items() if key != name}
    if damage == "extend":
        return {**document, draw(st.text(max_size=6)): draw(ANYTHING)}
    return {**document, name: None if damage == "null" else draw(ANYTHING)}


SIZES = pytest.mark.parametrize("examples", [120, pytest.param(300, marks=pytest.mark.soak)])


@SIZES
def test_any_well_formed_machine_is_diagnosed(examples: int) -> None:
    survey(MACHINES, examples).require(share=1, runtimes=6, problems=examples // 20)


@SIZES
def test_a_damaged_machine_is_diagnosed_or_refused(examples: int) -> None:
    found = survey(damaged(MACHINES), examples)
    found.require(share=0.6, runtimes=5, problems=examples // 30)
    assert found.refused


def test_a_damaged_recording_is_diagnosed_or_refused() -> None:
    recordings = list(environments().values())
    if not recordings:
        pytest.skip("needs the recorded machines")
    found = survey(damaged(st.sampled_from(recordings)), 150)
    found.require(share=0.5, runtimes=8, problems=12)
    assert found.refused


def refuse(document: dict[str, Any]) -> Diagnosis:
    raise InvalidInputError("no")


def shrug(document: dict[str, Any]) -> Diagnosis:
    return diagnose(RecordedMachine({}))


def stumble(document: dict[str, Any]) -> Diagnosis:
    raise KeyError("env")


@pytest.mark.parametrize("check", [refuse, shrug])
def test_the_fuzzer_notices_when_all_is_refused_or_told_the_same(check: Check) -> None:
    found = survey(MACHINES, 50, check)
    with pytest.raises(AssertionError):
        found.require(share=0.1, runtimes=2, problems=1)


def test_the_fuzzer_notices_a_traceback() -> None:
    with pytest.raises(KeyError):
        survey(MACHINES, 10, stumble, phases=[Phase.generate])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES), st.binary(max_size=60), st.data())
def test_a_live_machine_with_binary_garbage_everywhere_is_diagnosed(
    tmp_path: Path, env: dict[str, str], garbage: bytes, data: st.DataObject
) -> None:
    root = tmp_path / "root"
    for path in data.draw(st.lists(st.sampled_from(PATHS), max_size=6)):
        target = root / path.strip("/")
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(garbage)
    for path in ("proc/locks", "proc/meminfo", "proc/net/tcp", "proc/1/cmdline", "proc/1/status"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(garbage)
    env = {name: value for name, value in env.items() if name != "VBAR_CONTROL_SERVICE_URL"}
    json.loads(envelope.success("doctor", diagnose(LiveMachine(root=root, env=env, path=[]))))


def test_variables_that_are_not_utf_8_are_diagnosed(tmp_path: Path) -> None:
    env = {"TPU_NAME": os.fsdecode(b"\xff\xfe tpu"), "JAX_PLATFORMS": os.fsdecode(b"\x80")}
    diagnosis = diagnose(LiveMachine(root=tmp_path, env=env, path=[]))
    envelope.success("doctor", diagnosis).encode()


def test_a_recording_with_half_a_character_is_diagnosed(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"env": {"TPU_NAME": "\\ud800"}, "metadata": {}}')
    diagnosis = diagnose(open_recorded(path))
    assert diagnosis.runtime == "legacy-tpu-node"
    envelope.success("doctor", diagnosis).encode()


def test_a_fifo_where_a_file_should_be_does_not_hang(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "product_name")
    assert stat.S_ISFIFO(os.stat(folder / "product_name").st_mode)
    assert diagnose(LiveMachine(root=tmp_path, env={}, path=[])).runtime == "workstation"


HUGE = "9" * 5000


@pytest.mark.parametrize("number", [HUGE, "²", "٣", "-1", "1e9"])
def test_numbers_that_are_none_break_nothing(number: str, tmp_path: Path) -> None:
    document = {
        "env": {
            "TPU_WORKER_ID": number,
            "TPU_VISIBLE_CHIPS": number,
            "TPU_HOST_BOUNDS": f"{number},1,1",
            "MEGASCALE_NUM_SLICES": number,
            "TPU_ACCELERATOR_TYPE": f"v5e-{number}",
            "HOSTNAME": f"t1v-n-0f-w-{number}",
        },
        "files": {
            f"/dev/vfio/{number}": None,
            f"/dev/accel{number}": None,
            "/sys/class/accel/accel0/device_owner": number,
            "/sys/class/accel/accel0/is_device_owned": number,
        },
        "pci": [{"addr": "0:0:1.0", "vendor": "0x1ae0", "device": "0x0063"}],
        "packages": {"libtpu": number, "jax": number, "jaxlib": f"{number}.1", "keras": number},
        "requires": {"jax": [f"jaxlib~={number}", f"libtpu=={number}.*"]},
        "proc": {"locks": [f"1: POSIX ADVISORY WRITE {number} 0:0:7 0 EOF"], "lockfile_inode": 7},
    }
    check(document)
    with contextlib.suppress(InvalidInputError):
        check({**document, "proc": {"processes": {number: {"fds": []}}}})
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / number[:200]).mkdir()
    (tmp_path / "proc/locks").write_text(document["proc"]["locks"][0])  # type: ignore[index]
    diagnose(LiveMachine(root=tmp_path, env=document["env"], path=[]))  # type: ignore[arg-type]


def test_null_in_a_recording_is_the_same_as_not_there() -> None:
    fields: dict[str, Any] = dict.fromkeys(FIELDS)
    assert diagnose(RecordedMachine(fields)).runtime == "workstation"
    document = {"env": {"KAGGLE_KERNEL_RUN_TYPE": None}, "packages": {"jax": None}}
    assert diagnose(RecordedMachine(document)).strategy_jax == "not-installed"
