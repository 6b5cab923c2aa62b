"""The kubelet, which runs the containers of a pod as local processes, with what GKE injects."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from tpuctl.emulator.confine import HOSTS
from tpuctl.emulator.kubernetes.objects import Objects, set_condition
from tpuctl.emulator.kubernetes.plan import ACCELERATOR_TYPE, GOOGLE, TPU
from tpuctl.emulator.methods import Document
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.worker_processes import DEVICES, MARK, kill_everything
from tpuctl.storage.local import write_atomically

_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
_SILENCE_S = 1.0


@dataclass
class Pod:
    """The processes and logs of one pod; `folder` replaces its file system."""

    document: Document
    folder: Path
    env: Mapping[str, str]
    logs: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    thread: threading.Thread | None = None
    disrupted: str = ""
    ended: bool = False


class Kubelet:
    """Runs pods, and updates their documents as containers start and end."""

    def __init__(
        self,
        objects: Objects,
        folder: Path,
        *,
        emulator: Emulator,
        scale: float,
        missing_images: Sequence[str],
    ) -> None:
        self._objects, self._folder = objects, folder
        self._missing_images = missing_images
        self._emulator, self._scale = emulator, scale
        self._pods: dict[str, Pod] = {}

    def find(self, document: Document) -> Pod | None:
        """Return a pod that has been started."""
        return self._pods.get(document["metadata"]["uid"])

    def start(self, document: Document, injected: Mapping[str, str], names: Iterable[str]) -> None:
        """Start a pod that has a node; `names` are the host names of its JobSet's pods."""
        folder = self._folder / document["metadata"]["uid"]
        folder.mkdir(parents=True, exist_ok=True)
        known = Path(HOSTS).read_text(encoding="utf-8") if Path(HOSTS).is_file() else ""
        names = (document["spec"]["hostname"], *names)
        lines = "".join(f"127.0.0.1 {name}\n" for name in names)
        write_atomically(folder / "hosts", f"{known.rstrip()}\n{lines}")
        pod = Pod(document, folder, injected)
        self._pods[document["metadata"]["uid"]] = pod
        pod.thread = threading.Thread(target=self._run, args=(pod,), daemon=True)
        pod.thread.start()

    def stop(self, document: Document, why: str = "") -> None:
        """Send SIGTERM to a pod, and SIGKILL after its grace period; `why` is a disruption."""
        pod = self.find(document)
        if pod is None or pod.ended:
            return
        pod.disrupted = pod.disrupted or why or "deleted"
        grace_s = document["spec"].get("terminationGracePeriodSeconds", 30) / self._scale
        threading.Thread(target=self._kill, args=(pod, max(1.0, grace_s)), daemon=True).start()

    def close(self) -> None:
        """Kill everything."""
        for pod in list(self._pods.values()):
            pod.disrupted = pod.disrupted or "closed"
            while pod.thread and pod.thread.is_alive():
                kill_everything(pod.folder)
                pod.thread.join(0.1)

    def follow(self, pod: Pod, container: str, *, follow: bool) -> Iterator[tuple[str, bytes]]:
        """Yield times and lines of a container's log; with `follow`, until the pod has ended."""
        lines, position = pod.logs[container], 0
        while True:
            with self._objects.changed:
                if follow and position == len(lines) and not pod.ended:
                    self._objects.changed.wait(_SILENCE_S)
                found, ended = lines[position:], pod.ended
            yield from found
            position += len(found)
            if not follow or (ended and position == len(lines)):
                return

    def _kill(self, pod: Pod, grace_s: float) -> None:
        process = pod.process
        if process and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(grace_s)
            except (subprocess.TimeoutExpired, ProcessLookupError):
                pass
        kill_everything(pod.folder)

    def _run(self, pod: Pod) -> None:
        spec = pod.document["spec"]
        for volume in spec.get("volumes", ()):
            (pod.folder / "volumes" / volume["name"]).mkdir(parents=True, exist_ok=True)
        code = 0
        for kind in ("initContainers", "containers"):
            for container in spec.get(kind, ()):
                if code == 0 and not pod.disrupted:
                    code = self._run_container(pod, container, is_init=kind == "initContainers")
        kill_everything(pod.folder)
        with self._objects.changed:
            status, now = pod.document["status"], self._objects.time()
            if pod.disrupted and not code:
                code = 137
            status["phase"] = "Failed" if code else "Succeeded"
            if pod.disrupted not in ("", "deleted", "closed"):
                set_condition(status, "DisruptionTarget", "True", pod.disrupted,
                              "the node was preempted", now)  # fmt: skip
            set_condition(
                status, "Ready", "False", "PodFailed" if code else "PodCompleted", "", now
            )
            pod.ended = True
            self._update(pod)

    def _run_container(self, pod: Pod, container: Document, *, is_init: bool) -> int:
        name, env = container["name"], self._environment(pod, container)
        command = [*container.get("command", ()), *container.get("args", ())]
        command = [re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), each) for each in command]
        if command[:1] in (["python"], ["python3"]):
            command[0] = sys.executable
        lines = pod.logs.setdefault(name, [])
        if container.get("image") in self._missing_images:
            return self._wait_for_image(pod, container, is_init)
        started = {"startedAt": self._objects.time()}
        self._set_state(pod, name, {"running": started}, is_init)
        command = command or ["true"]
        if finds_names():
            command = [*_with_names(pod.folder / "hosts"), *command]
        try:
            process = pod.process = subprocess.Popen(  # noqa: S603 (what the user's JobSet says)
                command, cwd=self._work_folder(pod, container), env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            assert process.stdout
            self._read(process.stdout, lines)
            code = process.wait()
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            lines.append((self._objects.time(), f"exec: {error}\n".encode()))
        code = code if code >= 0 else 128 - code
        reason = "Error" if code else "Completed"
        # If nobody stopped the container, only the kernel kills it: out of memory.
        reason = "OOMKilled" if code == 137 and not pod.disrupted else reason
        ended = {**started, "exitCode": code, "reason": reason, "finishedAt": self._objects.time()}
        self._set_state(pod, name, {"terminated": ended}, is_init)
        return code

    def _wait_for_image(self, pod: Pod, container: Document, is_init: bool) -> int:
        why = f'Back-off pulling image "{container["image"]}": not found'
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": why}}
        self._set_state(pod, container["name"], waiting, is_init)
        with self._objects.changed:
            while not pod.disrupted:
                self._objects.changed.wait(_SILENCE_S)
        return 137

    def _read(self, stream: IO[bytes], lines: list[tuple[str, bytes]]) -> None:
        with stream:
            for line in iter(lambda: stream.readline(1 << 14), b""):
                with self._objects.changed:
                    # Real time stamps have nanoseconds, so that no two lines have the same one.
                    now = self._objects.now().isoformat().partition("+")[0][:19]
                    at = f"{now}.{len(lines):09}Z"
                    lines.append((at, line if line.endswith(b"\n") else line + b"\n"))
                    self._objects.changed.notify_all()

    def _set_state(self, pod: Pod, name: str, state: Document, is_init: bool) -> None:
        with self._objects.changed:
            status = pod.document["status"]
            kind = "initContainerStatuses" if is_init else "containerStatuses"
            found = [each for each in status.get(kind, ()) if each["name"] != name]
            running = "running" in state
            status[kind] = [*found, {
                "name": name, "state": state, "ready": running, "restartCount": 0,
                "image": "", "imageID": "", "started": running,
            }]  # fmt: skip
            if running and not is_init:
                status["phase"] = "Running"
                set_condition(status, "Ready", "True", "Started", "", self._objects.time())
            self._update(pod)

    def _update(self, pod: Pod) -> None:
        meta = pod.document["metadata"]
        if self._objects.find("pods", meta["namespace"], meta["name"]) is pod.document:
            self._objects.put("pods", pod.document)
        self._objects.changed.notify_all()

    def _work_folder(self, pod: Pod, container: Document) -> Path:
        """Map the working folder: a mounted volume is a folder of the pod, `/` the pod's own."""
        wanted = Path(container.get("workingDir") or "/")
        for mount in container.get("volumeMounts", ()):
            place = Path(mount["mountPath"])
            if wanted == place or place in wanted.parents:
                folder: Path = pod.folder / "volumes" / mount["name"] / wanted.relative_to(place)
                break
        else:
            folder = pod.folder / "root"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _environment(self, pod: Pod, container: Document) -> dict[str, str]:
        env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        env |= {
            "HOME": str(pod.folder),
            "HOSTNAME": pod.document["spec"]["hostname"],
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
            "STORAGE_EMULATOR_HOST": self._emulator.http,
            MARK: str(pod.folder),
        }
        wanted = container.get("resources", {}).get("limits", {}).get(TPU)
        if wanted:
            devices = pod.folder / "dev" / "vfio"
            devices.mkdir(parents=True, exist_ok=True)
            for chip in range(int(wanted)):
                (devices / str(chip)).touch()
            env |= pod.env
            # Without chips on the PCI bus the frameworks would wait for a TPU in vain.
            env |= {DEVICES: str(devices.parent), "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}
        for variable in container.get("env", ()):
            env[variable["name"]] = variable.get("value", "")
        return env


def _with_names(hosts: Path) -> tuple[str, ...]:
    bind = f'mount --bind "$0" {HOSTS} && exec setpriv --bounding-set=-all -- "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private",
            "--", "/bin/sh", "-c", bind, str(hosts))  # fmt: skip


@cache
def finds_names() -> bool:
    """Whether pods can have their own /etc/hosts, to resolve each other's names."""
    try:
        command = [*_with_names(Path(HOSTS)), "true"]
        return not subprocess.run(command, capture_output=True, check=False).returncode  # noqa: S603 (a probe)
    except OSError:
        return False


def injected(
    node: Document, hosts: list[str], index: int, slices: int, number: int, first: str
) -> dict[str, str]:
    """Return what GKE's webhook and device plugin add to the environment of a TPU pod."""
    labels = node["metadata"]["labels"]
    chips = int(labels[f"{GOOGLE}/gke-accelerator-count"])
    topology = labels[f"{GOOGLE}/gke-tpu-topology"]
    sizes = [*map(int, topology.split("x")), 1, 1][:3]
    bounds = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}[chips]
    shape = [size // bound for size, bound in zip(sizes, bounds, strict=True)]
    env: dict[str, Any] = {
        "TPU_WORKER_ID": index,
        "TPU_WORKER_HOSTNAMES": ",".join(hosts) if len(hosts) > 1 else "localhost",
        "TPU_TOPOLOGY": topology,
        "TPU_ACCELERATOR_TYPE": node["metadata"]["annotations"][ACCELERATOR_TYPE],
        "TPU_CHIPS_PER_HOST_BOUNDS": ",".join(map(str, bounds)),
        "TPU_HOST_BOUNDS": ",".join(map(str, shape)),
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(8431 + chip) for chip in range(chips)),
        "JOB_COMPLETION_INDEX": index,
    }
    if slices > 1:
        env |= {"MEGASCALE_NUM_SLICES": slices, "MEGASCALE_SLICE_ID": number,
                "MEGASCALE_COORDINATOR_ADDRESS": first}  # fmt: skip
    return {name: str(value) for name, value in env.items()}
