"""What can be asked over HTTP besides the API: tokens, metadata, how it goes."""

import os
import re
from collections import Counter

from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.metadata import Tree, project_tree, scopes_of, worker_tree
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.records import Key, Node
from tpuctl.emulator.refusals import not_found, refusal
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.world import timestamp

TOKEN_LIVES_S = 3599
_GUEST_PATH = re.compile(r"[A-Za-z0-9_.-]{1,128}/[A-Za-z0-9_.-]{1,128}")
_LARGEST_GUEST_VALUE = 256 << 10


class FrontDesk:
    """Answers those who come over HTTP.

    The tokens that it gave out are good until it ends; who comes with an older one is told to
    fetch another, as with the real service.
    """

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._scopes: dict[str, list[str]] = {}
        self.answer, self.headers, self.now = emulator.answer, emulator.headers, emulator.now

    def check_token(self, authorization: str) -> None:
        """Refuse a request without a token of ours, or with one for something else."""
        scheme, _, token = authorization.partition(" ")
        scopes = self._scopes.get(token) if scheme.lower() == "bearer" else None
        if scopes is None:
            raise refusal("unauthenticated")
        if CLOUD_SCOPE not in scopes:
            raise refusal("scope")

    def token(self, project: str | None, zone: str, name: str, worker: int) -> Document:
        """Give the machine a token of its service account."""
        node = self._node(project, zone, name, worker) if project else None
        about = f"token of {node.id if node else 'the project'}"
        token = f"ya29.emulated-{self._emulator.look().digest(about)[:48]}"
        self._scopes[token] = scopes_of(node) if node else [CLOUD_SCOPE]
        return {"access_token": token, "expires_in": TOKEN_LIVES_S, "token_type": "Bearer"}

    def metadata(self, project: str | None, zone: str, name: str, worker: int) -> Tree:
        """Everything that a machine is told; of the project alone where it is no worker."""
        if project is None:
            return project_tree(self._emulator.scenario.project or "practice")
        return worker_tree(self._node(project, zone, name, worker), worker)

    def publish(
        self, project: str, zone: str, name: str, worker: int, path: str, value: str
    ) -> None:
        """Take a guest attribute of a worker; refused unless its node's metadata allows it."""
        node = self._node(project, zone, name, worker)
        allowed = node.spec.document.get("metadata", {}).get("enable-guest-attributes", "")
        if allowed.upper() != "TRUE" or len(value) > _LARGEST_GUEST_VALUE:
            raise refusal("permission", permission="guest-attributes", resource=node.path)
        if not _GUEST_PATH.fullmatch(path):
            raise not_found(path)
        body = {"worker": worker, "path": path, "value": value}
        self._emulator.answer(Call("publish_guest_attribute", project, zone, name, body))

    def status(self) -> Document:
        """How it goes, for `tpuctl emulator status`."""
        world, emulator = self._emulator.look(), self._emulator
        return {
            "pid": os.getpid(),
            "endpoint": emulator.endpoint,
            "http": emulator.http,
            "time": timestamp(emulator.now()),
            "time_scale": emulator.scenario.time_scale,
            "requests": len(emulator.requests),
            "nodes": dict(Counter(node.state for node in list(world.nodes.values()))),
            "queued_resources": dict(Counter(item.state for item in list(world.queued.values()))),
        }

    def _node(self, project: str | None, zone: str, name: str, worker: int) -> Node:
        node = self._emulator.look().node(Key(project or "", zone, name))
        if worker >= node.spec.type.workers:
            raise not_found(f"{node.path} worker {worker}")
        return node
