"""Trainings as text: planned or finished ones, templates, sweeps over batch sizes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tpuctl.remote.hosts import name_workers
from tpuctl.reporters import layout
from tpuctl.reporters.workers import render_run
from tpuctl.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tpuctl.providers.combined import AutoPlan
    from tpuctl.providers.kaggle.follow import HostedRun
    from tpuctl.providers.port import HostedPlan
    from tpuctl.training.bench import Bench, Comparison, Row
    from tpuctl.training.catalog import Catalog, Flag, Template, Written
    from tpuctl.training.plan import LaunchPlan
    from tpuctl.training.remote_launch import RemotePlan
    from tpuctl.training.run import Training
    from tpuctl.training.strategies import Strategy


def render_launch(result: Any) -> str | None:
    """Show the plan or the result of a training here, on workers, or in a remote session."""
    from tpuctl.cloud.tpu import Tpu
    from tpuctl.providers.combined import AutoPlan
    from tpuctl.providers.kaggle.follow import HostedRun, StartedRun
    from tpuctl.providers.kaggle.runs import KagglePlan
    from tpuctl.providers.port import HostedPlan
    from tpuctl.training.plan import LaunchPlan
    from tpuctl.training.remote_launch import RemotePlan
    from tpuctl.training.run import Training

    match result:
        case Training():
            return _training(result)
        case RemotePlan():
            return _remote_plan(result)
        case LaunchPlan():
            return render_launch_plan(result)
        case AutoPlan() | HostedPlan():
            return "\n".join(f"# {line}" for line in result.reasons)
        case KagglePlan():
            adopts = [f"follows {result.adopts}, which runs already"] if result.adopts else []
            return "\n".join(f"# {line}" for line in (*result.because, *adopts))
        case StartedRun():
            follow = f"tpuctl logs {result.name} --follow"
            return f"{result.name} keeps running until {result.ends_by}: {result.url}\n  → {follow}"
        case HostedRun():
            return _hosted_run(result)
        case Tpu():
            return None
    if getattr(result, "provider", "") == "gke":
        return _cluster_run(result)
    return render_run(result)


def launch_question(plan: HostedPlan | AutoPlan) -> str:
    """Ask for permission to spend units or dollars."""
    from tpuctl.providers.combined import AutoPlan

    if isinstance(plan, AutoPlan):
        return "\n".join([*plan.because, f"Run {plan.script} on the first that is available?"])
    return f"Create {plan.name} on Colab, and run the job there?"


def _cluster_run(result: Any) -> str:
    """Write the JobSet of a planned job on GKE, or the outcome of its attempts."""
    from tpuctl.providers.gke.follow import ClusterRun
    from tpuctl.providers.gke.runs import ClusterPlan

    if isinstance(result, ClusterPlan):
        from tpuctl.providers.gke._kubeconfig import to_yaml

        upload = f"the command without --dry-run uploads the code to {result.archive}"
        lines = "".join(f"# {line}\n" for line in (*result.because, upload))
        return lines + to_yaml(result.manifest).rstrip()
    if isinstance(result, ClusterRun):
        causes = ", ".join(each.cause.replace("_", " ") for each in result.attempts)
        return f"{result.name} is {result.state}; its attempts: {causes}."
    follow = f"tpuctl logs {result.name} --follow"
    return f"{result.name} continues in {result.context}.\n  → {follow}"


def _hosted_run(run: HostedRun) -> str:
    """Say what the job measured there, and where its output is."""
    code = "unknown" if run.returncode is None else run.returncode
    lines = [f"{run.name} is {run.state} on Kaggle; the job's exit code: {code}."]
    if run.training:
        from tpuctl.codec import from_plain
        from tpuctl.training.run import Training

        # What a session has written may be anything.
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            lines.append(_training(from_plain(Training, dict(run.training))))
    lines.append(
        f"Fetched {format_count(run.files, 'file')} ({format_bytes(run.size_bytes)}) to {run.out}."
    )
    return "\n".join(lines)


def render_launch_plan(plan: LaunchPlan) -> str:
    """Write the command to paste, on one line however long, below the reasons for it."""
    return "\n".join([*(f"# {reason}" for reason in plan.because), plan.in_shell()])


def _remote_plan(plan: RemotePlan) -> str:
    """Write the command for workers, what is copied there first, and where it runs."""
    copies = (f"# copies {source} to {target}" for source, target in plan.copies)
    where = f"# in the folder {plan.folder} of {name_workers(h.index for h in plan.hosts)}"
    return "\n".join([*copies, f"{where}, on {plan.on}", render_launch_plan(plan)])


# What `launch` sees of a script, and how to show it the rest.
SEEN = (
    "tf.data, Keras fit, PyTorch and Grain loaders are seen; for another loop: "
    "with tpuctl.profile() as p: for batch in p.watch(batches): ..."
)


def _training(result: Training) -> str:
    """Say how long the training took, and its figures; the script has shown its own output."""
    took = f"after {format_duration(result.seconds)}"
    if result.returncode:
        return f"Stopped {took}."
    figures = "; ".join(f"{name} {value}" for name, value in training_figures(result))
    lines = [
        f"Finished {took}: {figures}." if figures else f"Finished {took}.{_unmeasured(result)}"
    ]
    if figures and result.watched and result.input_wait_fraction is None:
        lines.append(f"Its input was not seen: {SEEN}")
    if result.executed:
        lines.append(f"Steps executed by: {', '.join(map(str, result.executed))}.")
    return "\n".join(lines)


def _unmeasured(result: Training) -> str:
    """Say why there are no figures; a template that had no steps left has said so itself."""
    from tpuctl.training.catalog import is_template

    why = result.unseen or SEEN
    if result.few:
        return f" {format_count(result.few, 'training step')}: too few to measure."
    if steps := max((count.steps for count in result.executed), default=0):
        return f" {format_count(steps, 'training step')}, whose input was not seen: {why}"
    return "" if is_template(result.script) else f" No training steps were seen: {why}"


def training_figures(training: Training) -> list[tuple[str, str]]:
    """Return names and values of what a template reported, or else of what was observed."""
    result = training.reported
    step = result.get("step_ms") or {}
    epochs = result.get("epochs")
    last = epochs[-1] if isinstance(epochs, list) and epochs else {}
    rate, seen = result.get("examples_per_s"), training.watched
    step_ms = f"{step['p50']:.1f} ms (median)" if step else ""
    if seen and not step:
        step_ms, rate = f"{seen.step_ms:.1f} ms (mean)", seen.examples_per_s
    pairs = [
        ("devices used", ", ".join(result.get("devices", []))),
        ("replicas", str(result.get("replicas") or "")),
        ("step", step_ms),
        ("speed", f"{rate:,.0f} examples/s" if rate else ""),
        *((name, f"{share:.0%}") for name, share in training.idle_shares.items()),
        ("loss", f"{last['loss']:.3f}" if "loss" in last else ""),
        ("accuracy", _accuracy(result.get("test_accuracy"), last.get("accuracy"))),
    ]
    return [(name, text) for name, text in pairs if text]


def _accuracy(held_out: float | None, trained: float | None) -> str:
    """Say how much is right; the data that was not trained on counts."""
    if held_out is not None:
        return f"{held_out:.1%} on held-out data"
    return "" if trained is None else f"{trained:.1%} on the data trained on"


def render_templates(catalog: Catalog) -> RenderableType:
    """List templates, one line for each."""
    return layout.stack(
        layout.facts((entry.name, entry.summary) for entry in catalog.templates),
        "",
        layout.text("Try one: tpuctl launch NAME --set data=fake --set steps=20"),
        layout.text("Its flags: tpuctl templates show NAME"),
    )


def render_template(template: Template) -> RenderableType:
    """Show what a template does, and its flags."""
    return layout.stack(
        layout.text(f"{template.name}: {template.summary}\n", "bold"),
        layout.text(template.usage + "\n"),
        _flags(template),
        layout.text(f"\n{template.path}"),
    )


def render_flags(script: Template) -> RenderableType:
    """List the flags of a script below the help of `launch`."""
    if not script.flags:
        return layout.text(f"{script.name} declares no flags; pass its arguments after --.")
    return layout.stack(layout.text(f"Flags of {script.name}:", "bold"), _flags(script))


def _flags(script: Template) -> RenderableType:
    return layout.indent(layout.facts((flag.name, _describe(flag)) for flag in script.flags))


def _describe(flag: Flag) -> str:
    """Write what a flag is for, its choices and its default."""
    parts = (flag.help, ", ".join(flag.choices), flag.default and f"default {flag.default}")
    return "; ".join(filter(None, parts))


def render_written_template(result: Written) -> str:
    """Say where the copy is and how to try it."""
    return f"Wrote {result.path}\n  → {result.next_command}"


def render_strategy(result: Strategy) -> RenderableType:
    """Say on how many devices the strategy runs, and the other decisions."""
    words = f"{format_count(result.replicas, 'replica')}: {result.name} on {result.framework}."
    return layout.stack(layout.text(words, "bold"), layout.facts(result.decisions))


def render_bench(result: Bench) -> RenderableType:
    """Show one line for each device and batch size; the first epoch apart."""
    right = ("batch", "first epoch s", "epoch s", "step ms", "µs/example", "examples/s")
    table = layout.table("device", "framework", "strategy", *right, right=right)
    for column in table.columns[:3]:
        column.no_wrap = True
    for row in result.rows:
        table.add_row(*map(layout.text, (row.device, row.framework, row.strategy)), *_figures(row))
    best = min(result.rows, key=lambda row: row.us_per_example, default=None)
    answer = "Nothing was measured."
    if best:
        answer = (
            f"Fastest: {best.us_per_example:,.1f} µs per example on {best.device} "
            f"({best.framework}, {best.strategy}) with a batch of {best.batch_size:,}."
        )
    title = layout.text(
        f"{result.template} on {result.place}: {result.examples_per_epoch:,} examples per epoch, "
        f"{result.epochs} epochs; the first one compiles and is not in the means.\n"
    )
    plot = [layout.text(f"\nplot: {result.plot}")] if result.plot else []
    return layout.stack(layout.text(answer, "bold"), title, table, *plot)


def _figures(row: Row) -> tuple[str, ...]:
    return (
        f"{row.batch_size:,}",
        f"{row.first_epoch_s:.2f}",
        f"{row.epoch_s:.2f}",
        f"{row.step_ms:.2f}",
        f"{row.us_per_example:,.1f}",
        f"{row.examples_per_s:,.0f}",
    )


def render_bench_comparison(result: Comparison) -> RenderableType:
    """Show one line for each batch size that both sweeps have, and one for the best of each."""
    best = result.speed_ups[-1]
    answer = (
        f"At its best, the second machine is {best.speed_up:,.2f} times as fast as the first.\n"
    )
    title = f"{result.template}\nfirst:  {result.before}\nsecond: {result.after}\n"
    titles = ("batch", "speed-up", "first epoch")
    table = layout.table(*titles, right=titles)
    for entry in result.speed_ups:
        size = f"best ({entry.before.batch_size}, {entry.after.batch_size})"
        table.add_row(
            size if entry.batch_size is None else f"{entry.batch_size:,}",
            f"{entry.speed_up:,.2f} x",
            f"{entry.first_epoch_speed_up:,.2f} x",
        )
    head, each = (
        layout.text(answer, "bold"),
        layout.text("\nµs per example (fastest to slowest epoch)"),
    )
    return layout.stack(head, layout.text(title), table, each, _bench_columns(result))


def _bench_columns(result: Comparison) -> RenderableType:
    """Show a column for each machine, device and framework, named as such."""
    names = [f"{c.machine}\n{c.device}, {c.framework} {c.strategy}" for c in result.columns]
    table = layout.table("batch", *names, right=("batch", *names))
    for size in sorted({row.batch_size for column in result.columns for row in column.rows}):
        cells = (
            {row.batch_size: row for row in column.rows}.get(size) for column in result.columns
        )
        table.add_row(f"{size:,}", *map(_time_and_spread, cells))
    return table


def _time_and_spread(row: Row | None) -> str:
    if row is None:
        return "-"
    low, high = row.us_per_example_low, row.us_per_example_high
    spread = "" if low is None or high is None else f" ({low:,.1f} to {high:,.1f})"
    return f"{row.us_per_example:,.1f}{spread}"
