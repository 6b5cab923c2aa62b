"""Training from Python: fit, launch, lint, templates, bench."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tpuctl.api.colab import colab_type, launch_on_colab
from tpuctl.api.gke import GKE, launch_on_gke
from tpuctl.api.hosted import (
    AUTO,
    AUTO_TTL_S,
    confirm_paid,
    is_kaggle,
    launch_auto,
    launch_on_kaggle,
    plan_auto,
    reach_or_suggest,
)
from tpuctl.api.workers import Workers, as_workers, print_output, refuse_unused
from tpuctl.errors import UsageError
from tpuctl.progress import OnProgress, message, silent
from tpuctl.remote.hosts import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.compile.models import Comparison as FitComparison
    from tpuctl.compile.models import Fit
    from tpuctl.linting.models import Linting
    from tpuctl.providers.gke.follow import ClusterRun, StartedClusterRun
    from tpuctl.providers.gke.manifest import GkeOptions
    from tpuctl.providers.gke.runs import ClusterPlan
    from tpuctl.providers.kaggle.follow import HostedRun, StartedRun
    from tpuctl.providers.kaggle.runs import KagglePlan
    from tpuctl.providers.offers import AutoPlan
    from tpuctl.providers.port import HostedPlan
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.jobs import StartedJob
    from tpuctl.remote.logs import Logs
    from tpuctl.remote.output import Sink
    from tpuctl.training.bench import Bench, Comparison
    from tpuctl.training.catalog import Catalog, Template, Written
    from tpuctl.training.plan import LaunchPlan
    from tpuctl.training.remote_launch import RemotePlan
    from tpuctl.training.run import Training

    Launched = (
        LaunchPlan | RemotePlan | Training | CopyResults | StartedJob | Logs | KagglePlan
        | StartedRun | HostedRun | AutoPlan | HostedPlan | ClusterPlan
        | StartedClusterRun | ClusterRun
    )  # fmt: skip


def fit(
    target: str | Path,
    accelerator_type: str | Sequence[str],
    *,
    batch_size: int | None = None,
    max_batch: bool = False,
    dtype: Literal["bf16", "f32"] | None = None,
    inference: bool = False,
    verify: bool = False,
    timeout_s: float = 300.0,
    on_progress: OnProgress = silent,
) -> Fit | FitComparison:
    """Compile a program for one accelerator type, or for several to compare; no TPU is needed.

    `target` is path.py:function, module:function, a .mlir or .stablehlo file, or a template.
    `batch_size` counts the examples per step on all chips together.
    """
    from tpuctl.compile.fit import fit_types

    target = str(target)
    types = [accelerator_type] if isinstance(accelerator_type, str) else accelerator_type
    return fit_types(
        target,
        types,
        batch_size=batch_size,
        max_batch=max_batch,
        dtype=dtype,
        training=not inference,
        verify=verify,
        timeout_s=timeout_s,
        on_progress=on_progress,
    )


def predict(model: Any, x: Any, *, batch_size: int | None = None) -> Any:
    """Predict every row of `x` with a Keras model, for any number of rows and replicas.

    `x` is an array (or a dict, tuple or list of arrays with equal rows), a `tf.data.Dataset`, or
    any iterable of such batches, of any sizes; of `(x, y)` and `(x, y, weights)` tuples only `x` is
    used. Rows are regrouped into batches of `batch_size` (global; rounded up to a multiple of the
    replicas). The last batch is padded with copies of its last row, whose predictions are dropped,
    so that no second shape is compiled.

    Returns what `model.predict` would: arrays of shape (rows, ...). Raises InvalidInputError if
    arrays have different numbers of rows, a batch is not made of arrays, the model expects rows of
    another shape, or `model` is not a Keras model; MissingExtraError without Keras.
    """
    from tpuctl.training import predict

    return predict(model, x, batch_size=batch_size)


def lint(
    *paths: str | Path,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fix: bool = False,
    diff: bool = False,
    runtime: str | None = None,
) -> Linting:
    """Find what in scripts and notebooks will break or crawl on a TPU, without running them.

    `select` and `ignore` are codes of rules, or beginnings of them such as T1. `fix` changes the
    files; `diff` only says how, in the result's `changes`. `runtime` is where the code will run,
    such as colab or kaggle:v5e-8; by default this machine, if it has a TPU.
    """
    from tpuctl.linting.run import lint_paths

    return lint_paths(paths, select=select, ignore=ignore, fixes=fix, diff=diff, runtime=runtime)


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    on: str | Workers = LOCAL,
    settings: Sequence[str] = (),
    framework: str = "auto",
    strategy: str = "auto",
    cpu_devices: int | None = None,
    code: Path | None = None,
    env: Sequence[str] = (),
    detach: bool = False,
    job: str | None = None,
    check: bool | None = None,
    include_secrets: bool = False,
    resume: str | None = None,
    ttl_s: float | None = None,
    max_usd: float | None = None,
    gke: GkeOptions | None = None,
    dry_run: bool = False,
    confirm: Callable[[Any], None] = lambda plan: None,
    log: int | None = None,
    sink: Sink = print_output,
    on_progress: OnProgress = silent,
) -> Launched:
    """Train a template or a script with the right strategy: here, on a TPU's workers, on Kaggle.

    Args:
        script: Name of a template, or path of a script.
        arguments: Passed on to the script as they are.
        on: "local", a TPU's name, Workers, "kaggle", "colab", "colab:v6e-1", "gke" or "auto".
        settings: Flags of the script, as K=V.
        include_secrets: Copy files of `code` that may hold keys or passwords, too.
        resume: Folder with checkpoints that the job begins with; on Kaggle also "last" or a run.
        ttl_s: Time limit of the session on Kaggle or of an attempt on GKE, or time to live of the
            runtime on Colab.
        max_usd: With "auto": budget in dollars; without it, only what is free or prepaid is used.
        gke: With "gke": the TPU, and how the cluster runs the job.
        confirm: Called with the plan before units or dollars are spent; raise an exception to stop.
        log: File descriptor for the output of a script on this machine; by default stdout.
        sink: Receives the output of workers.
        on_progress: Called with progress, and the reasons for the plan.
    """
    script = str(script)
    chosen: dict[str, Any] = {"framework": framework, "strategy": strategy}
    options: dict[str, Any] = {
        **chosen,
        "settings": list(settings),
        "arguments": list(arguments),
    }
    workers = as_workers(on)
    if workers.name == AUTO and not workers.hosts:
        refuse_unused({"--detach": detach, "--zone": workers.zone}, "with --on auto")
        auto = plan_auto(script, max_usd=max_usd, project=workers.project)
        if dry_run:
            return auto
        confirm_paid(auto, confirm)
        same: dict[str, Any] = {"code": code, "env": env, "job": job, "check": check, "log": log}
        same |= {"include_secrets": include_secrets, "sink": sink, "on_progress": on_progress}
        return launch_auto(  # type: ignore[no-any-return]
            auto,
            lambda name, alone: launch(
                script,
                arguments,
                on=name,
                settings=settings,
                detach=alone,
                ttl_s=AUTO_TTL_S if colab_type(name) else None,
                **chosen,
                **same,
            ),
            max_usd=max_usd,
            project=workers.project,
            sink=sink,
            on_progress=on_progress,
        )
    refuse_unused({"--max-usd": max_usd}, "here", hint="It is for --on auto.")
    from tpuctl.providers.gke.manifest import GkeOptions

    given = gke or GkeOptions()
    if workers.name == GKE and not workers.hosts:
        from tpuctl.remote.run import plan_command as plan_env

        refuse_unused({"--cpu-devices": cpu_devices, "--resume": resume}, "on GKE")
        refuse_unused({"--include-secrets": include_secrets}, "on GKE")
        workers.refuse_login("on GKE")
        where = replace(given, env=plan_env(["-"], env=list(env)).env, check=check is not False)
        return launch_on_gke(
            script, options, where, code=code, ttl_s=ttl_s, job=job, detach=detach,
            dry_run=dry_run, sink=sink, on_progress=on_progress,
        )  # fmt: skip
    refuse_unused(given.changed, "here", hint="It is for --on gke.")
    if is_kaggle(workers.name) and not workers.hosts:
        unused = {"--cpu-devices": cpu_devices, "--env": env or None, "--check": check}
        unused |= {"--no-check": check is False, "--include-secrets": include_secrets}
        refuse_unused(unused, "on Kaggle")
        workers.refuse_login("on Kaggle")
        return launch_on_kaggle(
            script,
            options,
            code=code,
            resume=resume,
            ttl_s=ttl_s,
            job=job,
            detach=detach,
            dry_run=dry_run,
            sink=sink,
            on_progress=on_progress,
        )
    if (kind := colab_type(workers.name)) and not workers.hosts:
        from tpuctl.remote.run import plan_command as check_env

        refuse_unused({"--cpu-devices": cpu_devices}, "on Colab")
        workers.refuse_login("on Colab")
        return launch_on_colab(
            script, options, accelerator_type=kind, code=code,
            env=check_env(["-"], env=list(env)).env, ttl_s=ttl_s, detach=detach, job=job,
            check=check is not False, include_secrets=include_secrets, dry_run=dry_run,
            resume=resume, confirm=confirm, sink=sink, on_warning=workers.on_warning,
            on_progress=on_progress,
        )  # fmt: skip
    refuse_unused({"--resume": resume}, "here", hint="It is for --on kaggle and --on colab.")
    refuse_unused({"--ttl": ttl_s}, "here", hint="It is for --on kaggle, colab and gke.")
    if workers.name == LOCAL and not workers.hosts:
        if detach or code or env or job or include_secrets:
            raise UsageError(
                "--detach, --code, --env, --job and --include-secrets need workers.",
                hint="Add --on NAME.",
            )
        workers.refuse_login("without --on")
        refuse_unused({"--check": check, "--no-check": check is False}, "without --on")
        options["cpu_devices"] = cpu_devices
        return _train_here(script, options, dry_run=dry_run, log=log, on_progress=on_progress)
    if cpu_devices:
        raise UsageError("--cpu-devices splits the CPU of this machine.", hint="Leave out --on.")
    from tpuctl.remote.run import plan_command
    from tpuctl.training.remote_launch import plan_on_workers, train_on_workers

    variables = plan_command(["-"], env=list(env)).env
    hosts, access, node = reach_or_suggest(workers)
    plan = plan_on_workers(script, hosts, access, node=node, code=code, env=variables, **options)
    if dry_run:
        return plan
    note = _show_reasons(plan, on_progress)
    return train_on_workers(
        plan,
        access,
        job=job,
        check=check is not False,
        detach=detach,
        include_secrets=include_secrets,
        sink=sink,
        note=note,
        on_progress=on_progress,
    )


def _train_here(
    script: str,
    options: dict[str, Any],
    *,
    dry_run: bool,
    log: int | None,
    on_progress: OnProgress,
) -> LaunchPlan | Training:
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.runtime.live import live_machine
    from tpuctl.training.plan import plan_training

    if not dry_run:
        settings = [_with_copy(script, setting, on_progress) for setting in options["settings"]]
        options["settings"] = settings
    plan = plan_training(script, diagnose(live_machine()), **options)
    if dry_run:
        return plan
    from tpuctl.training.watched import watch_training

    _show_reasons(plan, on_progress)
    return watch_training(plan, log=log)


def _with_copy(script: str, setting: str, on_progress: OnProgress) -> str:
    """Replace a template's shards in a bucket by a copy of them on this machine."""
    from tpuctl.datasets.places import bucket_of
    from tpuctl.training.plan import find_script

    name, _, place = setting.partition("=")
    address = bucket_of(place) if name.lstrip("-") == "data" else None
    if address is None or not find_script(script).reads_shards:
        return setting
    from tpuctl.datasets.local_copies import copy_data_set

    copy = copy_data_set(address, on_progress=on_progress)
    on_progress(message(f"Reading {address} from its local copy, {copy.path}."))
    return f"{name}={copy.path}"


def _show_reasons(plan: LaunchPlan, on_progress: OnProgress) -> Callable[[str], None]:
    def note(text: str) -> None:
        on_progress(message(text))

    for reason in plan.because:
        note(reason)
    return note


class TemplateCommands:
    """Training scripts to copy: `tpuctl.templates.list()`, `.show(name)`, `.new(name, folder)`."""

    def __repr__(self) -> str:
        return f"<{self.__doc__}>"

    def __call__(self) -> Catalog:
        """List the templates."""
        return self.list()

    def list(self) -> Catalog:
        """List the templates."""
        from tpuctl.training.catalog import list_templates

        return list_templates()

    def show(self, name: str) -> Template:
        """Describe what a template does and which flags it takes."""
        from tpuctl.training.catalog import describe_script, find_template

        return describe_script(find_template(name))

    def new(self, name: str, folder: Path) -> Written:
        """Copy a template into a folder."""
        from tpuctl.training.catalog import write_template

        return write_template(name, Path(folder))


class BenchCommands:
    """`tpuctl.bench()` measures this machine, `tpuctl.bench.compare(a, b)` compares two."""

    def __repr__(self) -> str:
        return f"<{self.__doc__}>"

    def __call__(
        self,
        *,
        template: str = "mnist-cnn",
        batch_sizes: str | Sequence[int] = (256, 512, 1024),
        epochs: int = 4,
        examples: int | None = None,
        framework: str = "auto",
        cpu_devices: int | None = None,
        plot: Path | None = None,
        on_progress: OnProgress = silent,
    ) -> Bench:
        """Measure how fast this machine trains a template on fake data.

        Batch sizes are global. `cpu_devices` also measures the CPU split into that many virtual
        devices. `plot` is a PNG to draw microseconds per example to.
        """
        from tpuctl.diagnosis.diagnose import diagnose
        from tpuctl.runtime.live import live_machine
        from tpuctl.training.bench import draw, parse_batches, run_bench

        sizes = parse_batches(batch_sizes) if isinstance(batch_sizes, str) else batch_sizes
        result = run_bench(
            diagnose(live_machine()),
            template=template,
            batch_sizes=sizes,
            epochs=epochs,
            examples=examples,
            framework=framework,
            cpu_devices=cpu_devices,
            on_progress=on_progress,
        )
        return draw(result, plot) if plot else result

    def compare(self, before: Path, after: Path) -> Comparison:
        """Compare two files with the output of `tpuctl bench --json`."""
        from tpuctl.training.bench import compare, load

        return compare(load(Path(before)), load(Path(after)))


templates = TemplateCommands()
bench = BenchCommands()
