"""The account of an emulated Colab: its runtimes, its compute units, and the planned faults."""

import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tpuctl.clock import Clock
from tpuctl.emulator.errors import load_data
from tpuctl.storage.local import write_atomically

STORED = "colab.json"
_VARIANTS = {"NONE": 0, "T4": 1, "L4": 1, "G4": 1, "A100": 1, "H100": 1}


def variant_of(accelerator: str) -> int:
    """Return the variant number of an accelerator: 0 CPU, 1 GPU, 2 TPU."""
    return _VARIANTS.get(accelerator, 2)


@dataclass
class Runtime:
    """One runtime; `name` is the caller's name in the public API, `key` identifies its create.

    `is_foreign` means that a browser created it. `has_ssh` is decided at creation.
    """

    endpoint: str
    key: str
    accelerator: str
    created: str
    name: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    last_active: str = ""
    has_ssh: bool = True
    is_foreign: bool = False
    keep_alives: int = 0


@dataclass
class Fault:
    """A fault of the nth request of a kind: another answer, or none at all."""

    on: str
    nth: int = 1
    every: bool = False
    after_accept: bool = False
    status: int = 0
    reason: str = ""
    outcome: int = 0
    cut: bool = False


class Refusal(Exception):
    """The answer to a refused request."""

    def __init__(self, status: int, reason: str = "", outcome: int = 0, message: str = "") -> None:
        super().__init__(message or reason or f"status {status}")
        self.status, self.reason, self.outcome = status, reason, outcome


class Cut(Exception):
    """Raised to close the connection without an answer."""


@dataclass
class Plan:
    """The key `colab` of a scenario; `gives` is an accelerator that replaces every other."""

    balance: float = 100.0
    tier: int = 1
    rates: dict[str, float] = field(default_factory=lambda: dict(load_data("colab")["rates"]))
    eligible: tuple[str, ...] = ("V5E1", "V6E1")
    capacity: int = 2
    idle_s: float = 5400.0
    token_s: float = 3600.0
    has_public_api: bool = True
    has_ssh: bool = True
    gives: str = ""
    foreign: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


def read_plan(document: Mapping[str, Any]) -> Plan:
    """Read the key `colab` of a scenario; raises ValueError."""
    known: dict[str, Any] = dict(document)
    try:
        known["faults"] = tuple(Fault(**fault) for fault in known.get("faults", ()))
        known |= {key: tuple(known[key]) for key in ("eligible", "foreign") if key in known}
        return Plan(**known)
    except TypeError as error:
        raise ValueError(f"colab: {error}") from error


class Account:
    """The state behind both control planes, advanced to the present with every request."""

    def __init__(self, plan: Plan, clock: Clock, folder: Path) -> None:
        self.plan, self.clock = plan, clock
        self.runtimes: dict[str, Runtime] = {}
        self.balance = plan.balance
        self.xsrf: dict[str, str] = {}
        self.requests: list[str] = []
        self.lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._store = folder / STORED
        self._now = clock.now()
        if self._store.exists():
            kept = json.loads(self._store.read_bytes())
            self.runtimes = {each["endpoint"]: Runtime(**each) for each in kept["runtimes"]}
            self.balance = kept["balance"]
            self._now = max(self._now, datetime.fromisoformat(kept["now"]))
        for accelerator in () if self._store.exists() else plan.foreign:
            self._add(secrets.token_hex(8), accelerator, "").is_foreign = True

    def now(self) -> datetime:
        """Return the emulated time, which never goes backwards."""
        return max(self.clock.now(), self._now)

    @property
    def rate(self) -> float:
        """Units per hour of all running runtimes."""
        return sum(self.plan.rates.get(each.accelerator, 0) for each in self.runtimes.values())

    def advance(self) -> None:
        """Charge units for the time that has passed; end idle runtimes, or all without units."""
        now = self.now()
        self.balance -= self.rate * (now - self._now).total_seconds() / 3600
        self._now = now
        idle = now - timedelta(seconds=self.plan.idle_s)
        for each in list(self.runtimes.values()):
            is_idle = not each.is_foreign and datetime.fromisoformat(each.last_active) < idle
            if is_idle or self.balance <= 0:
                del self.runtimes[each.endpoint]
        self.balance = max(0.0, self.balance)
        self.save()

    def save(self) -> None:
        """Store the state."""
        state = {
            "runtimes": [asdict(each) for each in self.runtimes.values()],
            "balance": self.balance,
            "now": self._now.isoformat(),
        }
        write_atomically(self._store, json.dumps(state), private=True)

    def take_fault(self, kind: str) -> Fault | None:
        """Count a request, and return the fault planned for it."""
        self.requests.append(kind)
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        for fault in self.plan.faults:
            if fault.on == kind and (fault.nth == count or (fault.every and count >= fault.nth)):
                return fault
        return None

    def find(self, *, key: str = "", name: str = "", endpoint: str = "") -> Runtime | None:
        """Find a runtime by its key, name or endpoint."""
        for each in self.runtimes.values():
            if (key and each.key == key) or (name and each.name == name):
                return each
        return self.runtimes.get(endpoint)

    def assign(self, key: str, accelerator: str, name: str = "") -> Runtime:
        """Create a runtime, or return the one with that key; raises Refusal."""
        if found := self.find(key=key):
            return found
        if accelerator not in ("NONE", *self.plan.eligible):
            raise Refusal(400, "NOT_ELIGIBLE", message=f"{accelerator} is not available to you")
        if self.balance <= 0:
            raise Refusal(412, "QUOTA_EXCEEDED_USAGE_TIME", message="no compute units left")
        if len(self.runtimes) >= self.plan.capacity:
            raise Refusal(412, "TOO_MANY_ACTIVE_RUNTIMES", message="too many active runtimes")
        return self._add(key, self.plan.gives or accelerator, name)

    def _add(self, key: str, accelerator: str, name: str) -> Runtime:
        kind = accelerator.lower()
        prefix = ("cpu", "gpu", "tpu")[variant_of(accelerator)]
        now = self.now().isoformat()
        endpoint = f"{prefix}-{kind}-s-kkb-{secrets.token_hex(6)}"
        runtime = Runtime(endpoint, key, accelerator, now, name, last_active=now)
        runtime.has_ssh = self.plan.has_ssh
        self.runtimes[endpoint] = runtime
        self.save()
        return runtime

    def new_token(self, runtime: Runtime) -> str:
        """Issue a proxy token; earlier ones stay valid until they expire."""
        now = self.now()
        runtime.tokens = {
            token: expires for token, expires in runtime.tokens.items() if expires > now.isoformat()
        }
        token = secrets.token_hex(16)
        runtime.tokens[token] = (now + timedelta(seconds=self.plan.token_s)).isoformat()
        self.save()
        return token

    def runtime_of_token(self, token: str) -> Runtime:
        """Return the runtime that a proxy token belongs to; raises Refusal."""
        for each in self.runtimes.values():
            expires = each.tokens.get(token, "")
            if expires > self.now().isoformat():
                return each
        raise Refusal(401, message="the token is unknown or has expired")

    def touch(self, runtime: Runtime) -> None:
        """Record activity on a runtime, so that it is not idle."""
        runtime.last_active = self.now().isoformat()
