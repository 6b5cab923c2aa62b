"""The YAML of Kubernetes: the user's kubeconfig, what to log in with, and manifests to write."""

import base64
import json
import math
import os
import re
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]

from tpuctl.codec import read_limited
from tpuctl.errors import InvalidInputError, NotLoggedInError, UnavailableError, UnsupportedError
from tpuctl.settings import home
from tpuctl.units import format_duration

HOW_TO_LOG_IN = "gcloud container clusters get-credentials CLUSTER --location LOCATION"
_EMULATOR = "tpuctl-emulator"
_MAX_BYTES = 4 << 20
_PLUGIN_S = 120.0
_EARLY = timedelta(seconds=60)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NOT_SENT = ("as", "as-groups", "as-uid", "as-user-extra", "auth-provider")
Part = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """One context of a kubeconfig; relative paths in its parts begin at the parts' folders."""

    name: str
    namespace: str
    cluster: Part
    user: Part = field(repr=False)
    cluster_folder: Path = Path()
    user_folder: Path = Path()

    @property
    def server(self) -> str:
        """The address of the API."""
        return str(self.cluster["server"]).rstrip("/")

    @property
    def is_encrypted(self) -> bool:
        """Whether a login may be sent."""
        return urlsplit(self.server).scheme == "https"


def find_context(name: str | None = None) -> Context:
    """Read a context, by default the current one, as kubectl does: KUBECONFIG, else ~/.kube/config.

    Raises NotLoggedInError if it is missing, InvalidInputError, UnsupportedError.
    """
    named = os.environ.get("KUBECONFIG")
    paths = [Path(each).expanduser() for each in (named or "").split(os.pathsep) if each]
    found: dict[str, dict[str, tuple[Part, Path]]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = name or ""
    for path in paths or [home() / ".kube" / "config"]:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for kind, known in found.items():
            entries = document.get(kind)
            for entry in entries if isinstance(entries, list) else ():
                part = entry.get(kind[:-1]) if isinstance(entry, dict) else None
                # The first file that names an entry wins.
                if isinstance(part, dict):
                    known.setdefault(str(entry.get("name")), (part, path.absolute().parent))
    if not current or current not in found["contexts"]:
        what = f"no context {current}" if current else "no current context"
        start = 'eval "$(tpuctl emulator start --detach)"'
        hint = f"The emulator sets it: {start}" if current == _EMULATOR else HOW_TO_LOG_IN
        raise NotLoggedInError(f"The kubeconfig has {what}.", hint=hint)
    chosen = found["contexts"][current][0]
    cluster, place = found["clusters"].get(str(chosen.get("cluster")), ({}, Path()))
    user, folder = found["users"].get(str(chosen.get("user")), ({}, Path()))
    namespace = str(chosen.get("namespace") or "default")
    context = Context(current, namespace, cluster, user, place, folder)
    _check(context)
    return context


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses aliases: with them, a few lines stand for a text of any length."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it contains a YAML alias")
        return super().compose_node(parent, index)


_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]+")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: Any, text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("A manifest cannot hold text that is not Unicode.") from None
    # Quoted unless every reader takes it for text: they differ about 1e3 and y.
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def to_yaml(document: Any) -> str:
    """Write a manifest as YAML that people can read, and every reader reads alike."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return str(yaml.dump(document, Dumper=_Dumper, **options))


def _read(path: Path) -> Part:
    if path == Path(os.devnull):
        return {}
    try:
        document = _Loader(read_limited(path, _MAX_BYTES)).get_single_data() or {}
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        text = f"Could not read the kubeconfig {path}: {why}."
        raise InvalidInputError(text, hint=HOW_TO_LOG_IN) from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{path} is not a kubeconfig.", hint=HOW_TO_LOG_IN)
    return document


def _check(context: Context) -> None:
    about = f"The kubeconfig's context {context.name}"
    try:
        url = urlsplit(str(context.cluster.get("server") or ""))
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInputError(f"{about} names no cluster with an address.", hint=HOW_TO_LOG_IN)
    if url.scheme == "http" and url.hostname not in _LOOPBACK:
        raise InvalidInputError(f"{about} sends everything unencrypted to {url.hostname}.")
    # Without what these mean, requests would be sent as another user.
    if unknown := [key for key in _NOT_SENT if context.user.get(key)]:
        raise UnsupportedError(
            f"{about} uses {unknown[0]}, which tpuctl does not support.", hint=HOW_TO_LOG_IN
        )


class Login:
    """The login for one cluster; a plugin is called again when its token expires."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._plugin: Part | None = None
        self._expires: datetime | None = None

    def headers(self) -> dict[str, str]:
        """Return the header with the login; none over an unencrypted connection."""
        user = self.context.user
        if not self.context.is_encrypted:
            return {}
        token = user.get("token")
        if path := user.get("tokenFile"):
            token = self._text(path, self.context.user_folder)
        if user.get("exec"):
            token = self._status().get("token")
        if token:
            return {"Authorization": f"Bearer {token}"}
        if user.get("username"):
            pair = f"{user['username']}:{user.get('password', '')}"
            return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        return {}

    def forget(self) -> bool:
        """Forget the plugin's answer; False without a plugin to ask again."""
        self._plugin = None
        return bool(self.context.user.get("exec"))

    def tls(self) -> ssl.SSLContext:
        """Trust the cluster's authority, and present the user's certificate where there is one."""
        cluster, place = self.context.cluster, self.context.cluster_folder
        try:
            authority = _data(cluster, "certificate-authority", place)
            made = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
            made.name = str(cluster.get("tls-server-name") or "") or None
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            if cluster.get("insecure-skip-tls-verify") is True:
                made.check_hostname = False
                made.verify_mode = ssl.CERT_NONE
            elif authority:
                made.load_verify_locations(cadata=authority.decode())
            else:
                made.load_default_certs()
            certificate, key = self._certificate()
            if certificate and key:
                with tempfile.NamedTemporaryFile() as file:  # Readable by this user alone.
                    file.write(certificate + b"\n" + key)
                    file.flush()
                    made.load_cert_chain(file.name)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"A certificate in the kubeconfig's context {self.context.name} cannot be used: "
                f"{error}.",
                hint=HOW_TO_LOG_IN,
            ) from error
        return made

    def _certificate(self) -> tuple[bytes | None, bytes | None]:
        user, folder = self.context.user, self.context.user_folder
        if user.get("exec"):
            status = self._status()
            pair = (status.get("clientCertificateData"), status.get("clientKeyData"))
            return tuple(part.encode() if part else None for part in pair)  # type: ignore[return-value]
        return _data(user, "client-certificate", folder), _data(user, "client-key", folder)

    def _text(self, path: Any, folder: Path) -> str:
        try:
            return read_limited(folder / str(path)).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise NotLoggedInError(f"Could not read {path}: {error}.", hint=HOW_TO_LOG_IN) from None

    def _status(self) -> Part:
        """Ask the plugin for a login, unless its last one is still valid."""
        soon = datetime.now(timezone.utc) + _EARLY
        if self._plugin is None or (self._expires and self._expires < soon):
            self._plugin = _ask_plugin(self.context)
            until = str(self._plugin.get("expirationTimestamp") or "").replace("Z", "+00:00")
            try:
                self._expires = datetime.fromisoformat(until) if until else None
                _ = self._expires and self._expires < soon
            except (ValueError, TypeError):
                raise _plugin_failed(self.context, "its expiry is not a time") from None
        return self._plugin


class _NamedContext(ssl.SSLContext):
    """Expects the name that the kubeconfig gives, where it is not that of the address."""

    name: str | None = None

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(
            *args, **{**options, "server_hostname": self.name or options.get("server_hostname")}
        )


def _data(part: Part, key: str, folder: Path) -> bytes | None:
    """Read what is in the kubeconfig itself, or in a file that it names."""
    if inline := part.get(f"{key}-data"):
        return base64.b64decode(str(inline), validate=True)
    return read_limited(folder / str(part[key])) if part.get(key) else None


def _ask_plugin(context: Context) -> Part:
    """Run the program that the kubeconfig names, such as gke-gcloud-auth-plugin."""
    plugin = context.user["exec"]
    if not isinstance(plugin, dict) or not plugin.get("command"):
        raise InvalidInputError(f"The context {context.name} has no valid login plugin.")
    command = str(plugin["command"])
    found = shutil.which(command) if os.sep not in command else str(context.user_folder / command)
    # A name that is found in the current folder is not run, as in kubectl.
    if not found or not os.path.isabs(found):
        hint = str(plugin.get("installHint") or "").strip() or HOW_TO_LOG_IN
        raise NotLoggedInError(f"The login plugin {command} is not installed.", hint=hint)
    version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
    query: Part = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    if plugin.get("provideClusterInfo"):
        keys = {"certificate-authority-data": "certificate-authority-data", "server": "server"}
        query["spec"]["cluster"] = {
            key: context.cluster[key] for key in keys if key in context.cluster
        }
    try:
        extra = {str(each["name"]): str(each["value"]) for each in plugin.get("env") or ()}
        done = subprocess.run(  # noqa: S603 (the user's own configuration, as kubectl runs it)
            [found, *map(str, plugin.get("args") or ())],
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(query)},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_PLUGIN_S, check=True,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        if answer["apiVersion"] != version:
            raise _plugin_failed(context, f"it speaks {answer['apiVersion']}, not {version}")
        status: Mapping[str, Any] = answer["status"]
        return dict(status)
    except subprocess.TimeoutExpired:
        text = f"The login plugin {command} of the context {context.name} did not answer"
        hint = "gcloud auth login, or: kubectl cluster-info"
        raise UnavailableError(f"{text} for {format_duration(_PLUGIN_S)}.", hint=hint) from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise _plugin_failed(context, lines[-1]) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _plugin_failed(context, str(error)) from None


def _plugin_failed(context: Context, why: str) -> NotLoggedInError:
    command = context.user["exec"]["command"]
    return NotLoggedInError(
        f"The login plugin {command} of the context {context.name} failed: {why}.",
        hint="gcloud auth login",
    )
