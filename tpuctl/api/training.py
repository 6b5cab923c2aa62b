"""Training from Python: fit, predict, lint, templates, bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tpuctl.progress import OnProgress, silent
from tpuctl.usercode.function import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.compile.models import Comparison as FitComparison
    from tpuctl.compile.models import Fit
    from tpuctl.linting.models import Linting
    from tpuctl.training.bench import Bench, Comparison
    from tpuctl.training.catalog import Catalog, Template, Written


def fit(
    target: str | Path | Callable[..., Any],
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

    `target` is path.py:function, module:function, such a function itself, a .mlir or .stablehlo
    file, or a template. `batch_size` counts the examples per step on all chips together.
    """
    from tpuctl.compile.fit import fit_types

    types = [accelerator_type] if isinstance(accelerator_type, str) else accelerator_type
    return fit_types(
        target_of(target),
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
    """Find code in scripts and notebooks that will fail or be slow on a TPU, without running it.

    `select` and `ignore` are codes of rules, or beginnings of them such as T1. `fix` changes the
    files; `diff` only says how, in the result's `changes`. `runtime` is where the code will run,
    such as colab or kaggle:v5e-8; by default this machine, if it has a TPU.
    """
    from tpuctl.linting.run import lint_paths

    return lint_paths(paths, select=select, ignore=ignore, fixes=fix, diff=diff, runtime=runtime)


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
        from tpuctl.training.catalog import describe_template

        return describe_template(name)

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
        options = {name: given for name, given in locals().items() if name not in ("self", "plot")}
        from tpuctl.diagnosis.diagnose import diagnose
        from tpuctl.runtime.live import live_machine
        from tpuctl.training.bench import draw, parse_batches, run_bench

        if isinstance(batch_sizes, str):
            options["batch_sizes"] = parse_batches(batch_sizes)
        result = run_bench(diagnose(live_machine()), **options)
        return draw(result, plot) if plot else result

    def compare(self, before: Path, after: Path) -> Comparison:
        """Compare two files with the output of `tpuctl bench --json`."""
        from tpuctl.training.bench import compare, load

        return compare(load(Path(before)), load(Path(after)))


templates = TemplateCommands()
bench = BenchCommands()
