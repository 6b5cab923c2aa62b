"""Add up the work of each tf.data transformation in the host traces of `profile run --deep`."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.profiling.align import NodePath, plain_name
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.trace.files import open_trace
from tpuctl.profiling.trace.models import TracedNode
from tpuctl.profiling.trace.stages import InputPipeline, StageWork, read_pipeline
from tpuctl.profiling.trace.xspace import PS_PER_S


@dataclass
class _Work:
    work_s: float = 0.0
    elements: int = 0
    operations: "Counter[str]" = field(default_factory=Counter)
    parallelism: int | None = None

    def add(self, stage: StageWork) -> None:
        self.work_s += stage.work_ps / PS_PER_S
        self.elements += stage.elements
        self.operations.update(stage.operations)
        calls = stage.settings.get("parallelism")
        if isinstance(calls, int) and calls > 0:
            self.parallelism = max(calls, self.parallelism or 1)


def read_host_traces(measured: Measurement) -> Measurement:
    """Add what its trace files show to a measurement; `deep.missing` says what cannot be read."""
    if measured.deep is None or not measured.trace_files:
        return measured
    found: list[InputPipeline] = []
    failures: list[str] = []
    for file in measured.trace_files:
        try:
            if pipeline := read_pipeline(open_trace(Path(file))):
                found.append(pipeline)
        except TpuctlError as error:
            failures.append(str(error))
    nodes = merge(found)
    if not nodes:
        why = failures[0] if failures else "it has no tf.data events."
        return replace(measured, deep=replace(measured.deep, missing=why))
    linked = sum(stage.work_ps for each in found for stage in each.stages)
    total = linked + sum(each.unlinked_ps for each in found)
    deep = replace(measured.deep, linked_fraction=linked / total if total else None)
    return replace(measured, deep=deep, traced=nodes)


def merge(found: Iterable[InputPipeline]) -> tuple[TracedNode, ...]:
    """Add up what all captures show of each transformation, over all its epochs."""
    nodes: dict[NodePath, _Work] = defaultdict(_Work)
    for pipeline in found:
        for stage in pipeline.stages:
            path = ("Root", *(plain_name(part) for part in stage.path.split("::")[2:]))
            nodes[path].add(stage)
    return tuple(
        TracedNode(
            path,
            node.work_s,
            node.elements,
            tuple((name, time_ps / PS_PER_S) for name, time_ps in node.operations.most_common()),
            node.parallelism,
        )
        for path, node in sorted(nodes.items(), key=lambda item: len(item[0]))
    )
