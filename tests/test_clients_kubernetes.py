"""Clients of Kubernetes, unmodified, with the emulated cluster (make test-clients)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import Target, emulator_for_clients, need
from tests.waiting import wait_until

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

GROUP = ("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")
TPUCTL = (sys.executable, "-m", "tpuctl")
LAUNCH = ("--on", "gke", "--accelerator-type", "v6e-16", "--num-slices", "2", "--staging",
          "gs://photos", "--json")  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with emulator_for_clients(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture(scope="module")
def manifest(target: Target) -> dict[str, Any]:
    """A JobSet that tpuctl has written; its code was uploaded by an earlier launch."""
    script = target.folder / "hello.py"
    script.write_text("import os\nprint('hello from', os.environ['TPU_WORKER_ID'])\n")
    target.run(*TPUCTL, "launch", str(script), "--job", "first", *LAUNCH)
    made = json.loads(target.run(*TPUCTL, "launch", str(script), "--dry-run", *LAUNCH))
    found: dict[str, Any] = made["data"]["manifest"]
    return found


def named(manifest: dict[str, Any], name: str, folder: Path) -> tuple[dict[str, Any], str]:
    """The manifest under another name, and a file with it."""
    document = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return document, str(path)


def kubectl(target: Target, *words: str, ok: bool = True) -> str:
    """Run kubectl, where there is one of which the emulator's version is not too new."""
    need("kubectl")
    version = json.loads(target.run("kubectl", "version", "--client", "-o", "json"))
    found = version["clientVersion"]
    if int(found["minor"].rstrip("+")) < 27:
        pytest.skip(f"kubectl {found['gitVersion']} knows no /openapi/v3, which came with 1.27")
    return target.run("kubectl", *words, ok=ok)


def test_kubectl_creates_follows_and_deletes_a_job_of_ours(
    target: Target, manifest: dict[str, Any]
) -> None:
    document, path = named(manifest, "by-kubectl", target.folder)
    assert "created (server dry run)" in kubectl(target, "apply", "--dry-run=server", "-f", path)
    assert "by-kubectl created" in kubectl(target, "create", "-f", path)
    kubectl(target, "wait", "--for=condition=Completed", "jobset/by-kubectl", "--timeout=120s")
    selector = "jobset.sigs.k8s.io/jobset-name=by-kubectl"
    logs = kubectl(target, "logs", "-l", selector, "--prefix", "--max-log-requests=50", "-f")
    assert logs.count("hello from 3") == 2
    assert "AllJobsCompleted" in kubectl(target, "describe", "jobset", "by-kubectl")
    assert "gke-tpu-pool-0-0" in kubectl(target, "get", "nodes")
    shown = json.loads(kubectl(target, "get", "jobset", "by-kubectl", "-o", "json"))
    assert shown["spec"]["replicatedJobs"] == document["spec"]["replicatedJobs"]
    assert "deleted" in kubectl(target, "delete", "jobset", "by-kubectl")
    assert "not found" in kubectl(target, "get", "jobset", "by-kubectl", ok=False)


def test_kubectl_is_told_what_is_wrong_with_a_manifest(
    target: Target, manifest: dict[str, Any]
) -> None:
    wrong = {**manifest, "spec": {**manifest["spec"], "suspnd": True}}
    _, path = named(wrong, "wrong", target.folder)
    assert 'unknown field "spec.suspnd"' in kubectl(target, "create", "-f", path, ok=False)


def test_the_python_client_does_the_same(target: Target, manifest: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes", reason="kubernetes is not installed")
    kubernetes.config.load_kube_config(target.env["KUBECONFIG"])
    core, custom = kubernetes.client.CoreV1Api(), kubernetes.client.CustomObjectsApi()
    document, _ = named(manifest, "by-python", target.folder)
    custom.create_namespaced_custom_object(*GROUP, document, field_validation="Strict")
    selector = "jobset.sigs.k8s.io/jobset-name=by-python"

    def phases() -> list[str]:
        pods = core.list_namespaced_pod("default", label_selector=selector).items
        return [pod.status.phase for pod in pods]

    wait_until(lambda: phases() == ["Succeeded"] * 8)
    pod = core.list_namespaced_pod("default", label_selector=selector).items[0]
    assert "hello from 0" in core.read_namespaced_pod_log(pod.metadata.name, "default")
    nodes = core.list_node(label_selector="cloud.google.com/gke-tpu-topology=4x4").items
    assert {node.status.allocatable["google.com/tpu"] for node in nodes} == {"4"}
    events = core.list_namespaced_event("default").items
    assert "AllJobsCompleted" in {event.reason for event in events}
    with pytest.raises(kubernetes.client.ApiException) as caught:
        custom.create_namespaced_custom_object(*GROUP, document)
    assert json.loads(caught.value.body)["reason"] == "AlreadyExists"
    custom.delete_namespaced_custom_object(*GROUP, "by-python")
    found = custom.list_namespaced_custom_object(*GROUP)["items"]
    assert "by-python" not in [each["metadata"]["name"] for each in found]


def test_kr8s(target: Target, manifest: dict[str, Any]) -> None:
    kr8s = pytest.importorskip("kr8s")
    job_sets = kr8s.objects.new_class("JobSet", "jobset.x-k8s.io/v1alpha2", namespaced=True)
    document, _ = named(manifest, "by-kr8s", target.folder)
    job_set = job_sets(document)
    job_set.create()
    wait_until(lambda: job_set.refresh() or "status" in job_set.raw)  # kr8s needs it to wait.
    job_set.wait("condition=Completed", timeout=60)
    selector = {"jobset.sigs.k8s.io/jobset-name": "by-kr8s"}
    pods = list(kr8s.get("pods", label_selector=selector))
    assert len(pods) == 8
    assert any("hello from" in line for line in pods[0].logs())
    job_set.label({"a": "b"})
    job_set.delete()
    job_set.wait("delete", timeout=60)


def test_lightkube(target: Target, manifest: dict[str, Any]) -> None:
    lightkube = pytest.importorskip("lightkube")
    resource = pytest.importorskip("lightkube.generic_resource").create_namespaced_resource
    pods = pytest.importorskip("lightkube.resources.core_v1").Pod
    client, (group, version, _, plural) = lightkube.Client(), GROUP
    job_sets = resource(group, version, "JobSet", plural)
    document, _ = named(manifest, "by-lightkube", target.folder)
    client.create(job_sets(**document))
    client.wait(job_sets, "by-lightkube", for_conditions=["Completed"])
    labels = {"jobset.sigs.k8s.io/jobset-name": ["by-lightkube", "other"]}
    assert len(list(client.list(pods, labels=labels))) == 8
    with pytest.raises(lightkube.ApiError) as caught:
        client.create(job_sets(**document))
    assert caught.value.status.reason == "AlreadyExists"
    client.delete(job_sets, "by-lightkube")


def test_the_kubeconfig_is_private(target: Target) -> None:
    path = Path(target.env["KUBECONFIG"])
    assert path.stat().st_mode & 0o077 == 0
