"""The two control planes of Colab behind one port: the public API, and what its own tools use."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from tpuctl.cloud.error_table import checks_replies
from tpuctl.cloud.service_clock import ServiceClock
from tpuctl.errors import NotLoggedInError, TpuctlError, UnavailableError
from tpuctl.providers.colab._http import Http, Refused, as_error, log_in, reason_of
from tpuctl.providers.colab.api import Runtime, Units, refusal

_OPERATION_POLLS = 40
_AGENT = {"X-Colab-Client-Agent": "tpuctl"}
# What the public API answers to an account, a project or a login that it does not let in.
_NOT_LET_IN = frozenset({401, 403, 404})
_OUTCOMES = {1: "NOT_ELIGIBLE", 2: "QUOTA_EXCEEDED_USAGE_TIME", 5: "DENYLISTED"}


@checks_replies("Colab")
class TunnelApi:
    """`/tun/m`: what Colab's own tools use; works with a plain login."""

    plane = "tun"

    def __init__(self, http: Http) -> None:
        self._http, self._base = http, f"{http.login.tunnel}/tun/m"
        self.clock: ServiceClock = http.clock

    def find(self, key: str) -> Runtime | None:
        """Ask for the assignment of a key; it assigns nothing."""
        found = self._assign("GET", key, "", {})
        return _assigned(found, self.clock.now()) if found.get("endpoint") else None

    def create(self, key: str, accelerator: str) -> Runtime:
        """Ask first, then assign: a lost answer is found by asking again with the same key."""
        reply = self._assign("GET", key, accelerator, {})
        if not reply.get("endpoint"):
            token = {"X-Goog-Colab-Token": str(reply.get("token", ""))}
            reply = self._assign("POST", key, accelerator, token)
        if not reply.get("endpoint"):
            outcome = reply.get("outcome")
            known = _OUTCOMES.get(outcome) if isinstance(outcome, int) else None
            raise refusal(known or "no runtime", accelerator)
        return _assigned(reply, self.clock.now())

    def _assign(self, verb: str, key: str, accelerator: str, more: Mapping[str, str]) -> Any:
        query = {"nbh": key.replace("-", "_").ljust(44, "."), "authuser": "0"}
        if accelerator:
            query |= {"variant": "TPU", "accelerator": accelerator}
        doing = f"create a runtime with a {accelerator}" if accelerator else "find a runtime"
        try:
            return self._send(doing, verb, "assign", query, more)
        except Refused as refused:
            if refused.status == 400:
                raise refusal("NOT_ELIGIBLE", accelerator) from refused
            if refused.status == 412:
                raise self._limited(accelerator) from refused
            if refused.status == 503:
                raise refusal("no machine of this kind", accelerator) from refused
            raise as_error(refused, doing) from refused

    def _limited(self, accelerator: str) -> TpuctlError:
        """Distinguish too many runtimes from a temporary limit: both are status 412."""
        others = self.list()
        if not others:
            return refusal("a temporary limit", accelerator)
        error = refusal("TOO_MANY_ACTIVE_RUNTIMES", accelerator)
        names = ", ".join(each.id for each in others)
        return type(error)(f"{error} Active: {names}.", hint=error.hint)

    def list(self) -> tuple[Runtime, ...]:
        """List the assignments of the account."""
        found = self._plain("list the runtimes", "assignments")
        items = found.get("assignments") or ()
        return tuple(_assigned(item, self.clock.now()) for item in items if item.get("endpoint"))

    def delete(self, runtime_id: str) -> None:
        """Unassign a runtime."""
        path = f"unassign/{quote(runtime_id, safe='')}"
        doing = f"delete the runtime {runtime_id}"
        try:
            token = self._send(doing, "GET", path, {"authuser": "0"}, {}).get("token", "")
            header = {"X-Goog-Colab-Token": str(token)}
            self._send(doing, "POST", path, {"authuser": "0"}, header)
        except Refused as refused:
            if refused.status != 404:
                raise as_error(refused, doing) from refused

    def units(self) -> Units:
        """Read the balance of compute units."""
        found = self._plain("read the compute units", "ccu-info")
        return Units(
            _float(found.get("currentBalance")), _float(found.get("consumptionRateHourly"))
        )

    def eligible(self) -> None:
        """This API says it only when a runtime is created."""

    def keep_alive(self, runtime_id: str) -> None:
        """Send what the editor sends while a notebook is open."""
        path = f"{quote(runtime_id, safe='')}/keep-alive/"
        try:
            self._send("keep alive", "GET", path, {"authuser": "0"}, {"X-Colab-Tunnel": "Google"})
        except (Refused, UnavailableError):
            # It often never answers, and then has worked.
            return

    def _plain(self, doing: str, path: str) -> Any:
        try:
            return self._send(doing, "GET", path, {"authuser": "0"}, {})
        except Refused as refused:
            raise as_error(refused, doing) from refused

    def _send(
        self, doing: str, verb: str, path: str, query: Mapping[str, str], more: Mapping[str, str]
    ) -> Any:
        url = f"{self._base}/{path}"
        found = self._http.call(doing, verb, url, query=query, headers={**_AGENT, **more})
        return found if isinstance(found, dict) else {}


@checks_replies("Colab")
class PublicApi:
    """The public Colab API."""

    plane = "public"

    def __init__(self, http: Http, tunnel: TunnelApi) -> None:
        self._http, self._tunnel = http, tunnel
        self._base = f"{http.login.public}/v1beta"
        self.clock: ServiceClock = http.clock

    def find(self, key: str) -> Runtime | None:
        """Read the runtime that has the name of a key."""
        try:
            return self._runtime(self._send("find a runtime", "GET", f"runtimes/{_name(key)}"))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise as_error(refused, "find a runtime") from refused

    def create(self, key: str, accelerator: str) -> Runtime:
        """Create a runtime, wait for the operation, and read it."""
        doing = f"create a runtime with a {accelerator}"
        query = {"requestId": key, "runtimeId": _name(key)}
        shape = {"variant": "VARIANT_TPU", "accelerator": accelerator, "shape": "SHAPE_STANDARD"}
        try:
            found = self._send(doing, "POST", "runtimes", query, {"runtimeSpec": shape})
            self._follow(doing, str(found.get("name", "")), found, accelerator)
        except Refused as refused:
            if refused.status in (400, 412):
                raise refusal(refused.reason or "NOT_ELIGIBLE", accelerator) from refused
            if refused.status == 503:
                raise refusal(refused.reason, accelerator) from refused
            if refused.status != 409:
                raise as_error(refused, doing) from refused
        made = self.find(key)
        if made is None:
            raise refusal("it was created and is gone", accelerator)
        return made

    def _follow(self, doing: str, name: str, found: Any, accelerator: str) -> None:
        for _ in range(_OPERATION_POLLS):
            if found.get("done"):
                if error := found.get("error"):
                    raise refusal(reason_of(error), accelerator)
                return
            url = f"{self._http.login.public}/v1/{name}:wait"
            found = self._http.call(doing, "GET", url, query={"timeout": "20s"})
        raise UnavailableError(
            f"Could not {doing}: Colab is still working on it.", hint="Try again."
        )

    def list(self) -> tuple[Runtime, ...]:
        """List the runtimes of the account."""
        try:
            items = self._send("list the runtimes", "GET", "runtimes").get("runtimes") or ()
        except Refused as refused:
            raise as_error(refused, "list the runtimes") from refused
        return tuple(self._runtime(item) for item in items)

    def delete(self, runtime_id: str) -> None:
        """Delete a runtime."""
        doing = f"delete the runtime {runtime_id}"
        try:
            path = f"runtimes/{quote(runtime_id, safe='')}"
            self._send(doing, "DELETE", path, {"allowMissing": "true"})
        except Refused as refused:
            raise as_error(refused, doing) from refused

    def units(self) -> Units:
        """Read the balance, which only the other API has."""
        return self._tunnel.units()

    def eligible(self) -> dict[str, bool] | None:
        """Read which accelerators the account may have."""
        try:
            found = self._send("read the runtime specs", "GET", "runtimespecs")
        except Refused as refused:
            raise as_error(refused, "read the runtime specs") from refused
        specs = found.get("runtimeSpecs") or ()
        return {
            str(spec.get("key", {}).get("accelerator")): bool(spec.get("eligible"))
            for spec in specs
        }

    def keep_alive(self, runtime_id: str) -> None:
        """Send what the editor sends, to the other API: this one has no such request.

        The two APIs have different names for a runtime, and the same address.
        """
        own = next((each for each in self.list() if each.id == runtime_id), None)
        for each in self._tunnel.list() if own else ():
            if own and each.url == own.url:
                self._tunnel.keep_alive(each.id)

    def is_open(self) -> bool:
        """Whether it accepts this account; raises UnavailableError where it does not answer."""
        try:
            self._send("ask the public Colab API", "GET", "runtimespecs")
        except NotLoggedInError:
            # A login without its scope; an expired one is refused by the other API, too.
            return False
        except Refused as refused:
            if refused.status in _NOT_LET_IN:
                return False
            raise as_error(refused, "ask the public Colab API") from refused
        return True

    def _runtime(self, item: Mapping[str, Any]) -> Runtime:
        way = item.get("connectionInfo") or {}
        spec = item.get("runtimeSpec") or {}
        return Runtime(
            str(item.get("name", "")).removeprefix("runtimes/"),
            str(spec.get("accelerator", "")),
            str(way.get("url", "")),
            str(way.get("token", "")),
            _time(way.get("expireTime")),
        )

    def _send(
        self,
        doing: str,
        verb: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Any:
        url = f"{self._base}/{path}"
        found = self._http.call(doing, verb, url, query=query, headers=_AGENT, body=body)
        return found if isinstance(found, dict) else {}


def open_control_plane(plane: str | None = None) -> "TunnelApi | PublicApi":
    """Open a control plane: the one named, else the public API where it lets this account in."""
    http = Http(log_in())
    tunnel = TunnelApi(http)
    if plane == TunnelApi.plane:
        return tunnel
    public = PublicApi(http, tunnel)
    return public if plane == PublicApi.plane or public.is_open() else tunnel


def _assigned(item: Mapping[str, Any], now: datetime) -> Runtime:
    way = item.get("runtimeProxyInfo") or {}
    seconds = _float(way.get("tokenExpiresInSeconds"))
    return Runtime(
        str(item["endpoint"]),
        str(item.get("accelerator", "")),
        str(way.get("url", "")),
        str(way.get("token", "")),
        now + timedelta(seconds=seconds) if seconds else None,
    )


def _name(key: str) -> str:
    return f"tpuctl-{key}"[:63].rstrip("-")


def _float(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


def _time(text: Any) -> datetime | None:
    # Python 3.10 reads only some fractions of a second.
    plain = re.sub(r"\.\d+", "", str(text or "")).replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(plain)
    except ValueError:
        return None
