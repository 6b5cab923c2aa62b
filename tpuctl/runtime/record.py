"""Record a machine for others to replay: secrets and names are removed, the structure is kept."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, cast

from tpuctl.codec import to_plain
from tpuctl.runtime.machine import FdScan, Machine, Process
from tpuctl.runtime.redact import REDACTED, is_secret_name, redact, safe_command

_TPU_HOST = re.compile(r"t1v-n-[0-9a-f]+-w-(\d+)")
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s:'\"]+")
_NAME_LISTS = (
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ADDRS",
    "HOSTNAME",
    "TPU_PROCESS_ADDRESSES",
    "TORCH_TPU_SLICEBUILDER_ADDRESSES",
)
_SAFE_LIST_WORDS = ("localhost", "local")
_PUBLIC = re.compile(
    r"(tensorflow|tf-|keras|jax|libtpu|torch|pytorch-lightning|lightning$|numpy$|protobuf$|flax$"
    r"|optax$|grpcio$|google-|kaggle|accelerate$|transformers$|tpu-info$|intel-(tensorflow$|extension-)"
    r"|cloud-tpu|requests$|ml-dtypes$|orbax|grain$)"
)
# The only requirements that any check reads.
_CHECKED_REQUIREMENT = re.compile(
    r"\s*(jaxlib|libtpu|libtpu-nightly|protobuf|torch)\b", re.IGNORECASE
)


class Scrubber:
    """Removes a machine's secrets, user names and host names.

    What the diagnosis needs is kept: the number of hosts, a worker's number, a URL's scheme.
    """

    def __init__(self, env: Mapping[str, str], files: Mapping[str, str | None]) -> None:
        self._addresses = env.get("TPU_PROCESS_ADDRESSES_PATH", "").strip()
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
        if name.endswith("_VISIBLE_DEVICES"):
            return re.sub(r"\b(GPU|MIG)-[^,\s]+", r"\1-0", value)
        if name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR"):
            return _remote(value)
        if name == "XRT_TPU_CONFIG":
            return re.sub(r"(?<=;)(?!localhost)[^;|]+:\d+", "10.0.0.1:8470", value)
        if name in ("TF_CONFIG", "CLUSTER_SPEC"):
            return re.sub(r'"[^"\s]+:\d+"', '"host:2222"', self.text(_without_job(value)))
        return REDACTED if is_secret_name(name) else self.text(value)

    def file(self, path: str, text: str) -> str:
        """Scrub a file's text."""
        if path in ("/etc/hostname", "/proc/sys/kernel/hostname"):
            return _host_list(text.strip()) + "\n"
        if path == self._addresses:
            # Any file can be named there; one that is not a list of hosts is not recorded.
            return "" if re.search(r"\s", text.strip()) else _host_list(text.strip())
        return self._tpu_env(text) if path.endswith("tpu-env") else self.text(text)

    def metadata(self, path: str, text: str) -> str:
        """Scrub a value of the metadata server."""
        if path.endswith("worker-network-endpoints"):
            count = len([entry for entry in text.split(",") if entry.strip()])
            address = (f":{i}:10.0.0.{i % 250 + 1}" if ":" in text else "" for i in range(count))
            return ",".join(f"worker-{i}{tail}" for i, tail in enumerate(address))
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
    entries = [entry.partition(":") for entry in value.split(",") if entry]
    hosts = list(dict.fromkeys(name for name, *_ in entries))
    return ",".join(_host(name, hosts.index(name)) + colon + port for name, colon, port in entries)


def _host(name: str, number: int) -> str:
    if match := _TPU_HOST.match(name):
        return f"t1v-n-00000000-w-{match[1]}"
    return name if name in _SAFE_LIST_WORDS else f"host-{number}"


def _without_job(cluster: str) -> str:
    """Leave out Vertex AI's copy of the job, which names buckets and arguments."""
    try:
        document = json.loads(cluster)
        return json.dumps({key: value for key, value in document.items() if key != "job"})
    except (ValueError, AttributeError, RecursionError):
        return cluster


def _remote(value: str) -> str:
    if value in _SAFE_LIST_WORDS:
        return value
    if value.startswith("grpc://"):
        return "grpc://10.0.0.1:8470"
    return "10.0.0.1:8470" if re.fullmatch(r"[\d.]+:\d+", value) else "tpu-name"


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


class Recorder:
    """Passes every question about a machine on, and keeps the answers.

    Whatever a check asks for is in the recording, so a replay gives the same diagnosis.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.env = _ObservedEnv(machine.env)
        packages = machine.packages.items()
        self.packages = {name: version for name, version in packages if _PUBLIC.match(name)}
        self._answers: dict[str, dict[Any, Any]] = defaultdict(dict)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        if not callable(found):
            return found

        def ask(question: Any) -> Any:
            answer = found(question)
            self._answers[name][question] = answer
            return answer

        return ask

    @property
    def machine(self) -> Machine:
        """The machine to diagnose while recording."""
        return cast("Machine", self)

    def document(self) -> dict[str, Any]:
        """Return everything that was asked for, scrubbed, in the format that `replay` reads."""
        files = self._files()
        scrub = Scrubber(self._machine.env, files)
        metadata = {path: scrub.metadata(path, text) for path, text in self._known("metadata")}
        host = to_plain(self._machine.host)
        devices = [to_plain(device) for device in self._machine.pci]
        return {
            "name": "recorded",
            "env": {name: scrub.variable(name, text) for name, text in self.env.read.items()},
            "files": {
                scrub.text(path): None if text is None else scrub.file(path, text)
                for path, text in sorted(files.items())
            },
            "absent": [],
            "pci": [{**device, "class": device.pop("pci_class")} for device in devices],
            "metadata": metadata if self._machine.metadata_answers else None,
            "packages": dict(sorted(self.packages.items())),
            "requires": {
                distribution: [line for line in lines if _CHECKED_REQUIREMENT.match(line)]
                for distribution, lines in self._known("requires")
            },
            "python": host.pop("python"),
            "host": host,
            "proc": self._proc(scrub),
            "source": "tpuctl doctor --record",
        }

    def _known(self, question: str) -> list[tuple[Any, Any]]:
        return [pair for pair in self._answers[question].items() if pair[1] is not None]

    def _files(self) -> dict[str, str | None]:
        """Return the text of every file that was read, and None for what merely exists."""
        # User names are only looked up for the report on this machine.
        files = {path: text for path, text in self._known("read") if path != "/etc/passwd"}
        exist = [*self._known("exists"), *self._known("is_device")]
        exist += [(f"{path.rstrip('/')}/", is_dir) for path, is_dir in self._known("is_dir")]
        for path, is_there in exist:
            if is_there and path.rstrip("/") not in files:
                files.setdefault(path, None)
        return files

    def _proc(self, scrub: Scrubber) -> dict[str, Any]:
        me, lockfile = self._machine.self_process, self._machine.lockfile
        inode = lockfile.inode if lockfile else None
        # The other locks of the machine say nothing about the TPU.
        locks = [line for line in self._machine.locks if inode is not None and f":{inode} " in line]
        scan = next((scan for _, scan in self._known("scan_open_files")), FdScan({}, ()))
        seen = {pid: Process(pid) for pid in (*scan.refused, *scan.open_files)}
        seen |= dict(self._known("process"))
        proc = {
            "self": {"pid": me.pid, "ppid": me.ppid, "uid": me.uid},
            "processes": {
                str(pid): {
                    "comm": scrub.text(process.comm) if process.comm else None,
                    "cmdline": scrub.text(safe_command(process.cmdline or "")) or None,
                    "ppid": process.ppid,
                    "uid": process.uid,
                    "fds": "unreadable"
                    if pid in scan.refused
                    else list(scan.open_files.get(pid, ())),
                }
                for pid, process in seen.items()
            },
            "locks": locks,
            "lockfile_inode": inode,
            "lockfile_uid": lockfile.uid if lockfile else None,
            "reachable_ports": {scrub.text(k): v for k, v in self._known("is_reachable")},
        }
        if ports := self._known("is_listening"):
            proc["listening_ports"] = [port for port, is_open in ports if is_open]
        return proc


def to_json(document: dict[str, Any]) -> str:
    """Write the document as the text of a file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
