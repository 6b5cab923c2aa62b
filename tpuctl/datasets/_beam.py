"""The shards of a plan as a Beam pipeline: numbers go through the engine, pictures do not.

Each element is one shard, built by our own supervised worker and put in its place with its note; to
do that twice does no harm, so a runner may repeat what it likes.
"""

import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tpuctl.datasets.commits import commit
from tpuctl.datasets.memory import memory_budget_bytes
from tpuctl.datasets.plan import Entry, ShardJob
from tpuctl.datasets.pool import Setup, build_shards
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.state import Work
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.storage.port import open_storage


def run_pipeline(run: Prepared, missing: Sequence[ShardJob]) -> None:
    """Build and commit shards on whatever runner is asked for; raises TpuctlError, UsageError."""
    shared = {"source": run.source, "target": run.target, "options": run.plan.options}
    jobs = [json.dumps(asdict(job)) for job in missing]
    options = _options(run.options.beam)
    try:
        with beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "Shards" >> beam.Create(jobs)
                | "Spread" >> beam.Reshuffle()
                | "Build" >> beam.Map(build_shard, shared)
            )
    except Exception as error:  # Beam wraps what a step raises in its own and in text
        raise _translate(error) from error


def build_shard(text: str, shared: dict[str, Any]) -> str:
    """Build one shard and put it in its place, wherever this runs; gives the id of its job."""
    document = json.loads(text)
    entries = tuple(Entry(**entry) for entry in document.pop("entries"))
    job = ShardJob(**document, entries=entries)
    with tempfile.TemporaryDirectory(prefix="tpuctl-beam-") as folder:
        work = Work(Path(folder))
        setup = Setup(
            source=shared["source"],
            work=folder,
            options=shared["options"],
            budget_bytes=memory_budget_bytes(),
            workers=1,
        )
        with closing(build_shards([job], setup)) as steps:
            finished = next(step.finished for step in steps if step.finished is not None)
        commit(open_storage(shared["target"]), finished, work.shard(job.id))
    return job.id


def _options(words: Sequence[str]) -> PipelineOptions:
    flags = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"--beam {word} is no option of Beam.", hint="Write --beam runner=DataflowRunner."
            )
        flags.append(f"--{name.lstrip('-')}={value}")
    return PipelineOptions(flags=flags)


def _translate(error: Exception) -> TpuctlError:
    if isinstance(error, TpuctlError):
        return error
    first = str(error).strip().splitlines()[:1]
    return TpuctlError(
        f"The Beam pipeline failed: {''.join(first) or type(error).__name__}",
        hint="The same command again goes on from the shards that are complete.",
    )
