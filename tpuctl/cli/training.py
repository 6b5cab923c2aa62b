"""`tpuctl templates`, `lint`, `launch`, `fit`, `bench`."""

from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import tpuctl
from tpuctl.api.workers import Workers
from tpuctl.cli import output, workers
from tpuctl.cli.options import (
    Argument,
    DryRun,
    Option,
    Yes,
    command,
    examples,
    parsed_by,
    positive_option,
    time_option,
)
from tpuctl.cli.progress import bars
from tpuctl.cli.script_options import LaunchCommand
from tpuctl.errors import refuse_unused
from tpuctl.reporters import lint as lint_report
from tpuctl.reporters import training as report

templates = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    help="List, show and copy training scripts to start from.",
    epilog=examples("tpuctl templates", "tpuctl templates new mnist-cnn my-project"),
)
bench = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    help="Measure how fast this machine trains, and compare two machines.",
    epilog=examples(
        "tpuctl bench --batch 256,512 --epochs 3",
        "tpuctl bench --json > tpu.json",
        "tpuctl bench compare cpu.json tpu.json",
    ),
)

TemplateName = Annotated[str, Argument(metavar="TEMPLATE", help="Name of a template.")]


@templates.callback()
def list_by_default(context: typer.Context) -> None:
    """List the templates."""
    if context.invoked_subcommand is None:
        list_templates()


@command(templates, "list")
def list_templates() -> None:
    """List the templates.

    Examples:
        tpuctl templates list
    """
    output.show(tpuctl.templates.list())


@command(templates)
def show(name: TemplateName) -> None:
    """Show what a template does and which flags it takes.

    Examples:
        tpuctl templates show mnist-cnn
    """
    output.show(tpuctl.templates.show(name))


@command(templates)
def new(name: TemplateName, folder: Annotated[Path, Argument(help="Folder for the copy.")]) -> None:
    """Copy a template into a folder, to change it.

    Examples:
        tpuctl templates new mnist-cnn my-project
    """
    output.show(tpuctl.templates.new(name, folder))


class LintFormat(Enum):
    """What `lint` prints."""

    TEXT = "text"
    SARIF = "sarif"
    GITHUB = "github"


_LINT_REPORTS = {
    LintFormat.TEXT: None,
    LintFormat.SARIF: lint_report.render_sarif,
    LintFormat.GITHUB: lint_report.render_github,
}


def lint(
    paths: Annotated[
        list[Path], Argument(metavar="PATH...", help="Scripts, notebooks, or folders of them.")
    ],
    select: Annotated[
        list[str] | None, Option(metavar="CODES", help="Check only these rules, such as T1,T302.")
    ] = None,
    ignore: Annotated[
        list[str] | None, Option(metavar="CODES", help="Skip these rules, such as T408.")
    ] = None,
    fix: Annotated[
        bool, Option("--fix", help="Apply the fixes that are safe to automate.")
    ] = False,
    diff: Annotated[
        bool, Option("--diff", help="Print the changes of --fix without making them.")
    ] = False,
    runtime: Annotated[
        str | None,
        Option(
            "--runtime",
            metavar="RUNTIME",
            help="Target runtime: colab, kaggle, tpu-vm, pod, gke or cpu; or colab:v6e-1.",
        ),
    ] = None,
    format: Annotated[LintFormat, Option(help="Output format.")] = LintFormat.TEXT,
) -> None:
    """Find code that will fail or be slow on a TPU.

    Examples:
        tpuctl lint train.py notebooks/
        tpuctl lint old.ipynb --runtime kaggle --diff
        tpuctl lint . --select T1,T3 --format github
    """
    result = tpuctl.lint(
        *paths, select=select or (), ignore=ignore or (), fix=fix, diff=diff, runtime=runtime
    )
    output.show(result, _LINT_REPORTS[format])


@parsed_by(LaunchCommand)
@workers.on_workers(worker=None)
def launch(
    where: Workers,
    script: Annotated[
        str, Argument(metavar="TEMPLATE|SCRIPT", help="Name of a template, or path of a script.")
    ],
    arguments: Annotated[
        list[str] | None,
        Argument(metavar="[-- ARGS...]", help="Arguments passed to the script unchanged."),
    ] = None,
    on: Annotated[
        str,
        Option(
            metavar="local|NAME|kaggle|colab|gke|auto",
            help="This machine, a TPU, Kaggle, Colab (colab:v6e-1), GKE, or what is free.",
        ),
    ] = "local",
    settings: Annotated[
        list[str] | None,
        Option(
            "--set", metavar="K=V", help="Flag of the script: steps=100 is the same as --steps 100."
        ),
    ] = None,
    framework: Annotated[
        str, Option(metavar="auto|tensorflow|jax|torch", help="Framework to train with.")
    ] = "auto",
    strategy: Annotated[
        str,
        Option(
            "--strategy", metavar="STRATEGY", help="auto, or a strategy that tpuctl doctor lists."
        ),
    ] = "auto",
    cpu_devices: Annotated[
        int | None, Option(metavar="N", min=1, help="Number of virtual CPU devices.")
    ] = None,
    code: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder to copy to the workers instead of the script."),
    ] = None,
    env: workers.Env = None,
    detach: Annotated[
        bool, Option("--detach", help="Start a job on the workers and return.")
    ] = False,
    job: Annotated[
        str | None, Option("--job", metavar="JOB", help="Name for the job on the workers.")
    ] = None,
    check: workers.Check = None,
    include_secrets: workers.IncludeSecrets = False,
    resume: Annotated[
        str | None,
        Option(
            metavar="last|RUN|DIR",
            help="On Kaggle and Colab: local folder to start from; on Kaggle also an earlier run.",
        ),
    ] = None,
    ttl_s: Annotated[
        float | None,
        time_option(
            "On Kaggle, Colab or GKE: time limit, such as 4h. Kaggle's default: 9h.", "--ttl"
        ),
    ] = None,
    max_usd: Annotated[
        float | None,
        positive_option("USD", "With --on auto: budget. Default: only what is free or prepaid."),
    ] = None,
    accelerator_type: Annotated[
        str | None,
        Option(
            "--accelerator-type",
            metavar="TYPE",
            help="On GKE: accelerator type of each slice, such as v6e-16.",
        ),
    ] = None,
    num_slices: Annotated[int, Option(metavar="N", min=1, help="On GKE: number of slices.")] = 1,
    staging: Annotated[
        str | None, Option(metavar="gs://BUCKET", help="On GKE: bucket for the code.")
    ] = None,
    kueue: Annotated[str | None, Option(metavar="QUEUE", help="On GKE: Kueue queue.")] = None,
    spot: Annotated[bool, Option("--spot", help="On GKE: use spot nodes.")] = False,
    flex: Annotated[bool, Option("--flex", help="On GKE: use flex-start nodes.")] = False,
    image: Annotated[
        str | None,
        Option("--image", metavar="IMAGE", help="On GKE: container image. Default: JAX's."),
    ] = None,
    max_restarts: Annotated[
        int, Option(metavar="N", min=0, help="On GKE: restarts after crashes.")
    ] = 3,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Train a template or your own script with the right strategy.

    Examples:
        tpuctl launch mnist-cnn --set data=fake --set steps=20
        tpuctl launch train.py --dry-run -- --epochs 3
        tpuctl launch train.py --on my-tpu --code . --detach
        tpuctl launch images --on kaggle --set epochs=3
        tpuctl launch images --on auto --max-usd 5
        tpuctl launch train.py --on gke --accelerator-type v6e-16 --staging gs://bucket --detach
    """
    options = {**locals(), "settings": settings or (), "env": env or ()}
    del options["where"], options["yes"]
    gke = [options.pop(field.name) for field in fields(tpuctl.GkeOptions)[:8]]
    options["arguments"] = arguments or ()
    options["on"] = replace(where, name=None if where.hosts and on == "local" else on)
    with bars() as on_progress:
        result = tpuctl.launch(
            **options,
            gke=tpuctl.GkeOptions(*gke),
            confirm=lambda plan: output.confirm(report.launch_question(plan), yes=yes),
            log=output.script_log(),
            sink=output.worker_sink(),
            on_progress=on_progress,
        )
    has_run = on == "local" and not where.hosts and not dry_run
    output.show(result, report.render_launch, err=has_run)


class Dtype(str, Enum):
    """Element types to compile in."""

    BF16 = "bf16"
    F32 = "f32"


def fit(
    target: Annotated[
        str,
        Argument(
            help="path.py:function, module:function, a .mlir or .stablehlo file, or a template."
        ),
    ],
    accelerator_type: Annotated[
        list[str] | None,
        Option(
            "--accelerator-type",
            metavar="TYPE",
            help="Accelerator type such as v5e-8; several, A,B or repeated, are compared.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, Option("--batch", metavar="N", min=1, help="Examples per step, on all chips.")
    ] = None,
    max_batch: Annotated[
        bool, Option("--max-batch", help="Find the largest batch that fits.")
    ] = False,
    dtype: Annotated[Dtype | None, Option(help="Compile in bfloat16 or float32.")] = None,
    inference: Annotated[
        bool, Option("--inference", help="Compile only the forward pass of a model.")
    ] = False,
    verify: Annotated[
        bool, Option("--verify", help="If it does not fit, compile the suggested changes.")
    ] = False,
    timeout_s: Annotated[
        float, positive_option("S", "Time limit for your code, in seconds.", "--timeout", least=1)
    ] = 300,
) -> None:
    """Compile for a TPU you do not have: does it fit, and how fast?

    Examples:
        tpuctl fit images --accelerator-type v5e-8
        tpuctl fit model.py:make_model --accelerator-type v5e-8,v6e-8 --max-batch
    """
    options = {**locals(), "accelerator_type": accelerator_type or ()}
    options["dtype"] = dtype.value if dtype else None
    with bars() as on_progress:
        result = tpuctl.fit(**options, on_progress=on_progress)
    output.show(result)


@bench.callback()
def run_bench(
    context: typer.Context,
    template: Annotated[
        str, Option("--template", metavar="TEMPLATE", help="Template to train, on fake data.")
    ] = "mnist-cnn",
    batch_sizes: Annotated[
        str, Option("--batch", metavar="N,N...", help="Global batch sizes.")
    ] = "256,512,1024",
    epochs: Annotated[
        int, Option(metavar="N", help="Epochs; the first is reported separately.")
    ] = 4,
    examples: Annotated[int | None, Option(metavar="N", min=1, help="Examples per epoch.")] = None,
    framework: Annotated[
        str, Option(metavar="auto|tensorflow|jax", help="Framework to train with.")
    ] = "auto",
    cpu_devices: Annotated[
        int | None, Option(metavar="N", min=2, help="Also measure with N virtual CPU devices.")
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Plot microseconds per example to this PNG file.")
    ] = None,
) -> None:
    """Measure how fast this machine trains at several batch sizes."""
    options = dict(locals())
    del options["context"]
    if context.invoked_subcommand is not None:
        given = {name: context.get_parameter_source(name) for name in options}
        unused = [name for name, source in given.items() if source and source.name == "COMMANDLINE"]
        refuse_unused(
            {
                f"--{name.replace('batch_sizes', 'batch').replace('_', '-')}": True
                for name in unused
            },
            f"with {context.invoked_subcommand}",
        )
        return
    with bars() as on_progress:
        result = tpuctl.bench(**options, on_progress=on_progress)
    output.show(result)


Sweep = Annotated[Path, Argument(help="File with the output of tpuctl bench --json.")]


@command(bench)
def compare(before: Sweep, after: Sweep) -> None:
    """Compare the speed of two machines.

    Examples:
        tpuctl bench compare cpu.json tpu.json
    """
    output.show(tpuctl.bench.compare(before, after))
