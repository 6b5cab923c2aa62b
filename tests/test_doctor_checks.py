"""Each check: a machine on which it fires, and the neighbouring one on which it does not."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.machines import chips, codes, diagnosed
from tpuctl.diagnosis.diagnose import CHECKS
from tpuctl.reporters import machine as report
from tpuctl.reporters.display import card

JAX = {"jax": "0.7.2", "jaxlib": "0.7.2", "libtpu": "0.0.23"}
XLA = {"torch": "2.9.0", "torch_xla": "2.9.0", "libtpu": "0.0.21"}
TORCH_TPU = {"torch": "2.12.0", "torch-tpu": "0.2.0", "libtpu": "0.0.50.1"}
NUMBER = "instance/attributes/agent-worker-number"
KERNEL = "python3 -m ipykernel_launcher -f k.json"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def tpu_vm(device: str = "0x0063", count: int = 4, **changes: Any) -> dict[str, Any]:
    """A healthy TPU VM, with changes merged into its parts."""
    accel = device in ("0x0027", "0x005e")
    node = "accel" if accel else "vfio/"
    machine: dict[str, Any] = {
        "env": {},
        "files": {f"/dev/{node}{n}": None for n in (*range(count), *([] if accel else ["vfio"]))},
        "pci": chips(count, device, driver="tpu_v4" if accel else "vfio-pci"),
        "metadata": {NUMBER: "0", "instance/attributes/worker-network-endpoints": "t1v-n-0-w-0"},
        "packages": dict(JAX),
        "proc": {"self": {"pid": 50, "ppid": 1, "uid": 1000}},
    }
    for part, value in copy.deepcopy(changes).items():
        if isinstance(value, dict) and isinstance(machine.get(part), dict):
            machine[part].update(value)
        else:
            machine[part] = value
    return machine


def nobody_home(**changes: Any) -> dict[str, Any]:
    """A TPU VM without device nodes."""
    return {**tpu_vm(**changes), "files": changes.get("files", {})}


def holder(pid: int, fds: Any, cmdline: str = "python train.py", uid: int = 1000) -> dict[str, Any]:
    return {str(pid): {"comm": "python", "cmdline": cmdline, "ppid": 1, "uid": uid, "fds": fds}}


def proc(processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"processes": processes, **more}


LOCK = {"locks": ["1: POSIX ADVISORY WRITE 7 fe:00:77 0 EOF"], "lockfile_inode": 77}
VFIO = ["/dev/vfio/0", "/dev/vfio/vfio"]
DOCKER = {"/.dockerenv": None}
TPU_ENV = "instance/attributes/tpu-env"
NODE = {"TBE_RUNTIME_ADDR": "x", "COLAB_TPU_ADDR": "10.0.0.2:8470"}
TF = {"tensorflow": "2.20.0"}

FIRES: dict[str, list[dict[str, Any]]] = {
    "F01": [tpu_vm(proc=proc(holder(7, VFIO), **LOCK, lockfile_uid=1000))],
    "F02": [
        tpu_vm(proc=proc(holder(7, "unreadable", uid=0), **LOCK, lockfile_uid=0)),
        tpu_vm(proc=proc({}, lockfile_inode=77, lockfile_uid=0)),
    ],
    "F03": [tpu_vm(proc=proc({}, **LOCK, lockfile_uid=1000))],
    "F04": [
        tpu_vm("0x005e", proc=proc(holder(7, ["/dev/accel0"]))),
        tpu_vm(
            "0x005e",
            files={
                "/sys/class/accel/accel0/device_owner": "7\n",
                "/sys/class/accel/accel0/is_device_owned": "1\n",
            },
        ),
        tpu_vm("0x005e", files={"/sys/class/accel/accel2/status": "DEAD\n"}),
    ],
    "F05": [tpu_vm(proc=proc(holder(7, VFIO)))],
    "F07": [
        tpu_vm(proc=proc(holder(7, VFIO, KERNEL), self={"pid": 50, "ppid": 7, "uid": 1000})),
        tpu_vm(proc=proc(holder(50, VFIO, KERNEL))),
    ],
    "F08": [nobody_home(), nobody_home(device="0x005e"), {"metadata": {NUMBER: "0"}}],
    "F09": [
        nobody_home(device="0x006f", pci=chips(8, "0x006f", driver=None)),
        tpu_vm(env={"TPU_VISIBLE_CHIPS": "0,4"}),
    ],
    "F10": [nobody_home(pci=chips(4, "0x0063", driver=None)), nobody_home()],
    "F11": [
        tpu_vm("0x006f", files=DOCKER),
        tpu_vm(
            "0x006f",
            files=DOCKER,
            env={"VBAR_CONTROL_SERVICE_URL": "10.0.0.1:8353"},
            proc={"reachable_ports": {"10.0.0.1:8353": False}},
        ),
    ],
    "F12": [
        nobody_home(files=DOCKER),
        nobody_home(files={**DOCKER, "/dev/vfio/0": None, "/dev/vfio/vfio": None}),
        nobody_home(files={**DOCKER, **{f"/dev/vfio/{n}": None for n in range(4)}}),
    ],
    "F13": [
        tpu_vm(files={THP: "always [madvise] never\n"}),
        tpu_vm("0x0076", files={THP: "always madvise [never]\n"}),
    ],
    "F14": [tpu_vm(pci=[*chips(2, "0x0063"), *chips(1, "0x006f", addr="0000:00:09.0")])],
    "F15": [
        {**tpu_vm(), "packages": {"jax": "0.7.2", "jaxlib": "0.7.2"}},
        {**tpu_vm(), "packages": {"torch": "2.9.0", "torch-xla": "2.9.0"}},
    ],
    "F16": [
        {"env": {"JAX_PLATFORMS": "tpu"}, "packages": JAX},
        {"env": {"JAX_PLATFORMS": "tpu,cpu"}, "packages": JAX},
        tpu_vm(env={"JAX_PLATFORMS": "cpu"}),
        {"env": {"JAX_PLATFORMS": "proxy,cpu"}, "packages": JAX},
    ],
    "F17": [
        {**tpu_vm(env={"JAX_PLATFORMS": "tpu"}), "packages": {"jax": "0.7.2", "jaxlib": "0.7.2"}}
    ],
    "F18": [{"packages": {"jax": "0.4.30", "jaxlib": "0.3.25"}}],
    "F19": [
        {"packages": {"jax": "0.7.1", "jaxlib": "0.7.2"}},
        {"packages": {"jax": "0.7.2", "jaxlib": "0.6.2"}},
        {
            "packages": {"jax": "0.7.2", "jaxlib": "0.7.1"},
            "requires": {"jax": ["jaxlib<=0.7.2,>=0.7.2"]},
        },
    ],
    "F20": [tpu_vm(packages={"libtpu": "2.18.0"}), tpu_vm(packages={"libtpu": "1.10.1"})],
    "F21": [
        tpu_vm(
            packages={"jax": "0.4.20", "jaxlib": "0.4.20"},
            metadata={"instance/attributes/accelerator-type": ""},
        )
    ],
    "F22": [
        tpu_vm(packages={"libtpu": "0.0.5"}),
        {**tpu_vm(), "packages": {**TORCH_TPU, "libtpu": "0.0.42.1"}},
        tpu_vm(requires={"jax": ["libtpu==0.0.99.* ; extra == 'tpu'"]}),
        tpu_vm(packages={**XLA, **JAX}),
        tpu_vm(packages=XLA, requires={"torch-xla": ["libtpu==0.0.17 ; extra == 'tpu'"]}),
    ],
    "F24": [
        tpu_vm(packages={**XLA, "torch": "2.11.0+cpu"}),
        tpu_vm(packages={**TORCH_TPU, "torch": "2.9.0"}),
        tpu_vm(packages=TORCH_TPU, requires={"torch-tpu": ["torch>=2.13,<=2.15"]}),
    ],
    "F25": [tpu_vm(packages={**XLA, **TF})],
    "F26": [
        tpu_vm(packages={"libtpu-nightly": "0.1.dev20240916"}),
        {**tpu_vm("0x005e"), "packages": {"tensorflow-tpu": "2.18.0", "libtpu": "0.0.21"}},
    ],
    "F27": [tpu_vm(files={"/var/colab/hostname": None})],
    "F29": [tpu_vm(packages=TF), tpu_vm(packages={"tensorflow-cpu": "2.20.0"})],
    "F30": [{**tpu_vm(), "packages": {"tensorflow-tpu": "2.19.1", "libtpu": "0.0.10"}}],
    "F32": [{"packages": {**TF, "tensorflow-cpu": "2.20.0"}}],
    "F33": [
        {"packages": {"tensorflow": "2.18.0", "protobuf": "7.35.1"}},
        {
            "packages": {"tensorflow": "2.21.0", "protobuf": "5.29.6"},
            "requires": {"tensorflow": ["protobuf>=6.31.1,<8.0.0"]},
        },
    ],
    "F34": [
        {"packages": {"tensorflow": "2.15.0", "keras": "3.0.5"}},
        {"packages": {**TF, "keras": "3.13.2"}, "env": {"TF_USE_LEGACY_KERAS": "1"}},
    ],
    "F35": [
        tpu_vm(packages={**TF, "keras": "3.13.2"}, env={"KERAS_BACKEND": "tensorflow"}),
        tpu_vm(
            packages={**TF, "keras": "3.13.2"},
            env={"HOME": "/root"},
            files={"/root/.keras/keras.json": '{"backend": "tensorflow"}'},
        ),
    ],
    "F36": [tpu_vm(env={"TPU_LIBRARY_PATH": "/gone/libtpu.so"})],
    "F37": [tpu_vm(packages={**XLA, "lightning": "2.6.0"})],
    "F38": [
        tpu_vm(python="3.12.3", packages={"libtpu": "0.0.17", "jax": "0.6.2", "jaxlib": "0.6.2"})
    ],
    "F41": [
        {"env": NODE, "packages": JAX},
        {"env": {"XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470"}, "packages": JAX},
        {
            "env": {"TPU_NAME": "my-tpu"},
            "packages": {"jax": "0.4.1", "jaxlib": "0.4.1"},
            "metadata": {},
        },
    ],
    "F42": [
        {"env": {"JAX_XLA_BACKEND": "tpu_driver"}},
        {"env": {"JAX_BACKEND_TARGET": "grpc://10.0.0.2:8470"}},
    ],
    "F43": [tpu_vm(metadata=None)],
    "F44": [tpu_vm(metadata=None, packages=XLA)],
    "F45": [tpu_vm(env={"TPU_SKIP_MDS_QUERY": "1", "TPU_HOST_BOUNDS": "1,1,1"}, packages=XLA)],
    "F46": [tpu_vm(env={"TPU_ACCELERATOR_TYPE": "trillium"}, packages=XLA)],
    "F47": [
        tpu_vm(env={"TPU_WORKER_HOSTNAMES": "WARNING: could not determine TPU worker hostnames"}),
        tpu_vm(env={"TPU_WORKER_ADDRS": "not an address"}),
    ],
    "F48": [
        {"env": {"TPU_NAME": "my-tpu"}, "packages": {"tensorflow": "2.9.2"}, "metadata": {}},
        tpu_vm(
            "0x005e",
            env={"TPU_NAME": "my-tpu"},
            packages={"tensorflow-tpu": "2.18.0"},
            metadata={"instance/attributes/worker-network-endpoints": "a,b"},
        ),
    ],
    "F49": [tpu_vm(metadata={"instance/preempted": "TRUE"})],
    "F50": [{"env": {"TPU_NAME": "local"}, "packages": TF}],
    "F53": [tpu_vm(env={"TPU_PROCESS_ADDRESSES": "local"}, packages=XLA)],
    "F54": [tpu_vm(env={"TPU_PROCESS_ADDRESSES": "local"})],
    "F55": [
        tpu_vm(metadata={"instance/attributes/worker-network-endpoints": "a,b"}),
        tpu_vm(env={"MEGASCALE_NUM_SLICES": "2"}),
    ],
    "F61": [
        tpu_vm(
            files={"/var/colab/hostname": None},
            env={"PJRT_DEVICE": "CPU"},
            packages={**XLA, "accelerate": "1.14.0"},
        )
    ],
    "F64": [
        tpu_vm(
            metadata={"instance/service-accounts/default/scopes": "https://x/auth/logging.write"}
        )
    ],
    "F69": [tpu_vm(env={"XLA_USE_BF16": "1"}, packages=XLA)],
    "F72": [
        {
            "files": {
                "/dev/nvidia0": None,
                "/proc/driver/nvidia/gpus/0/information": "Model: Tesla P100-PCIE-16GB\n",
            },
            "packages": {"torch": "2.11.0+cu128"},
        }
    ],
    "F74": [tpu_vm(proc=proc(holder(7, "unreadable", uid=0), listening_ports=[8431]))],
    "accelerator_type_unknown": [
        tpu_vm("0x006f", packages={"torch": "2.4.0", "torch_xla": "2.4.0"}),
        tpu_vm("0x0076", packages={"torch": "2.8.0", "torch_xla": "2.8.1"}),
    ],
    "libtpu_package_without_file": [
        {**tpu_vm(), "packages": {"jax": "0.4.14", "libtpu-nightly": "0.1.dev20230727"}}
    ],
    "tpu_env_keys": [
        tpu_vm(metadata={TPU_ENV: "TPU_ACCELERATOR_TYPE: 'v6e-8'\n"}, packages=XLA),
    ],
    "xla_tpu_legacy": [{"env": NODE, "packages": {"torch": "2.9.0", "torch_xla": "2.9.0"}}],
}

QUIET: dict[str, list[dict[str, Any]]] = {
    "F01": [
        tpu_vm(proc=proc({}, locks=["1: POSIX ADVISORY WRITE 7 fe:00:78 0 EOF"], lockfile_inode=77))
    ],
    "F02": [
        tpu_vm(proc=proc({}, lockfile_inode=77, lockfile_uid=1000)),
        tpu_vm(proc=proc({}, self={"pid": 5, "uid": 0}, lockfile_inode=77, lockfile_uid=1000)),
    ],
    "F03": [tpu_vm(proc=proc(holder(7, VFIO), **LOCK, lockfile_uid=1000))],
    "F04": [tpu_vm("0x005e", files={"/sys/class/accel/accel0/status": "ALIVE\n"})],
    "F05": [tpu_vm(proc=proc(holder(7, ["/dev/vfio/vfio", "/dev/vfio/9", "/dev/null"])))],
    "F07": [tpu_vm(proc=proc(holder(7, VFIO, KERNEL))), tpu_vm(proc=proc(holder(50, VFIO)))],
    "F08": [nobody_home(files=DOCKER), {"packages": JAX}],
    "F09": [tpu_vm("0x006f", env={"TPU_VISIBLE_CHIPS": "0,3"})],
    "F11": [
        tpu_vm("0x006f"),
        tpu_vm("0x0063", files=DOCKER),
        tpu_vm("0x006f", files=DOCKER, env={"VBAR_CONTROL_SERVICE_URL": "unix:///x.sock"}),
        tpu_vm("0x006f", files=DOCKER, proc={"reachable_ports": {"[::]:8353": True}}),
    ],
    "F12": [
        tpu_vm(files=DOCKER),
        nobody_home(
            files={"/dev/vfio/0": None, "/dev/vfio/vfio": None},
            env={"KUBERNETES_SERVICE_HOST": "x"},
        ),
        nobody_home(files={f"/dev/vfio/{n}": None for n in range(4)}),
    ],
    "F13": [
        tpu_vm("0x005e", files={THP: "[madvise]"}),
        tpu_vm(files={THP: "[always] madvise never"}),
    ],
    "F15": [
        tpu_vm(),
        {"packages": {"jax": "0.7.2", "jaxlib": "0.7.2"}},
        {"packages": {"torch": "2.9.0", "torch-xla": "2.9.0"}},
        {**tpu_vm(), "packages": {"torch": "2.3.0", "torch-xla": "2.3.0"}},
        {**tpu_vm(files={"/lib/libtpu.so": None}), "packages": {"torch-xla": "2.9.0"}},
    ],
    "F16": [
        tpu_vm(env={"JAX_PLATFORMS": "tpu,cpu"}),
        {"env": {"JAX_PLATFORMS": "tpu"}},
        tpu_vm(env={"JAX_PLATFORMS": "proxy"}, packages={"pathwaysutils": "0.1.13"}),
    ],
    "F18": [
        {"packages": {"jax": "0.2.17", "jaxlib": "0.1.70"}},
        {"packages": {"jax": "0.3.25", "jaxlib": "0.3.25"}},
    ],
    "F19": [
        {"packages": {"jax": "0.7.2", "jaxlib": "0.7.2"}},
        {"packages": {"jax": "0.4.30", "jaxlib": "0.4.28"}},
        {
            "packages": {"jax": "0.9.0", "jaxlib": "0.8.9"},
            "requires": {"jax": ["jaxlib<=0.9.0,>=0.8.5"]},
        },
    ],
    "F22": [
        tpu_vm(packages={"libtpu": "0.0.21.1", "torch": "2.9.0", "torch_xla": "2.9.0"}),
        tpu_vm(packages={"libtpu": "0.0.5"}, requires={"jax": ["libtpu==0.0.5"]}),
        tpu_vm(packages={"jax": "99.0", "jaxlib": "99.0"}),
        tpu_vm(packages=XLA),
        tpu_vm(packages={**XLA, **JAX, "torch_xla": "2.99.0"}),
        tpu_vm(packages={**XLA, **JAX}, requires={"torch-xla": ["libtpu==0.0.99"]}),
    ],
    "F24": [
        tpu_vm(packages={**XLA, "torch": "2.9.1+cpu"}),
        tpu_vm(packages={**TORCH_TPU, "torch": "2.12.1+cpu"}),
        tpu_vm(packages={**TORCH_TPU, "torch": "2.15.0.dev20261101"}),
        tpu_vm(packages={**TORCH_TPU, "torch": "2.12.0", "torch-xla": "2.9.0"}),
        tpu_vm(packages={**TORCH_TPU, "torch": "2.0.0", "torch-tpu": "0.9.9"}),
        {"packages": {"torch": "1.5.0a0+d6149a7", "torch-xla": "1.6+e788e5b"}},
    ],
    "F25": [tpu_vm(packages={**XLA, "tensorflow-cpu": "2.20.0"}), {"packages": {**XLA, **TF}}],
    "F26": [
        tpu_vm(packages={"libtpu-nightly": "0.1.dev20241010+nightly.cleanup"}),
        {**tpu_vm("0x005e"), "packages": {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.15"}},
    ],
    "F29": [{"packages": TF}, {**tpu_vm("0x005e"), "packages": {"tensorflow-tpu": "2.19.1"}}],
    "F30": [
        {**tpu_vm("0x005e"), "packages": {"tensorflow-tpu": "2.19.1"}},
        {
            **tpu_vm(
                metadata={"instance/attributes/tpu-env": "RUNTIME_VERSION: 'tpu-vm-tf-2.18.0-pjrt'"}
            ),
            "packages": {"tensorflow": "2.18.0"},
        },
    ],
    "F33": [{"packages": {"tensorflow": "2.20.0", "protobuf": "7.35.1"}}],
    "F34": [
        {
            "packages": {**TF, "keras": "3.13.2", "tf_keras": "2.20.1"},
            "env": {"TF_USE_LEGACY_KERAS": "1"},
        },
        {"packages": {"tensorflow": "2.15.0", "keras": "2.15.0"}},
    ],
    "F35": [
        tpu_vm(packages={**TF, "keras": "3.13.2"}, env={"KERAS_BACKEND": "jax"}),
        {"packages": {**TF, "keras": "3.13.2"}, "env": {"KERAS_BACKEND": "tensorflow"}},
    ],
    "F36": [tpu_vm(env={"TPU_LIBRARY_PATH": "/x/libtpu.so"}, files={"/x/libtpu.so": None})],
    "F37": [tpu_vm(packages={**XLA, "lightning": "2.5.0"})],
    "F38": [tpu_vm(python="3.12.3"), tpu_vm(python="3.11.9", packages={"libtpu": "0.0.17"})],
    "F41": [
        {"env": NODE, "packages": {"jax": "0.3.25", "jaxlib": "0.3.25"}},
        {"env": {"XRT_TPU_CONFIG": "localservice;0;localhost:51011"}, "packages": JAX},
        tpu_vm(env=NODE),
    ],
    "F43": [tpu_vm(metadata=None, env={"TPU_SKIP_MDS_QUERY": "true"}), {"metadata": None}],
    "F42": [
        {
            "env": {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": "grpc://127.0.0.1:29000"},
            "packages": JAX,
        }
    ],
    "F46": [
        tpu_vm(env={"TPU_ACCELERATOR_TYPE": name}, packages=XLA)
        for name in ("v5litepod-8", "v5e-1", "v6e-4", "tpu7x-8", "v4-16")
    ],
    "F47": [
        tpu_vm(env={"TPU_WORKER_HOSTNAMES": "a, b ,c"}),
        tpu_vm(env={"TPU_WORKER_HOSTNAMES": "a"}),
    ],
    "F48": [
        {"env": {"TPU_NAME": "grpc://10.0.0.2:8470"}, "packages": {"tensorflow": "2.9.2"}},
        tpu_vm("0x005e", env={"TPU_NAME": "my-tpu"}, packages={"tensorflow-tpu": "2.18.0"}),
    ],
    "F50": [tpu_vm(env={"TPU_NAME": "local"}, packages=TF)],
    "F53": [tpu_vm(env={"TPU_PROCESS_ADDRESSES": "a:1,b:1,c:1,d:1"}, packages=XLA)],
    "F64": [
        tpu_vm(
            metadata={"instance/service-accounts/default/scopes": "https://x/auth/cloud-platform"}
        )
    ],
    "F69": [
        tpu_vm(env={"XLA_USE_BF16": "0"}, packages=XLA),
        tpu_vm(env={"XLA_USE_BF16": "1"}, packages={"torch": "2.4.0", "torch_xla": "2.4.0"}),
        {"env": {"XLA_USE_BF16": "1"}},
    ],
    "F72": [
        {"files": {"/dev/nvidia0": None}, "packages": {"torch": "2.11.0+cu128"}},
    ],
    "F74": [tpu_vm(proc=proc(holder(7, "unreadable", uid=0)))],
    "accelerator_type_unknown": [
        tpu_vm("0x006f", packages={"torch": "2.5.0", "torch_xla": "2.5.0.dev20240901"}),
        tpu_vm("0x005e", packages={"torch": "1.13.0", "torch_xla": "1.13"}),
        {"packages": {"torch": "2.4.0", "torch_xla": "2.4.0"}},
    ],
    "libtpu_package_without_file": [
        tpu_vm(packages={"libtpu-nightly": "0.1.dev20230727"}),
        {**tpu_vm(), "packages": {"jax": "0.4.16", "libtpu-nightly": "0.1.dev20230918"}},
        {"packages": {"jax": "0.4.14", "libtpu-nightly": "0.1.dev20230727"}},
    ],
    "tpu_env_keys": [
        tpu_vm(metadata={TPU_ENV: "TPU_ACCELERATOR_TYPE: 'v6e-8'\n"}),
        tpu_vm(metadata={TPU_ENV: "ACCELERATOR_TYPE: 'v6e-8'\n"}, packages=XLA),
        tpu_vm(
            metadata={TPU_ENV: "WORKER_ID: '0'\n"},
            packages=XLA,
            env={"TPU_SKIP_MDS_QUERY": "1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
        tpu_vm(packages=XLA),
    ],
    "xla_tpu_legacy": [{"env": NODE, "packages": {"torch": "2.0.0", "torch_xla": "2.0"}}],
}


def cases(table: dict[str, list[dict[str, Any]]]) -> list[Any]:
    return [
        pytest.param(code, machine, id=f"{code}-{number}")
        for code, machines in table.items()
        for number, machine in enumerate(machines)
    ]


@pytest.mark.parametrize(("code", "machine"), cases(FIRES))
def test_a_check_sees_its_failure(code: str, machine: dict[str, Any]) -> None:
    diagnosis = diagnosed(machine)
    assert code in codes(diagnosis)
    problem = next(problem for problem in diagnosis.problems if problem.code == code)
    assert problem.evidence
    assert problem.fix


@pytest.mark.parametrize(("code", "machine"), cases(QUIET))
def test_a_check_keeps_quiet_next_door(code: str, machine: dict[str, Any]) -> None:
    assert code not in codes(diagnosed(machine))


def test_every_check_has_a_machine_on_which_it_fires() -> None:
    assert set(FIRES) == set(CHECKS)


@pytest.mark.parametrize("device", ["0x005e", "0x0063", "0x0062", "0x006f", "0x0076"])
def test_a_healthy_tpu_vm_has_no_problems(device: str) -> None:
    assert codes(diagnosed(tpu_vm(device))) == set()


@pytest.mark.parametrize("machine", [{}, {"packages": JAX}, {"packages": {**TF, **XLA}}])
def test_a_machine_without_tpu_has_no_problems(machine: dict[str, Any]) -> None:
    assert codes(diagnosed(machine)) == set()


def test_holders_by_lock_and_by_node_are_one_problem_each_not_two() -> None:
    assert codes(diagnosed(FIRES["F01"][0])) == {"F01"}
    assert codes(diagnosed(FIRES["F05"][0])) == {"F05"}
    assert codes(diagnosed(FIRES["F07"][0])) == {"F07"}


def test_the_driver_owner_is_shown_even_when_nobody_can_see_the_process() -> None:
    (holding,) = diagnosed(FIRES["F04"][1]).holders
    assert (holding.pid, holding.command) == (7, None)
    assert holding.seen_by == "device_owner of the driver"


def test_problems_come_gravest_first_and_decide_the_exit_code() -> None:
    grave = diagnosed(tpu_vm(files={THP: "[madvise]"}, packages={"libtpu": "2.18.0"}))
    assert [problem.code for problem in grave.problems] == ["F20", "F13"]
    assert (grave.status, grave.exit_code) == ("attention", 1)
    mild = diagnosed(tpu_vm(files={THP: "[madvise]"}))
    assert (mild.status, mild.exit_code) == ("attention", 0)
    note = diagnosed(FIRES["F55"][0])
    assert (note.status, note.exit_code) == ("ok", 0)


def test_the_wrong_image_is_named_together_with_the_right_one() -> None:
    (problem, *_) = diagnosed(FIRES["F09"][0]).problems
    assert "v2-alpha-tpuv6e" in problem.fix


def test_hugepages_are_only_a_note_where_they_cannot_be_changed() -> None:
    machine = tpu_vm(files={THP: "[madvise]", "/var/colab/hostname": None})
    problem = next(p for p in diagnosed(machine).problems if p.code == "F13")
    assert problem.severity == "note"


def test_a_libtpu_for_jax_beside_torch_xla_is_a_warning_with_the_command() -> None:
    found = diagnosed(tpu_vm(packages={**XLA, **JAX}))
    (problem,) = (problem for problem in found.problems if problem.code == "F22")
    assert (problem.severity, found.status) == ("warning", "attention")
    assert problem.evidence == ("libtpu 0.0.23", "torch-xla 2.9.0 declares libtpu==0.0.21.*")
    assert problem.fix_command == "pip install 'libtpu==0.0.21.*'"


def test_a_libtpu_that_suits_one_framework_is_only_mentioned() -> None:
    found = diagnosed(
        tpu_vm(packages={"torch": "2.9.0", "torch_xla": "2.9.0", "libtpu": "0.0.21.1"})
    )
    assert "F22" not in codes(found)
    assert "libtpu 0.0.21.1 suits torch-xla; jax 0.7.2 declares libtpu==0.0.23" in found.evidence


def test_the_report_is_golden(golden: Callable[[str, str], None]) -> None:
    machine = tpu_vm(
        env={"TPU_PROCESS_ADDRESSES": "local"},
        packages={**TF, **XLA, "keras": "3.13.2"},
        files={THP: "[madvise]"},
        proc=proc(holder(7, VFIO, KERNEL)),
        host={"vcpus": 112, "memory_bytes": 192 * 10**9},
        python="3.12.3",
    )
    paper = io.StringIO()
    console = Console(file=paper, width=100, color_system=None, force_jupyter=False)
    console.print(report.render_diagnosis(diagnosed(machine)))
    lines = (line.rstrip() for line in paper.getvalue().splitlines())
    golden("doctor.txt", "\n".join(lines) + "\n")
    golden("doctor.html", card(diagnosed(machine)) + "\n")
