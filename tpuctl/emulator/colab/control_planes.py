"""Both control planes of Colab: `/tun/m`, which its own tools use, and the public API."""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.colab.account import Account, Cut, Refusal, Runtime, variant_of

Query = Mapping[str, str]
_SHAPES = ("SHAPE_STANDARD", "SHAPE_HIGHMEM")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_CODES = {400: (3, "INVALID_ARGUMENT"), 401: (16, "UNAUTHENTICATED"), 403: (7, "PERMISSION_DENIED"),
          404: (5, "NOT_FOUND"), 409: (6, "ALREADY_EXISTS"), 412: (9, "FAILED_PRECONDITION"),
          429: (8, "RESOURCE_EXHAUSTED"), 503: (14, "UNAVAILABLE")}  # fmt: skip


@dataclass
class Answer:
    """The reply to a request of a control plane."""

    status: int = 200
    document: Any = None


Work = Callable[..., Answer]


class ControlPlanes:
    """Answers requests to both control planes for one account; all runtimes share `proxy_url`."""

    def __init__(self, account: Account, proxy_url: Callable[[Runtime], str]) -> None:
        self.account, self._proxy_url = account, proxy_url
        self._operations: dict[str, Any] = {}

    def answer(
        self, verb: str, path: str, query: Query, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Answer one request; raises Cut to close the connection instead."""
        found = self._route(verb, path)
        if found is None:
            return Answer(404, _error(404, f"no {verb} {path}"))
        kind, work = found
        account = self.account
        with account.lock:
            account.advance()
            fault = account.take_fault(kind)
            if fault and not fault.after_accept:
                if fault.cut:
                    raise Cut
                return self._refused(Refusal(fault.status, fault.reason, fault.outcome), path)
            try:
                answer = work(query, headers, body)
            except Refusal as refusal:
                answer = self._refused(refusal, path)
            if fault and fault.cut:
                raise Cut
            if fault:
                return self._refused(Refusal(fault.status, fault.reason, fault.outcome), path)
            return answer

    def _route(self, verb: str, path: str) -> tuple[str, Work] | None:
        if path.startswith("/tun/m/"):
            rest = path.removeprefix("/tun/m/").rstrip("/")
            head, _, tail = rest.partition("/")
            name = f"{verb.lower()}_{head.replace('-', '_')}"
            if tail == "keep-alive":
                return "keep_alive", lambda *_: self._keep_alive(head)
            if head == "unassign":
                return name, lambda q, h, b: self._unassign(verb, tail, h)
            plain: dict[str, Work] = {
                "get_assign": self._get_assign,
                "post_assign": self._post_assign,
                "get_assignments": self._assignments,
                "get_ccu_info": self._ccu_info,
            }
            return (name, plain[name]) if name in plain else None
        if not path.startswith(("/v1beta/", "/v1/")):
            return None
        rest = path.split("/", 2)[2]
        head, _, tail = rest.partition("/")
        if not self.account.plan.has_public_api:
            return "public", self._api_disabled
        if head == "operations":
            return "operation", lambda *_: self._operation(tail.partition(":")[0])
        if head == "runtimes" and tail:
            verbs = {"GET": self._get, "DELETE": self._delete}
            work = verbs.get(verb)
            return (f"{verb.lower()}_runtime", lambda q, h, b: work(tail, q)) if work else None
        named: dict[tuple[str, str], Work] = {
            ("GET", "runtimes"): self._list,
            ("POST", "runtimes"): self._create,
            ("GET", "runtimespecs"): self._specs,
            ("GET", "subscription"): self._subscription,
        }
        found = named.get((verb, head))
        return (f"{verb.lower()}_{head}", found) if found else None

    def _refused(self, refusal: Refusal, path: str) -> Answer:
        if path.startswith("/tun/m/"):
            if refusal.outcome:
                return Answer(200, {"outcome": refusal.outcome, "sub": self.account.plan.tier})
            return Answer(refusal.status, {"error": str(refusal)})
        return Answer(refusal.status, _error(refusal.status, str(refusal), refusal.reason))

    # /tun/m

    def _proxy_info(self, runtime: Runtime) -> dict[str, Any]:
        seconds = self.account.plan.token_s
        token = self.account.new_token(runtime)
        return {"token": token, "tokenExpiresInSeconds": seconds, "url": self._proxy_url(runtime)}

    def _assignment(self, runtime: Runtime) -> dict[str, Any]:
        return {
            "accelerator": runtime.accelerator,
            "endpoint": runtime.endpoint,
            "variant": variant_of(runtime.accelerator),
            "machineShape": 0,
            "runtimeProxyInfo": self._proxy_info(runtime),
        }

    def _get_assign(self, query: Query, *_: object) -> Answer:
        key = query.get("nbh", "")
        if found := self.account.find(key=key):
            return Answer(document=self._assignment(found))
        token = self.account.xsrf.setdefault(key, secrets.token_hex(8))
        variant = query.get("variant", "DEFAULT")
        acc = query.get("accelerator", "NONE")
        return Answer(
            document={"acc": acc, "nbh": key, "token": token, "variant": variant, "p": False}
        )

    def _post_assign(self, query: Query, headers: Mapping[str, str], _: bytes) -> Answer:
        key = query.get("nbh", "")
        if headers.get("X-Goog-Colab-Token", "") != self.account.xsrf.get(key):
            raise Refusal(403, message="wrong X-Goog-Colab-Token")
        runtime = self.account.assign(key, query.get("accelerator") or "NONE")
        more = {"fit": self.account.plan.idle_s, "sub": self.account.plan.tier, "outcome": 4}
        return Answer(document={**self._assignment(runtime), **more})

    def _assignments(self, *_: object) -> Answer:
        found = list(self.account.runtimes.values())
        return Answer(document={"assignments": [self._assignment(each) for each in found]})

    def _ccu_info(self, *_: object) -> Answer:
        account = self.account
        return Answer(
            document={
                "currentBalance": round(account.balance, 6),
                "consumptionRateHourly": account.rate,
                "assignmentsCount": len(account.runtimes),
            }
        )

    def _unassign(self, verb: str, endpoint: str, headers: Mapping[str, str]) -> Answer:
        key = f"unassign {endpoint}"
        if verb == "GET":
            return Answer(
                document={"token": self.account.xsrf.setdefault(key, secrets.token_hex(8))}
            )
        if headers.get("X-Goog-Colab-Token", "") != self.account.xsrf.get(key):
            raise Refusal(403, message="wrong X-Goog-Colab-Token")
        if not self.account.runtimes.pop(endpoint, None):
            raise Refusal(404, message="no such assignment")
        self.account.save()
        return Answer(204)

    def _keep_alive(self, endpoint: str) -> Answer:
        runtime = self.account.runtimes.get(endpoint)
        if runtime is None:
            raise Refusal(404, message="no such assignment")
        runtime.keep_alives += 1
        self.account.touch(runtime)
        return Answer(document={})

    # The public API

    def _api_disabled(self, *_: object) -> Answer:
        raise Refusal(403, "SERVICE_DISABLED", message="the Colab API is not enabled")

    def _spec(self, accelerator: str) -> dict[str, Any]:
        variant = ("VARIANT_CPU", "VARIANT_GPU", "VARIANT_TPU")[variant_of(accelerator)]
        return {"variant": variant, "accelerator": accelerator, "shape": _SHAPES[0]}

    def _specs(self, *_: object) -> Answer:
        eligible = self.account.plan.eligible
        names = dict.fromkeys(("NONE", "T4", "V5E1", "V6E1", *eligible))
        specs = [
            {"key": self._spec(name), "eligible": name == "NONE" or name in eligible}
            for name in names
        ]
        return Answer(document={"runtimeSpecs": specs})

    def _public(self, runtime: Runtime) -> dict[str, Any]:
        token = self.account.new_token(runtime)
        return {
            "name": f"runtimes/{runtime.name or runtime.endpoint}",
            "runtimeSpec": self._spec(runtime.accelerator),
            "connectionInfo": {
                "url": self._proxy_url(runtime),
                "token": token,
                "expireTime": runtime.tokens[token].replace("+00:00", "Z"),
            },
        }

    def _create(self, query: Query, _: object, body: bytes) -> Answer:
        name, key = query.get("runtimeId", ""), query.get("requestId", "")
        if name and not _NAME.fullmatch(name):
            raise Refusal(400, message=f"invalid runtimeId {name!r}")
        same = self.account.find(name=name)
        if same and same.key != key:
            raise Refusal(409, message=f"runtimes/{name} exists")
        operation: dict[str, Any] = {"name": f"operations/{secrets.token_hex(6)}", "done": True}
        spec = json.loads(body or b"{}").get("runtimeSpec", {})
        try:
            runtime = self.account.assign(key, str(spec.get("accelerator", "NONE")), name)
            operation["response"] = self._public(runtime)
        except Refusal as refusal:
            operation["error"] = _error(412, str(refusal), refusal.reason)["error"]
            operation["error"]["code"] = 9
        self._operations[operation["name"]] = operation
        return Answer(document={"name": operation["name"], "done": False})

    def _operation(self, name: str) -> Answer:
        if found := self._operations.get(f"operations/{name}"):
            return Answer(document=found)
        raise Refusal(404, message=f"no operation {name}")

    def _list(self, *_: object) -> Answer:
        found = list(self.account.runtimes.values())
        return Answer(document={"runtimes": [self._public(each) for each in found]})

    def _named(self, name: str) -> Runtime | None:
        return self.account.find(name=name, endpoint=name)

    def _get(self, name: str, _: Query) -> Answer:
        if found := self._named(name):
            return Answer(document=self._public(found))
        raise Refusal(404, message=f"no runtimes/{name}")

    def _delete(self, name: str, query: Query) -> Answer:
        found = self._named(name)
        if found is None and query.get("allowMissing") != "true":
            raise Refusal(404, message=f"no runtimes/{name}")
        if found:
            del self.account.runtimes[found.endpoint]
            self.account.save()
        return Answer(document={})

    def _subscription(self, *_: object) -> Answer:
        tiers = ("SUBSCRIPTION_TIER_FREE", "SUBSCRIPTION_TIER_PRO", "SUBSCRIPTION_TIER_PRO_PLUS")
        return Answer(document={"tier": tiers[self.account.plan.tier]})


def _error(status: int, message: str, reason: str = "") -> dict[str, Any]:
    code, name = _CODES.get(status, (2, "UNKNOWN"))
    details = []
    if reason:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        details = [{"@type": kind, "reason": reason, "domain": "colaboratory.googleapis.com"}]
    error = {"code": status, "message": message, "status": name, "details": details}
    assert code
    return {"error": error}
