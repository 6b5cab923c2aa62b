"""Common code of Colab, Kaggle and GKE: refusals, and deletions one after the other."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tpuctl.cloud.delete import DeletedEarlier, DeleteResult, TpuDeletion, failed_deletion
from tpuctl.cloud.gc import GcResult, Orphan, orphan_of
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.tpu import Tpu
from tpuctl.errors import TpuctlError
from tpuctl.providers.port import Abilities, Login, refused
from tpuctl.remote.copy_plan import CopyResults
from tpuctl.remote.jobs import StoppedJob
from tpuctl.remote.output import Sink

if TYPE_CHECKING:
    from tpuctl.providers.gke.follow import ClusterRun
    from tpuctl.providers.kaggle.follow import HostedRun

Delete = Callable[[TpuDeletion], TpuDeletion]


class BatchProvider:
    """A provider that runs whole jobs: a TPU exists only for one, and has no SSH."""

    abilities: Abilities

    plan = create = refused("create")

    def reach(self, name: str, login: Login) -> NoReturn:
        """Raise: no worker can be reached."""
        raise self.abilities.refuse("SSH", name=name)

    def logs(
        self, name: str, *, to_end: bool, sink: Sink, note: Callable[[str], None]
    ) -> "HostedRun | ClusterRun | Tpu":
        """Pass on the output of a run; `to_end` follows it to its end."""
        raise NotImplementedError

    def stop(self, name: str) -> StoppedJob:
        """Stop a run; raises UnsupportedError."""
        raise self.abilities.refuse("stop", name=name)

    def fetch(self, name: str, path: str, target: Path) -> CopyResults:
        """Copy a file or folder of a run's output; raises UnsupportedError."""
        raise self.abilities.refuse("cp", name=name)


def plan_deletions(
    names: Sequence[str] | None,
    found: Collection[str],
    describe: Callable[[str], TpuDeletion],
    *,
    was_ours: Callable[[str], bool],
    missing: Callable[[str], TpuctlError],
) -> DeleteResult:
    """Plan to delete the named ones, or all that were found; raises the error of a single name."""
    planned: list[TpuDeletion] = []
    gone: list[DeletedEarlier] = []
    failures: list[TpuctlError] = []
    for name in dict.fromkeys(found if names is None else names):
        if name in found:
            planned.append(describe(name))
        elif was_ours(name):
            gone.append(DeletedEarlier(name, None))
        else:
            failures.append(missing(name))
    if len(failures) == 1 and not planned and not gone:
        raise failures[0]
    return DeleteResult(tuple(planned), tuple(gone), not_planned=tuple(failures)).summed()


def delete_each(plan: DeleteResult, delete: Delete) -> DeleteResult:
    """Delete what was planned; failures are in the result."""
    done = tuple(_try_to_delete(each, delete) for each in plan.tpus)
    return replace(plan, tpus=done, dry_run=False).summed()


def delete_orphans_still(
    found: GcResult, is_still: Callable[[Orphan], bool], delete: Delete
) -> GcResult:
    """Delete the orphans that still are orphans."""
    done = []
    for orphan in found.found:
        deletion = replace(orphan.deletion, outcome="left_alone")
        if orphan.action == "delete" and is_still(orphan):
            deletion = _try_to_delete(orphan.deletion, delete)
        done.append(orphan_of(deletion, orphan.reason))
    return replace(found, found=tuple(done), acted=True).summed()


def _try_to_delete(planned: TpuDeletion, delete: Delete) -> TpuDeletion:
    done = attempt(partial(delete, planned))
    return failed_deletion(planned, done) if isinstance(done, TpuctlError) else done
