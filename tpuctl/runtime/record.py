"""Record a machine for somebody else: secrets and names are removed, the structure is kept."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpuctl.codec import to_plain
from tpuctl.runtime.machine import FdScan, Machine, Process
from tpuctl.runtime.redact import REDACTED, is_secret_name, redact, safe_command

_TPU_HOST = re.compile(r"t1v-n-[0-9a-f]+-w-(\d+)")
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s:'\"]+")
_NAME_LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ADDRS", "HOSTNAME")
_SAFE_LIST_WORDS = ("localhost", "local")


class Scrubber:
    """Removes a machine's secrets, user names and host names.

    What the diagnosis needs is kept: the number of hosts, a worker's number, a URL's scheme.
    """

    def __init__(self, env: Mapping[str, str], files: Mapping[str, str | None]) -> None:
        users = [env.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")]
        home = env.get("HOME", "").rstrip("/").rsplit("/", 1)[-1]
        hosts = [env.get("HOSTNAME", "")]
        for path in ("/etc/hostname", "/proc/sys/kernel/hostname"):
            hosts.append((files.get(path) or "").strip())
        known = {"root", "", "home", "jovyan", "content"} | set(_SAFE_LIST_WORDS)
        names = {name: "user" for name in (*users, home) if name not in known and len(name) > 1}
        names |= {name: "host" for name in hosts if name not in known and len(name) > 1}
        names |= {
            value: REDACTED
            for name, value in env.items()
            if is_secret_name(name) and len(value) > 7 and name not in ("USER", "LOGNAME")
        }
        self._names = sorted(names.items(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        """Scrub any text."""
        clean = _TPU_HOST.sub(r"t1v-n-00000000-w-\1", text)
        clean = _HOME.sub(r"\1user", redact(clean))
        for name, substitute in self._names:
            if name.startswith("t1v-n-"):
                continue
            clean = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", substitute, clean)
        return clean

    def variable(self, name: str, value: str) -> str:
        """Scrub a variable's value; set but empty stays that way."""
        if not value:
            return value
        if name in _NAME_LISTS:
            return _host_list(value)
        if name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR"):
            return _remote(value)
        if name == "TF_CONFIG":
            return re.sub(r'"[^"\s]+:\d+"', '"host:2222"', self.text(value))
        return REDACTED if is_secret_name(name) else self.text(value)

    def file(self, path: str, text: str) -> str:
        """Scrub a file's text."""
        if path in ("/etc/hostname", "/proc/sys/kernel/hostname"):
            return _host_list(text.strip()) + "\n"
        if path.endswith("tpu-env"):
            return self._tpu_env(text)
        return self.text(text)

    def metadata(self, path: str, text: str) -> str:
        """Scrub a value of the metadata server."""
        if path.endswith("worker-network-endpoints"):
            count = len([entry for entry in text.split(",") if entry.strip()])
            return ",".join(f"worker-{i}:{i}:10.0.0.{i % 250 + 1}" for i in range(count))
        return self._tpu_env(text) if path.endswith("tpu-env") else self.text(text)

    def _tpu_env(self, text: str) -> str:
        kept = []
        for line in text.splitlines():
            key, colon, _ = line.partition(":")
            secret = is_secret_name(key) or key.strip() in ("NODE_ID", "AGENT_BOOTSTRAP_IMAGE")
            kept.append(f"{key}: '{REDACTED}'" if colon and secret else self.text(line))
        return "\n".join(kept) + "\n"


def _host_list(value: str) -> str:
    """Keep the number of hosts, a TPU worker's number, and a sentence where names should be."""
    if "WARNING" in value or " " in value.strip():
        return redact(value)
    names = [name for name in value.split(",") if name]
    return ",".join(_host(name, number) for number, name in enumerate(names))


def _host(name: str, number: int) -> str:
    if match := _TPU_HOST.match(name):
        return f"t1v-n-00000000-w-{match[1]}"
    return name if name in _SAFE_LIST_WORDS else f"host-{number}"


def _remote(value: str) -> str:
    if value in _SAFE_LIST_WORDS:
        return value
    if value.startswith("grpc://"):
        return "grpc://10.0.0.1:8470"
    return "10.0.0.1:8470" if re.fullmatch(r"[\d.]+:\d+", value) else "tpu-name"


_PUBLIC = re.compile(
    r"(tensorflow|tf-|keras|jax|libtpu|torch|pytorch-lightning|lightning$|numpy$|protobuf$|flax$"
    r"|optax$|grpcio$|google-|kaggle|accelerate$|transformers$|tpu-info$|intel-tensorflow$"
    r"|cloud-tpu|requests$|ml-dtypes$|orbax|grain$)"
)
# The only requirements that any check reads.
_CHECKED_REQUIREMENT = re.compile(r"\s*(jaxlib|libtpu|libtpu-nightly|protobuf)\b", re.IGNORECASE)


class _ObservedEnv(Mapping[str, str]):
    """An environment that remembers which of its variables were read."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.read: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        value = self._env[name]
        self.read[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)


class RecordingMachine:
    """A machine that passes every question on to another one and keeps the answers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.env = _ObservedEnv(machine.env)
        self.pci, self.host, self.self_process = machine.pci, machine.host, machine.self_process
        self.locks, self.lockfile = machine.locks, machine.lockfile
        self.metadata_answers = machine.metadata_answers
        packages = machine.packages.items()
        self.packages = {name: version for name, version in packages if _PUBLIC.match(name)}
        self._files: dict[str, str | None] = {}
        self._metadata: dict[str, str] = {}
        self._requires: dict[str, list[str]] = {}
        self._processes: dict[int, Process] = {}
        self._scan = FdScan({}, ())
        self._ports: dict[int, bool] = {}
        self._reachable: dict[str, bool] = {}

    def metadata(self, path: str) -> str | None:
        """Ask, and keep the value."""
        value = self._machine.metadata(path)
        if value is not None:
            self._metadata[path] = value
        return value

    def read(self, path: str) -> str | None:
        """Read, and keep the text."""
        text = self._machine.read(path)
        # User names are only looked up for the report on this machine.
        if text is not None and path != "/etc/passwd":
            self._files[path] = text
        return text

    def exists(self, path: str) -> bool:
        """Ask, and keep the path if it exists."""
        return self._keep(path, self._machine.exists(path))

    def is_dir(self, path: str) -> bool:
        """Ask, and keep the folder if it exists."""
        return self._keep(path.rstrip("/") + "/", self._machine.is_dir(path))

    def is_device(self, path: str) -> bool:
        """Ask, and keep the device if it exists."""
        return self._keep(path, self._machine.is_device(path))

    def names(self, folder: str) -> tuple[str, ...]:
        """Ask; the files in the folder are kept when they are asked for themselves."""
        return self._machine.names(folder)

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """Ask, and keep the requirements that the checks read."""
        lines = self._machine.requires(distribution)
        if lines is not None:
            self._requires[distribution] = [ln for ln in lines if _CHECKED_REQUIREMENT.match(ln)]
        return lines

    def process(self, pid: int) -> Process | None:
        """Ask, and keep the process."""
        process = self._machine.process(pid)
        if process:
            self._processes[pid] = process
        return process

    def scan_open_files(self, wanted: Callable[[str], bool]) -> FdScan:
        """Scan, and keep the processes that were found and those that refused."""
        self._scan = self._machine.scan_open_files(wanted)
        return self._scan

    def is_listening(self, port: int) -> bool | None:
        """Ask, and keep the answer."""
        answer = self._machine.is_listening(port)
        if answer is not None:
            self._ports[port] = answer
        return answer

    def is_reachable(self, address: str) -> bool | None:
        """Ask, and keep the answer."""
        answer = self._machine.is_reachable(address)
        if answer is not None:
            self._reachable[address] = answer
        return answer

    def document(self) -> dict[str, Any]:
        """Return everything that was asked for, scrubbed, in the format that `replay` reads."""
        scrub = Scrubber(self._machine.env, self._files)
        metadata = {path: scrub.metadata(path, text) for path, text in self._metadata.items()}
        host = to_plain(self.host)
        devices = [to_plain(device) for device in self.pci]
        return {
            "name": "recorded",
            "env": {name: scrub.variable(name, text) for name, text in self.env.read.items()},
            "files": {
                scrub.text(path): None if text is None else scrub.file(path, text)
                for path, text in sorted(self._files.items())
            },
            "absent": [],
            "pci": [{**device, "class": device.pop("pci_class")} for device in devices],
            "metadata": metadata if self.metadata_answers else None,
            "packages": dict(sorted(self.packages.items())),
            "requires": self._requires,
            "python": host.pop("python"),
            "host": host,
            "proc": self._proc(scrub),
            "source": "tpuctl doctor --record",
        }

    def _keep(self, path: str, is_there: bool) -> bool:
        if is_there and path.rstrip("/") not in self._files:
            self._files.setdefault(path, None)
        return is_there

    def _proc(self, scrub: Scrubber) -> dict[str, Any]:
        me, lockfile = self.self_process, self.lockfile
        inode = lockfile.inode if lockfile else None
        # The other locks of the machine say nothing about the TPU.
        locks = [line for line in self.locks if inode is not None and f":{inode} " in line]
        scanned = (*self._scan.refused, *self._scan.open_files)
        processes = {**{pid: Process(pid) for pid in scanned}, **self._processes}
        proc = {
            "self": {"pid": me.pid, "ppid": me.ppid, "uid": me.uid},
            "processes": {str(pid): self._process(p, scrub) for pid, p in processes.items()},
            "locks": locks,
            "lockfile_inode": inode,
            "lockfile_uid": lockfile.uid if lockfile else None,
            "reachable_ports": {scrub.text(k): v for k, v in self._reachable.items()},
        }
        if self._ports:
            proc["listening_ports"] = [port for port, is_open in self._ports.items() if is_open]
        return proc

    def _process(self, process: Process, scrub: Scrubber) -> dict[str, Any]:
        refused = process.pid in self._scan.refused
        return {
            "comm": scrub.text(process.comm) if process.comm else None,
            "cmdline": scrub.text(safe_command(process.cmdline)) if process.cmdline else None,
            "ppid": process.ppid,
            "uid": process.uid,
            "fds": "unreadable" if refused else list(self._scan.open_files.get(process.pid, ())),
        }


def to_json(document: dict[str, Any]) -> str:
    """Write the document as the text of a file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
