"""The shards of a plan as a Beam pipeline.

Each element is the job of one shard, which our own supervised worker builds and puts at the target;
no images pass through Beam. Building a shard twice does no harm, so a runner may retry.
"""

import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tpuctl.datasets.images.memory import memory_budget_bytes
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.prepare import Prepared
from tpuctl.datasets.publish import Target
from tpuctl.datasets.shards.pool import WorkerSetup, build_shards
from tpuctl.datasets.shards.work import Work
from tpuctl.errors import TpuctlError, UsageError, first_line
from tpuctl.storage import open_storage


def run_pipeline(runs: Sequence[Prepared], missing: Sequence[ShardJob]) -> None:
    """Build shards with the chosen runner; raises TpuctlError, UsageError."""
    lead = runs[0]
    targets = [run.target for run in runs]
    shared = {
        "source": lead.source,
        "targets": targets,
        "options": lead.plan.options,
        "image_bytes": lead.options.max_image_bytes,
    }
    jobs = [json.dumps(job.to_json()) for job in missing]
    options = _options(lead.options.beam)
    try:
        with beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "Shards" >> beam.Create(jobs)
                | "Spread" >> beam.Reshuffle()
                | "Build" >> beam.Map(build_shard, shared)
            )
    except TpuctlError:
        raise
    except Exception as error:  # Beam wraps what a step raises in its own and in text
        raise TpuctlError(
            f"The Beam pipeline failed: {first_line(error)}",
            hint="Run the same command again; it resumes from the shards that are complete.",
        ) from error


def build_shard(text: str, shared: dict[str, Any]) -> str:
    """Build one shard in every size and record it at the target; returns the id of its job."""
    job = ShardJob.from_json(json.loads(text))
    with tempfile.TemporaryDirectory(prefix="tpuctl-beam-") as folder:
        targets = [
            Target(open_storage(target), Work(Path(folder) / str(number)), shared=True)
            for number, target in enumerate(shared["targets"])
        ]
        for target in targets:
            target.work.create()
        siblings = tuple(
            replace(sibling, work=str(target.work.folder))
            for sibling, target in zip(job.siblings, targets[1:], strict=True)
        )
        job = replace(job, siblings=siblings)
        setup = WorkerSetup(
            source=shared["source"],
            work=str(targets[0].work.folder),
            options=shared["options"],
            budget_bytes=memory_budget_bytes(),
            image_bytes=shared["image_bytes"],
            workers=1,
        )
        with closing(build_shards([job], setup)) as steps:
            done = next(step.finished for step in steps if step.finished)
        for target, finished in zip(targets, done, strict=True):
            target.record(finished)
    return job.id


def _options(words: Sequence[str]) -> PipelineOptions:
    flags = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"--beam {word} is not a Beam option.", hint="Write --beam runner=DataflowRunner."
            )
        flags.append(f"--{name.lstrip('-')}={value}")
    return PipelineOptions(flags=flags)
