"""`watch` from Python, with the settings of the command line."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpuctl.cloud.opening import chosen_zone, open_cloud
from tpuctl.remote.find import split_user
from tpuctl.remote.output import Sink
from tpuctl.watch.edge import Edge, Login
from tpuctl.watch.starting import Wishes, plan_order, plan_watch
from tpuctl.watch.store import Store
from tpuctl.watch.telling import Watched
from tpuctl.watch.watching import watch as watch_planned


def watch(
    name: str,
    command: Sequence[str],
    *,
    code: Path | None = None,
    env: Sequence[str] = (),
    zone: str | None = None,
    project: str | None = None,
    fresh: bool = False,
    delete_at_end: bool = False,
    wishes: Wishes | None = None,
    sink: Sink | None = None,
    note: Callable[[str], None] = lambda _: None,
    **patience: Any,
) -> Watched:
    """Run a job and keep it alive, on one TPU after the other; this costs money, and asks nothing.

    `wishes` say what to make where there is no TPU yet; `patience` are the further options of
    `plan_order`. What the job prints goes to `sink`, by default to stdout. Raises why nothing
    could be begun, and TryAgainError where another watch looks after it; why a job was given up
    is in the result.
    """
    user, plain = split_user(name)
    order = plan_order(command, env=env, code=code, **patience)
    cloud = open_cloud(project)
    store = Store(cloud.api, plain)
    with store.alone():
        asked = wishes or Wishes(chosen_zone(zone))
        plan = plan_watch(cloud, plain, asked, order, store=store, fresh=fresh)
        login = Login(user, is_given=plain != name)
        edge = Edge(cloud, login, sink=sink or _show, note=note)
        return watch_planned(
            edge, plan.memory, order, store=store, note=note, delete_at_end=delete_at_end
        )


def _show(stream: int, data: bytes) -> None:
    file = sys.stderr if stream == 2 else sys.stdout
    file.write(data.decode("utf-8", "replace"))
    file.flush()
