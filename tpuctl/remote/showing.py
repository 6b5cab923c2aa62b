"""`show`: a TPU, and the jobs on its workers where these can be asked without further ado."""

from dataclasses import dataclass, fields

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.looking import find
from tpuctl.cloud.models import Node
from tpuctl.cloud.tpu import QueuedTpu, Tpu, describe_node, describe_queued
from tpuctl.errors import TpuctlError
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Patience
from tpuctl.remote.find import split_user, workers_of
from tpuctl.remote.host_keys import HostKeys
from tpuctl.remote.jobs import Job, list_jobs
from tpuctl.remote.keys import known_key, private_keys
from tpuctl.remote.os_login import has_os_login, login_user

_HURRY = Patience(connect_s=4.0)


@dataclass(frozen=True, kw_only=True)
class ShownTpu(Tpu):
    """A TPU with its jobs, the oldest first; None where they are not known, and why not."""

    jobs: tuple[Job, ...] | None
    jobs_why_null: str | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from, and why its jobs are not known."""
        why = f"its jobs are not known: {self.jobs_why_null}"
        return (*super().reasons, *((why,) if self.jobs_why_null else ()))


def show_with_jobs(api: TpuApi, name: str, *, zone: str | None = None) -> ShownTpu | QueuedTpu:
    """Show one TPU with its jobs, or the queued resource that waits for it.

    Only reads: workers that do not know our key yet are not told. `name` may be user@NAME.
    """
    is_given = "@" in name
    user, name = split_user(name)
    found, now = find(api, name, zone), api.clock.now()
    if not isinstance(found, Node):
        return describe_queued(found, now=now)
    tpu = describe_node(found, now=now, emulated=api.emulated)
    jobs, why = _jobs_of(found, tpu, user, is_given=is_given)
    known = {each.name: getattr(tpu, each.name) for each in fields(Tpu)}
    return ShownTpu(**known, jobs=jobs, jobs_why_null=why)


def _jobs_of(
    node: Node, tpu: Tpu, user: str, *, is_given: bool
) -> tuple[tuple[Job, ...] | None, str | None]:
    if not tpu.is_usable:
        return None, f"it is {tpu.state}"
    state = settings.state_dir()
    try:
        user = user if is_given else login_user(node, user)
        pair = known_key(state, node, user)
        keys = (pair.path,) if pair else private_keys(state) if has_os_login(node.metadata) else ()
        if not keys:
            return None, f"its workers do not know our key yet; tpuctl run {node.name} tells them"
        access = Access(keys, HostKeys(state / "known_hosts"), patience=_HURRY)
        found = list_jobs(workers_of(node, user), access)
    except TpuctlError as error:
        return None, str(error)
    if found.failures and not found.jobs:
        return None, str(found.failures[0])
    return found.jobs, None
