"""Everything of a machine that may be shown to strangers: the shape stays, the names go."""

import re
from collections.abc import Mapping

from tpuctl.runtime.redact import REDACTED, is_secret_name, redact

_TPU_HOST = re.compile(r"t1v-n-[0-9a-f]+-w-(\d+)")
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s:'\"]+")
_NAME_LISTS = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ADDRS", "HOSTNAME")
_SAFE_LIST_WORDS = ("localhost", "local")


class Scrubber:
    """Removes one machine's secrets, user names and host names from whatever it is given.

    What the diagnosis needs keeps its shape: the number of hosts, a worker's number, a scheme.
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

    def path(self, path: str) -> str:
        """Scrub a path."""
        return self.text(path)

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
    """Keep how many hosts there are, a TPU worker's number, and a sentence that is no name."""
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
