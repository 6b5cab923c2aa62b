"""Where am I: the rules, on machines made for each of them."""

import json
from typing import Any

import pytest

from tests.machines import chips, diagnosed
from tpuctl.diagnosis.report import Diagnosis

KAGGLE = {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "KAGGLE_DATA_PROXY_URL": "https://dp"}
COLAB = {"COLAB_RELEASE_TAG": "release-colab_x", "COLAB_JUPYTER_IP": "172.28.0.12"}
GCE = {"/sys/class/dmi/id/product_name": "Google Compute Engine\n"}
WORKERS = "instance/attributes/worker-network-endpoints"
NUMBER = "instance/attributes/agent-worker-number"


def nodes(count: int, *, accel: bool = False) -> dict[str, None]:
    return {f"/dev/{'accel' if accel else 'vfio/'}{n}": None for n in range(count)}


def look(**document: Any) -> Diagnosis:
    return diagnosed(document)


def test_kaggle_is_tested_before_colab_whose_marks_its_images_carry() -> None:
    assert look(env={**KAGGLE, **COLAB, "COLAB_GPU": "1"}).runtime == "kaggle-cpu"
    assert look(env={**KAGGLE, **COLAB}, files={"/dev/nvidia0": None}).runtime == "kaggle-gpu"


@pytest.mark.parametrize(
    "env",
    [
        {"KAGGLE_KERNEL_RUN_TYPE": "", "KAGGLE_DATA_PROXY_URL": "https://dp"},
        {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "KAGGLE_DATA_PROXY_URL": ""},
        {"KAGGLE_USERNAME": "x", "KAGGLE_KEY": "y"},
        {"MODEL_PROXY_HOST": "https://mp.kaggle.net"},
    ],
)
def test_one_mark_of_kaggle_is_not_enough(env: dict[str, str]) -> None:
    assert look(env=env).runtime == "workstation"


def test_kaggle_without_its_proxy_is_known_by_its_folder() -> None:
    env = {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}
    assert look(env=env, files={"/kaggle/working/": None}).runtime == "kaggle-cpu"


def test_a_kaggle_tpu_image_without_chips_has_no_tpu() -> None:
    found = look(env={**KAGGLE, "ISTPUVM": "1"}, packages={"libtpu": "0.0.17"})
    assert (found.runtime, found.accelerator, found.chips) == ("kaggle-tpu-vm", "none", 0)
    assert [problem.code for problem in found.blocking] == ["F08"]


def test_variables_that_are_empty_or_zero_mean_nothing() -> None:
    found = look(env={**COLAB, "COLAB_TPU_1VM": "", "COLAB_GPU": "0", "COLAB_TPU_ADDR": ""})
    assert (found.runtime, found.accelerator) == ("colab-cpu", "none")
    assert look(env={"KUBERNETES_SERVICE_HOST": "", "CLOUD_SHELL": "false"}).runtime == (
        "workstation"
    )


def test_chips_on_the_bus_win_over_the_address_of_a_legacy_node() -> None:
    env = {**COLAB, "COLAB_TPU_ADDR": "10.0.0.2:8470"}
    found = look(env=env, pci=chips(1, "0x0063"), files=nodes(1))
    assert (found.runtime, found.accelerator) == ("colab-tpu-vm", "tpu")
    assert look(env=env).runtime == "colab-legacy-tpu-node"


@pytest.mark.parametrize(
    "node",
    [
        {"COLAB_TPU_ADDR": "10.0.0.2:8470"},
        {"COLAB_TPU_ADDR": "10.0.0.2:8470", "TPU_NAME": "grpc://10.0.0.2:8470"},
        {"TPU_NAME": "grpc://10.0.0.2:8470"},
        {"XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470"},
    ],
)
def test_a_colab_node_is_for_the_releases_that_can_reach_it(node: dict[str, str]) -> None:
    env = {**COLAB, **node}
    old = look(
        env=env,
        packages={"jax": "0.3.25", "jaxlib": "0.3.25", "torch": "2.0.0", "torch_xla": "2.0"},
    )
    assert (old.runtime, old.accelerator) == ("colab-legacy-tpu-node", "tpu-remote")
    assert (old.strategy_jax, old.strategy_torch) == ("single", "xla-launch")
    assert old.problems == ()
    new = look(
        env=env,
        packages={"jax": "0.4.0", "jaxlib": "0.4.0", "torch": "2.1.0", "torch_xla": "2.1.0"},
    )
    assert (new.runtime, new.accelerator) == ("colab-legacy-tpu-node", "tpu-remote")
    assert (new.strategy_jax, new.strategy_torch) == ("cpu", "cpu")
    assert {"F41", "xla_tpu_legacy"} <= {problem.code for problem in new.problems}
    only_jax = look(env=env, packages={"jax": "0.4.0", "jaxlib": "0.4.0"}).recommended
    assert (only_jax.framework, only_jax.strategy) == ("jax", "cpu")


def vertex_cluster(*pools: int) -> str:
    cluster = {
        f"workerpool{n}": [f"h{n}{m}:2222" for m in range(size)] for n, size in enumerate(pools)
    }
    return json.dumps({"cluster": cluster, "task": {"type": "workerpool1", "index": 0}})


@pytest.mark.parametrize(
    "env",
    [
        {"CLOUD_ML_JOB_ID": "123", "CLUSTER_SPEC": vertex_cluster(1)},
        {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8080"},
        {"CLUSTER_SPEC": vertex_cluster(1)},
    ],
)
def test_a_container_of_vertex_ai_is_not_one_that_somebody_started(env: dict[str, str]) -> None:
    docker = {"/.dockerenv": None}
    found = look(env=env, pci=chips(4, "0x0063"), files={**nodes(4), **docker})
    assert (found.runtime, found.hosts) == ("cloud-tpu-vm", 1)
    assert "a container of Vertex AI" in found.answers.platform[0]
    listed = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}
    several = look(env={**env, **listed}, pci=chips(4, "0x0063"), files={**nodes(4), **docker})
    assert (several.runtime, several.hosts) == ("cloud-tpu-pod-worker", 2)
    assert look(env=env, files=docker).runtime == "gce-vm"
    pod = look(env={**env, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, files={"/dev/nvidia0": None})
    assert (pod.runtime, pod.accelerator) == ("gce-vm", "gpu")


def test_a_cluster_specification_of_somebody_else_is_not_vertex_ai() -> None:
    env = {"CLUSTER_SPEC": '{"worker": ["a:1", "b:1"]}', "AIP_X": "1", "CLOUD_ML_REGION": "x"}
    assert look(env=env).runtime == "workstation"


def test_bounds_that_say_four_do_not_make_one_chip_four() -> None:
    env = {**COLAB, "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_ACCELERATOR_TYPE": "v5e-4"}
    found = look(env=env, pci=chips(1, "0x0063"), files=nodes(1))
    assert (found.chips, found.devices, found.strategy_jax) == (1, 1, "not-installed")


def test_the_public_colab_image_elsewhere_is_not_colab() -> None:
    assert look(env={"COLAB_RELEASE_TAG": "x"}).runtime == "workstation"
    assert look(env={"COLAB_RELEASE_TAG": "x"}, files=GCE).runtime == "gce-vm"


def test_a_pci_slot_is_one_chip_whatever_its_functions() -> None:
    pci = [
        {**entry, "addr": entry["addr"][:-1] + str(function), "iommu_group": 2 * n + function}
        for n, entry in enumerate(chips(4, "0x0076"))
        for function in (0, 1)
    ]
    found = look(pci=pci, files=nodes(8), metadata={NUMBER: "0"}, packages={"jax": "0.12.0"})
    assert (found.generation, found.chips, found.cores, found.devices) == ("tpu7x", 4, 8, 8)
    assert found.usable
    assert found.strategy_jax == "mesh"


@pytest.mark.parametrize(
    ("device", "generation", "cores", "devices"),
    [
        ("0x005e", "v4", 2, 1),
        ("0x0056", "v4i", 1, 1),
        ("0x0063", "v5e", 1, 1),
        ("0x0062", "v5p", 2, 1),
        ("0x006f", "v6e", 1, 1),
        ("0x0083", "tpu8i", 2, 2),
        ("0x007c", "tpu8t", 1, 1),
    ],
)
@pytest.mark.parametrize("count", [1, 4, 8])
def test_every_generation_counts_cores_and_devices(
    device: str, generation: str, cores: int, devices: int, count: int
) -> None:
    found = look(pci=chips(count, device), files=nodes(count))
    assert (found.generation, found.chips) == (generation, count)
    assert (found.cores, found.devices) == (cores * count, devices * count)


@pytest.mark.parametrize(
    ("more", "env", "generation"),
    [
        ({"subsystem_device": "0x004e"}, {}, "v2"),
        ({"subsystem_device": "0x004f"}, {}, "v3"),
        ({"driver": "tpu_v2"}, {}, "v2"),
        ({"driver": "tpu_v3"}, {}, "v3"),
        ({"driver": None}, {"TPU_ACCELERATOR_TYPE": "v2-8"}, "v2"),
        ({"driver": None}, {}, None),
    ],
)
def test_v2_and_v3_are_told_apart_by_subsystem_driver_or_type(
    more: dict[str, Any], env: dict[str, str], generation: str | None
) -> None:
    pci = [{**entry, **more} for entry in chips(4, "0x0027", driver=None)]
    found = look(pci=pci, env=env, files=nodes(4, accel=True))
    assert (found.generation, found.chips, found.devices) == (generation, 4, 8)


def test_googles_other_devices_are_no_tpus() -> None:
    pci = [
        {"addr": f"0000:00:0{n}.0", "vendor": "0x1ae0", "device": device, "iommu_group": n}
        for n, device in enumerate(("0x0042", "0x001f", "0xabcd"))
    ]
    found = look(pci=pci, files={**GCE, **nodes(3)})
    assert (found.runtime, found.accelerator) == ("gce-vm", "none")


def test_nodes_without_chips_are_no_tpus() -> None:
    files = {"/dev/accel/accel0": None, "/dev/vfio/0": None, "/dev/vfio/vfio": None}
    assert look(files=files).accelerator == "none"


def test_the_control_node_and_another_devices_group_do_not_make_chips_usable() -> None:
    found = look(pci=chips(1, "0x0063"), files={"/dev/vfio/vfio": None, "/dev/vfio/7": None})
    assert (found.chips, found.usable) == (1, False)


def test_a_worker_is_known_by_metadata_file_or_host_name() -> None:
    pci, files = chips(4, "0x0063"), nodes(4)
    by_metadata = look(pci=pci, files=files, metadata={NUMBER: "2", WORKERS: "a:1:x,b:2:y,c:3:z"})
    assert (by_metadata.runtime, by_metadata.hosts) == ("cloud-tpu-pod-worker", 3)
    assert by_metadata.worker == 2
    plain = look(pci=pci, files=files, metadata={NUMBER: "1", WORKERS: "host-a,host-b"})
    assert (plain.hosts, plain.worker) == (2, 1)
    text = "HOST_BOUNDS: '2,2,1'\nWORKER_ID: '3'\n"
    by_file = look(pci=pci, files={**files, "/etc/tpu/tpu-env": text})
    assert (by_file.runtime, by_file.hosts, by_file.worker) == ("cloud-tpu-pod-worker", 4, 3)
    named = look(pci=pci, files=files, env={"HOSTNAME": "t1v-n-0f996b37-w-0"})
    assert (named.runtime, named.hosts, named.worker) == ("cloud-tpu-vm", 1, 0)


def test_chips_that_nothing_explains_are_a_tpu_vm_with_low_confidence() -> None:
    found = look(pci=chips(4, "0x0063"), files=nodes(4))
    assert found.runtime == "cloud-tpu-vm"
    assert any("low confidence" in line for line in found.answers.platform)


def test_a_container_on_a_tpu_vm_is_said_to_be_one() -> None:
    for files, env in (({"/.dockerenv": None}, {}), ({}, {"container": "podman"})):
        found = look(
            pci=chips(4, "0x0063"), files={**nodes(4), **files}, env=env, metadata={NUMBER: "0"}
        )
        assert (found.runtime, found.container) == ("docker-on-tpu-vm", True)


def test_a_worker_whose_chips_fell_off_the_bus_is_still_a_tpu_vm() -> None:
    found = look(metadata={NUMBER: "0"}, files=GCE)
    assert (found.runtime, found.accelerator) == ("cloud-tpu-vm", "none")
    assert [problem.code for problem in found.blocking] == ["F08"]


def test_a_pod_is_a_tpu_pod_by_its_chips_or_by_what_it_was_promised() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "34.1.1.1"}
    assert look(env=pod).runtime == "gke-pod"
    assert look(env={**pod, "TPU_TOPOLOGY": "4x4"}).runtime == "gke-tpu-pod"
    names = {**pod, "TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
    found = look(env=names, pci=chips(4, "0x006f"), files=nodes(4))
    assert (found.runtime, found.hosts, found.worker) == ("gke-tpu-pod", 2, 1)


def test_a_sentence_in_place_of_host_names_is_one_host() -> None:
    env = {**KAGGLE, "TPU_WORKER_HOSTNAMES": "WARNING: could not determine, TPU worker hostnames"}
    found = look(env=env, pci=chips(8, "0x0063"), files=nodes(8))
    assert found.hosts == 1
    assert "F47" in {problem.code for problem in found.problems}


@pytest.mark.parametrize(
    ("env", "strategy"),
    [
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "tpu-grpc"),
        ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470"}, "tpu-grpc"),
        ({"TPU_NAME": "my-tpu"}, "tpu-name"),
    ],
)
def test_a_tpu_elsewhere_is_remote(env: dict[str, str], strategy: str) -> None:
    packages = {"tensorflow": "2.9.2", "google-api-python-client": "2"}
    found = look(env=env, packages=packages, metadata={})
    assert (found.runtime, found.accelerator) == ("legacy-tpu-node", "tpu-remote")
    assert (found.strategy_tf, found.chips) == (strategy, 0)


@pytest.mark.parametrize("packages", [{"jax": "0.7.2", "jaxlib": "0.7.2"}, {"tensorflow": "2.9.2"}])
def test_a_name_for_gcloud_is_not_a_tpu_that_a_workstation_can_reach(
    packages: dict[str, str],
) -> None:
    found = look(env={"TPU_NAME": "my-tpu"}, packages=packages)
    assert (found.runtime, found.accelerator) == ("workstation", "none")
    assert found.problems == ()
    assert "my-tpu" in found.answers.platform[0]


def test_a_tpu_called_local_is_not_elsewhere() -> None:
    assert look(env={"TPU_NAME": "local"}).runtime == "workstation"


def test_a_chromebook_is_no_virtual_machine_of_google() -> None:
    files = {
        "/sys/class/dmi/id/product_name": "Eve\n",
        "/sys/class/dmi/id/sys_vendor": "Google\n",
    }
    assert look(files=files).runtime == "workstation"
    assert look(files=files, metadata={}).runtime == "gce-vm"


@pytest.mark.parametrize(
    ("env", "runtime"),
    [
        ({"SM_CURRENT_HOST": "algo-1"}, "sagemaker"),
        ({"DATABRICKS_RUNTIME_VERSION": "15.4"}, "databricks"),
        ({"CLOUD_SHELL": "true"}, "cloud-shell"),
        ({"VERTEX_PRODUCT": "COLAB_ENTERPRISE"}, "colab-enterprise"),
        ({"VERTEX_PRODUCT": "WORKBENCH_INSTANCE"}, "vertex-workbench"),
        ({"PAPERSPACE_NOTEBOOK_ID": "x"}, "workstation"),
    ],
)
def test_other_notebooks_are_known_by_their_variable(env: dict[str, str], runtime: str) -> None:
    assert look(env=env).runtime == runtime


def test_gpus_are_counted_by_node_and_not_by_variable() -> None:
    assert look(env={"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VERSION": "12"}).gpus == 0
    four = {f"/dev/nvidia{n}": None for n in range(4)}
    found = look(files={**four, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None})
    assert (found.accelerator, found.gpus) == ("gpu", 4)
    assert look(files={"/dev/nvidiactl": None}).gpus == 1
    assert look(files={"/dev/dxg": None}).gpus == 1
    name = {"/proc/driver/nvidia/gpus/0000/information": "Model: \t NVIDIA L4\nIRQ: 1\n"}
    assert look(files={"/dev/nvidia0": None, **name}).gpu_names == ("NVIDIA L4",)


@pytest.mark.parametrize(
    ("shown", "gpus"),
    [
        ("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("1,-1,0", 1), ("0, 7", 1), ("NoDevFiles", 0),
        ("GPU-8932f937,GPU-46b32f93", 2), ("MIG-1,MIG-2", 1),
    ],
)  # fmt: skip
def test_hidden_gpus_do_not_count(shown: str, gpus: int) -> None:
    files = {f"/dev/nvidia{n}": None for n in range(4)}
    found = look(env={"CUDA_VISIBLE_DEVICES": shown}, files=files, packages={"torch": "2.9.0"})
    assert (found.gpus, found.accelerator) == (gpus, "gpu" if gpus else "none")
    assert found.strategy_torch == ("cpu", "cuda-single", "cuda-ddp")[gpus]
    assert any(f"shows {gpus} of 4" in line for line in found.answers.hardware)


def test_hiding_gpus_changes_neither_the_platform_nor_their_names() -> None:
    env = {**KAGGLE, "CUDA_VISIBLE_DEVICES": "1"}
    found = look(env=env, files={"/dev/nvidia0": None, "/dev/nvidia1": None})
    assert (found.runtime, found.gpus, found.gpu_names) == ("kaggle-gpu", 1, ("Tesla T4",))
    found = look(env={**KAGGLE, "CUDA_VISIBLE_DEVICES": ""}, files={"/dev/nvidia0": None})
    assert (found.runtime, found.gpus, found.accelerator) == ("kaggle-gpu", 0, "none")


def test_a_gpu_that_only_a_plugin_can_use_counts_with_the_plugin() -> None:
    mac, intel = {"/System/Library/": None}, {"/dev/dri/renderD128": None, "/dev/dri/card0": None}
    assert look(files=mac, packages={"jax": "0.5.2"}).accelerator == "none"
    assert look(files=intel, packages={"jax": "0.11.0"}).accelerator == "none"
    assert look(packages={"jax-metal": "0.1.1"}).accelerator == "none"
    found = look(files=mac, packages={"jax": "0.5.2", "jax-metal": "0.1.1", "torch": "2.9.0"})
    assert (found.gpus, found.strategy_jax, found.strategy_torch) == (1, "single", "cpu")
    packages = {"jax": "0.11.0", "jax-oneapi-plugin": "0.11.0"}
    found = look(env={"CUDA_VISIBLE_DEVICES": ""}, files=intel, packages=packages)
    assert (found.gpus, found.strategy_jax) == (1, "single")


def test_amd_gpus_are_counted_by_their_simds() -> None:
    folder = "/sys/class/kfd/kfd/topology/nodes"
    files = {f"{folder}/0/properties": "simd_count 0\n", f"{folder}/1/properties": "simd_count 8\n"}
    assert look(files=files).gpus == 1


def test_the_answer_is_the_same_from_the_kernel_and_from_a_child_of_it() -> None:
    document: dict[str, Any] = {
        "env": KAGGLE,
        "pci": chips(8, "0x0063"),
        "files": nodes(8),
        "proc": {
            "processes": {
                "60": {"cmdline": "python3 -m ipykernel_launcher", "ppid": 1, "fds": []},
                "70": {"cmdline": "bash", "ppid": 60, "fds": []},
            }
        },
    }
    answers = []
    for me in ({"pid": 60, "ppid": 1}, {"pid": 80, "ppid": 70}):
        document["proc"]["self"] = me
        found = diagnosed(document)
        answers.append((found.runtime, found.devices, found.problems, found.holders))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("device", "count", "name", "hosts"),
    [
        ("0x006f", 4, "v6e-16", 4),
        ("0x0063", 4, "v5litepod-32", 8),
        ("0x0062", 4, "v5p-16", 2),
        ("0x006f", 8, "v6e-8", 1),
        ("0x006f", 1, "v5litepod-16", 1),
        ("0x006f", 4, "nonsense", 1),
    ],
)
def test_the_type_tells_the_hosts_where_nothing_lists_them(
    device: str, count: int, name: str, hosts: int
) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "x", "TPU_ACCELERATOR_TYPE": name}
    assert look(env=env, pci=chips(count, device), files=nodes(count)).hosts == hosts


def test_a_type_never_overrules_bounds_or_names() -> None:
    pci, files = chips(1, "0x0063"), nodes(1)
    for more in ({"TPU_HOST_BOUNDS": "1,1,1"}, {"TPU_WORKER_HOSTNAMES": "localhost"}):
        env = {**COLAB, "TPU_ACCELERATOR_TYPE": "v5e-4", **more}
        assert look(env=env, pci=pci, files=files).hosts == 1
