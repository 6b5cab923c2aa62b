"""Machines that nobody recorded: other sizes, places and versions of those that are known."""

from typing import Any

import pytest

from tests.machines import chips, codes, diagnosed

ATTRIBUTES = "instance/attributes/"
GCE = {
    "/sys/class/dmi/id/product_name": "Google Compute Engine\n",
    "/sys/class/dmi/id/sys_vendor": "Google\n",
}
NIC = {"addr": "0000:00:1e.0", "vendor": "0x1ae0", "device": "0x0042", "driver": "gvnic"}
DOCKER = {"/.dockerenv": None}
JAX = {"jax": "0.7.2", "jaxlib": "0.7.2", "libtpu": "0.0.23"}
COLAB = {
    "COLAB_RELEASE_TAG": "release-colab_20250902-060114_RC00",
    "COLAB_JUPYTER_IP": "172.28.0.12",
    "TBE_RUNTIME_ADDR": "172.28.0.1:8011",
    "MODEL_PROXY_HOST": "https://mp.kaggle.net",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_VERSION": "12.5.1",
    "COLAB_TPU_1VM": "",
    "COLAB_GPU": "",
}
KAGGLE = {
    "KAGGLE_KERNEL_RUN_TYPE": "Batch",
    "KAGGLE_DATA_PROXY_URL": "https://dp.kaggle.net",
    "COLAB_RELEASE_TAG": "release-colab-external-images_20260514-060047_RC00",
    "NVIDIA_VISIBLE_DEVICES": "all",
}


def metadata(kind: str, *, worker: int = 0, hosts: int = 1, chips: str = "2,2,1") -> dict[str, str]:
    """What the metadata server tells a TPU VM about its slice."""
    names = ",".join(f"t1v-n-0f996b37-w-{n}:12345:10.130.0.{26 + n}" for n in range(hosts))
    return {
        f"{ATTRIBUTES}accelerator-type": kind,
        f"{ATTRIBUTES}agent-worker-number": str(worker),
        f"{ATTRIBUTES}worker-network-endpoints": names,
        f"{ATTRIBUTES}tpu-env": f"ACCELERATOR_TYPE: '{kind}'\nCHIPS_PER_HOST_BOUNDS: '{chips}'\n"
        f"HOST_BOUNDS: '1,1,{hosts}'\nWORKER_ID: '{worker}'\n",
    }


def nodes(count: int, kind: str = "vfio/") -> dict[str, None]:
    control = {"/dev/vfio/vfio": None} if kind == "vfio/" else {}
    return {**{f"/dev/{kind}{n}": None for n in range(count)}, **control}


def gpus(*names: str) -> dict[str, Any]:
    files: dict[str, Any] = {f"/dev/nvidia{n}": None for n in range(len(names))}
    for n, name in enumerate(names):
        files[f"/proc/driver/nvidia/gpus/0000:0{n}:00.0/information"] = f"Model: \t {name}\n"
    return {**files, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None}


def two_functions_each(count: int) -> list[Any]:
    return [
        {**entry, "addr": entry["addr"][:-1] + str(function), "iommu_group": 2 * n + function}
        for n, entry in enumerate(chips(count, "0x0076"))
        for function in (0, 1)
    ]


def tpu_vm(kind: str, count: int, device: str, **changes: Any) -> dict[str, Any]:
    accel = device in ("0x0027", "0x005e")
    more = changes.pop("pci", {})
    driver = more.pop("driver", "tpu_v4") if accel else "vfio-pci"
    return {
        "files": {**GCE, **nodes(count, "accel" if accel else "vfio/")},
        "pci": [*chips(count, device, driver=driver, **more), NIC],
        "metadata": metadata(kind),
        "packages": dict(JAX),
        **changes,
    }


def answers(*values: Any) -> dict[str, Any]:
    keys = (
        "runtime", "accelerator", "generation", "chips", "cores", "devices", "hosts",
        "strategy_tf", "strategy_jax", "strategy_torch",
    )  # fmt: skip
    return dict(zip(keys, values, strict=True))


NO = "not-installed"
EIGHT_GROUPS = nodes(8)
POD = {
    "KUBERNETES_SERVICE_HOST": "34.118.224.1",
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
EMPTY = dict.fromkeys(
    (
        "KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL", "ISTPUVM", "COLAB_RELEASE_TAG",
        "COLAB_JUPYTER_IP", "COLAB_TPU_ADDR", "COLAB_TPU_1VM", "COLAB_GPU", "TBE_RUNTIME_ADDR",
        "VERTEX_PRODUCT", "KUBERNETES_SERVICE_HOST", "TPU_NAME", "TPU_CONFIG", "TPU_TOPOLOGY",
        "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_HOST_BOUNDS", "TPU_PROCESS_ADDRESSES",
        "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_ACCELERATOR_TYPE", "TPU_VISIBLE_CHIPS", "JAX_PLATFORMS",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TF_CONFIG", "MEGASCALE_NUM_SLICES", "container",
        "SM_CURRENT_HOST", "DATABRICKS_RUNTIME_VERSION", "CLOUD_SHELL", "XLA_USE_BF16",
        "TPU_LIBRARY_PATH", "PJRT_DEVICE", "KERAS_BACKEND", "JAX_XLA_BACKEND",
        "TF_USE_LEGACY_KERAS", "TPU_SKIP_MDS_QUERY", "PAPERSPACE_NOTEBOOK_ID",
    ),
    "",
)  # fmt: skip

MACHINES: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "v5litepod-4": (
        tpu_vm("v5litepod-4", 4, "0x0063"),
        answers("cloud-tpu-vm", "tpu", "v5e", 4, 4, 4, 1, NO, "mesh", NO),
        set(),
    ),
    "v6e-8": (
        tpu_vm("v6e-8", 8, "0x006f", metadata=metadata("v6e-8", chips="2,4,1")),
        answers("cloud-tpu-vm", "tpu", "v6e", 8, 8, 8, 1, NO, "mesh", NO),
        set(),
    ),
    "v6e-1": (
        tpu_vm("v6e-1", 1, "0x006f", metadata=metadata("v6e-1", chips="1,1,1")),
        answers("cloud-tpu-vm", "tpu", "v6e", 1, 1, 1, 1, NO, "single", NO),
        set(),
    ),
    "v4-16 worker 1": (
        tpu_vm("v4-16", 4, "0x005e", metadata=metadata("v4-16", worker=1, hosts=2)),
        {
            **answers("cloud-tpu-pod-worker", "tpu", "v4", 4, 8, 4, 2, NO, "distributed+mesh", NO),
            "worker": 1,
        },
        {"F55"},
    ),
    "v3-32 worker 3": (
        tpu_vm(
            "v3-32",
            4,
            "0x0027",
            metadata=metadata("v3-32", worker=3, hosts=4),
            pci={"driver": "tpu_v3", "subsystem_device": "0x004f"},
            packages={"torch": "2.9.0+cpu", "torch_xla": "2.9.0", "libtpu": "0.0.21"},
        ),
        {
            **answers("cloud-tpu-pod-worker", "tpu", "v3", 4, 8, 8, 4, NO, NO,
                      "xla-launch-all-hosts"),
            "worker": 3,
        },
        {"F55"},
    ),
    "tpu7x-8, two functions in each chip": (
        tpu_vm(
            "tpu7x-8",
            4,
            "0x0076",
            files={**GCE, **EIGHT_GROUPS},
            metadata=metadata("tpu7x-8"),
            packages={"jax": "0.12.0.1", "jaxlib": "0.12.0", "libtpu": "0.0.50"},
        )
        | {"pci": [*two_functions_each(4), NIC]},
        answers("cloud-tpu-vm", "tpu", "tpu7x", 4, 8, 8, 1, NO, "mesh", NO),
        set(),
    ),
    "Kaggle CPU with Colab's release tag": (
        {
            "env": {**KAGGLE, "COLAB_JUPYTER_IP": "172.28.0.12"},
            "files": {"/kaggle/working/": None, "/kaggle/input/": None, **DOCKER},
            "packages": {"tensorflow": "2.20.0", "jax": "0.7.2", "jaxlib": "0.7.2",
                         "torch": "2.10.0+cpu", "google-colab": "1.0.0", "protobuf": "5.29.5"},
        },
        answers("kaggle-cpu", "none", None, 0, 0, 0, 1, "default", "cpu", "cpu"),
        set(),
    ),
    "Colab GPU": (
        {
            "env": {**COLAB, "COLAB_GPU": "1"},
            "files": {"/var/colab/hostname": None, **DOCKER, **gpus("NVIDIA L4")},
            "packages": {"tensorflow": "2.20.0", "jax": "0.7.2", "jaxlib": "0.7.2",
                         "jax-cuda12-plugin": "0.7.2", "torch": "2.11.0+cu128"},
        },
        {
            **answers("colab-gpu", "gpu", None, 0, 0, 0, 1, "default", "single", "cuda-single"),
            "gpus": 1,
            "gpu_names": ("NVIDIA L4",),
        },
        set(),
    ),
    "Colab CPU, where NVIDIA_VISIBLE_DEVICES proves nothing": (
        {
            "env": COLAB,
            "files": {"/var/colab/hostname": None, **DOCKER},
            "packages": {"tensorflow": "2.20.0", "jax": "0.7.2", "jaxlib": "0.7.2"},
        },
        {**answers("colab-cpu", "none", None, 0, 0, 0, 1, "default", "cpu", NO), "gpus": 0},
        set(),
    ),
    "GKE v5e 2x4": (
        {
            "env": {**POD, "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_TOPOLOGY": "2x4",
                    "TPU_HOST_BOUNDS": "1,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1"},
            "files": EIGHT_GROUPS,
            "pci": chips(8, "0x0063"),
            "packages": JAX,
        },
        {
            **answers("gke-tpu-pod", "tpu", "v5e", 8, 8, 8, 1, NO, "mesh", NO),
            "worker": 0,
            "container": True,
        },
        set(),
    ),
    "GKE v5e 2x4 on two hosts": (
        {
            "env": {**POD, "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_TOPOLOGY": "2x4",
                    "TPU_WORKER_HOSTNAMES": "job-0.svc,job-1.svc", "TPU_WORKER_ID": "1"},
            "files": nodes(4),
            "pci": chips(4, "0x0063"),
            "packages": JAX,
        },
        {
            **answers("gke-tpu-pod", "tpu", "v5e", 4, 4, 4, 2, NO, "distributed+mesh", NO),
            "worker": 1,
        },
        {"F55"},
    ),
    "docker on v5p, privileged": (
        tpu_vm("v5p-8", 4, "0x0062", files={**nodes(4), **DOCKER}),
        {
            **answers("docker-on-tpu-vm", "tpu", "v5p", 4, 8, 4, 1, NO, "mesh", NO),
            "usable": True,
        },
        set(),
    ),
    "docker on v5p, not privileged": (
        tpu_vm("v5p-8", 4, "0x0062", files=DOCKER),
        {
            **answers("docker-on-tpu-vm", "tpu", "v5p", 4, 8, 4, 1, NO, "mesh", NO),
            "usable": False,
        },
        {"F12"},
    ),
    "docker on v5p without the host's network": (
        tpu_vm("v5p-8", 4, "0x0062", files={**nodes(4), **DOCKER}, metadata=None),
        answers("docker-on-tpu-vm", "tpu", "v5p", 4, 8, 4, 1, NO, "mesh", NO),
        {"F43"},
    ),
    "workstation with four GPUs": (
        {
            "env": {"KAGGLE_USERNAME": "me", "KAGGLE_KEY": "x"},
            "files": gpus(*["NVIDIA RTX A6000"] * 4),
            "packages": {"tensorflow": "2.20.0", "jax": "0.7.2", "jaxlib": "0.7.2",
                         "jax-cuda12-plugin": "0.7.2", "torch": "2.9.0"},
        },
        {
            **answers("workstation", "gpu", None, 0, 0, 0, 1, "mirrored", "mesh", "cuda-ddp"),
            "gpus": 4,
        },
        set(),
    ),
    "workstation with an Intel NPU": (
        {
            "files": {"/dev/accel/": None, "/dev/accel/accel0": None,
                      "/sys/class/accel/accel0/dev": "261:0\n", "/dev/vfio/vfio": None},
            "pci": [{"addr": "0000:00:0b.0", "vendor": "0x8086", "device": "0x7d1d",
                     "driver": "intel_vpu"}],
            "packages": {**JAX, "tensorflow": "2.20.0", "torch": "2.9.0+cpu"},
        },
        {
            **answers("workstation", "none", None, 0, 0, 0, 1, "default", "cpu", "cpu"),
            "usable": None,
        },
        set(),
    ),
    "GCE VM with nothing of Google's but gVNIC": (
        {
            "files": {**GCE, "/dev/vfio/vfio": None, "/dev/vfio/0": None},
            "pci": [{**NIC, "iommu_group": 0}],
            "metadata": {"instance/name": "vm", "instance/zone": "projects/1/zones/us-east1-b"},
            "packages": {"tensorflow-cpu": "2.20.0"},
        },
        answers("gce-vm", "none", None, 0, 0, 0, 1, "default", NO, NO),
        set(),
    ),
    "SageMaker with four GPUs": (
        {
            "env": {"SM_CURRENT_HOST": "algo-1", "SM_TRAINING_ENV": "{}"},
            "files": {"/opt/ml/": None, **gpus(*["Tesla V100-SXM2-16GB"] * 4), **DOCKER},
            "packages": {"tensorflow": "2.19.0", "torch": "2.9.0+cu126", "jax": "0.7.2",
                         "jaxlib": "0.7.2"},
        },
        {
            **answers("sagemaker", "gpu", None, 0, 0, 0, 1, "mirrored", "cpu", "cuda-ddp"),
            "gpus": 4,
        },
        set(),
    ),
    "Databricks": (
        {
            "env": {"DATABRICKS_RUNTIME_VERSION": "15.4", "TPU_NAME": ""},
            "packages": {"tensorflow": "2.18.0", "protobuf": "5.29.4", "torch": "2.9.0+cpu"},
        },
        answers("databricks", "none", None, 0, 0, 0, 1, "default", NO, "cpu"),
        set(),
    ),
    "every variable set and empty": (
        {"env": EMPTY, "packages": {**JAX, "tensorflow": "2.20.0", "keras": "3.13.2"}},
        answers("workstation", "none", None, 0, 0, 0, 1, "default", "cpu", NO),
        set(),
    ),
    "every variable set and empty on a TPU VM": (
        tpu_vm("v5litepod-4", 4, "0x0063", env=EMPTY),
        answers("cloud-tpu-vm", "tpu", "v5e", 4, 4, 4, 1, NO, "mesh", NO),
        set(),
    ),
    "a newer JAX with the libtpu that it declares": (
        tpu_vm(
            "v5p-8",
            4,
            "0x0062",
            packages={"jax": "0.9.1", "jaxlib": "0.9.1", "libtpu": "0.0.35.1", "keras": "3.15.0"},
        ),
        {
            **answers("cloud-tpu-vm", "tpu", "v5p", 4, 8, 4, 1, NO, "mesh", NO),
            "strategy_keras": "jax-data-parallel",
        },
        set(),
    ),
    "an old JAX with the nightly libtpu of its time": (
        tpu_vm(
            "v3-8",
            4,
            "0x0027",
            pci={"driver": "tpu_v3", "subsystem_device": "0x004f"},
            packages={"jax": "0.4.33", "jaxlib": "0.4.33",
                      "libtpu-nightly": "0.1.dev20240916"},
        ),
        answers("cloud-tpu-vm", "tpu", "v3", 4, 8, 8, 1, NO, "mesh", NO),
        set(),
    ),
    "TensorFlow's TPU build on v4": (
        tpu_vm(
            "v4-8",
            4,
            "0x005e",
            packages={"tensorflow-tpu": "2.19.1", "libtpu": "0.0.10", "keras": "3.10.0",
                      "protobuf": "5.29.4"},
        ),
        {
            **answers("cloud-tpu-vm", "tpu", "v4", 4, 8, 4, 1, "tpu-local", NO, NO),
            "strategy_keras": "tensorflow-tpu-local",
        },
        set(),
    ),
    "TensorFlow's TPU build on v6e, which needs the PJRT variables": (
        tpu_vm(
            "v6e-4",
            4,
            "0x006f",
            packages={"tensorflow-tpu": "2.19.1", "libtpu": "0.0.10", "protobuf": "5.29.4"},
        ),
        answers("cloud-tpu-vm", "tpu", "v6e", 4, 4, 4, 1, "tpu-local", NO, NO),
        {"F30"},
    ),
    "Colab v6e-1 with a torch of the GPU image": (
        {
            "env": {**COLAB, "COLAB_TPU_1VM": "1", "TPU_ACCELERATOR_TYPE": "v6e-1",
                    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_HOST_BOUNDS": "1,1,1",
                    "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
                    "VBAR_CONTROL_SERVICE_URL": "172.28.0.1:8353"},
            "files": {"/var/colab/hostname": None, **DOCKER, **nodes(1)},
            "pci": chips(1, "0x006f"),
            "packages": {**JAX, "torch": "2.11.0+cu128", "torch-xla": "2.9.0"},
        },
        answers("colab-tpu-vm", "tpu", "v6e", 1, 1, 1, 1, NO, "single", "xla-single"),
        {"F22", "F24", "F27"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_variation_is_diagnosed_as_the_facts_demand(name: str) -> None:
    machine, expected, problems = MACHINES[name]
    diagnosis = diagnosed(machine)
    assert {key: getattr(diagnosis, key) for key in expected} == expected
    assert codes(diagnosis) == problems


def test_one_chip_less_is_another_answer() -> None:
    machine, expected, _ = MACHINES["v6e-8"]
    diagnosis = diagnosed({**machine, "pci": machine["pci"][1:]})
    assert diagnosis.chips == expected["chips"] - 1
