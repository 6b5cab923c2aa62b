"""Input pipelines and trainings from Python: `tpuctl.profile`, and its commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.errors import UsageError, refuse_unused
from tpuctl.progress import OnProgress, message, silent
from tpuctl.usercode.function import target_of

PROFILE = "profile.tpuprof"
# The options that a program refuses: its own steps are measured.
_FOR_PIPELINES = (
    "batch_size", "image_size", "model", "device_step_ms", "fit", "train", "verify", "deep",
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.profiling.compare import Comparison
    from tpuctl.profiling.models import Profile
    from tpuctl.profiling.program.inside import ProfileBlock


class ProfileCommands:
    """`with tpuctl.profile() as p:` around a training; the methods are the commands."""

    def __repr__(self) -> str:
        return f"<{self.__doc__}>"

    def __call__(self) -> ProfileBlock:
        """Profile what is trained inside a `with` block: what its steps waited for."""
        from tpuctl.profiling.program.inside import profile

        return profile()

    def run(
        self,
        target: str | Path | Callable[..., Any] | Sequence[str],
        *,
        steps: int | None = None,
        seconds: float | None = None,
        batch_size: int | None = None,
        image_size: int | None = None,
        device_step_ms: float | None = None,
        train: bool = False,
        fit: str | None = None,
        model: str | None = None,
        verify: bool = False,
        deep: bool = False,
        on: str | None = None,
        confirm: Callable[[Any], None] = lambda plan: None,
        log: int | None = None,
        out: Path | None = None,
        html: Path | None = None,
        fail_if: Sequence[str] = (),
        on_progress: OnProgress = silent,
    ) -> Profile:
        """Measure an input pipeline, or a training while it runs.

        `target` is a folder, gs://BUCKET/FOLDER, path.py:function or module:function, or such a
        function itself; or a training, as the words of its command line. `on` is a place for the
        training, as for `tpuctl.launch`, and `confirm` and `log` too. The other parameters are the
        options of the command.
        """
        of_pipelines = {name: value for name, value in locals().items() if name in _FOR_PIPELINES}
        from tpuctl.profiling.compare import check, parse_limits
        from tpuctl.profiling.program.run import (
            is_program,
            profile_program,
            refuse_for_programs,
        )

        _check_outputs(out, html)
        limits = parse_limits(fail_if)
        words = list(target) if isinstance(target, (list, tuple)) else [target_of(target)]
        if not words:
            raise UsageError("What should be profiled? Give a target, or a program after --.")
        if on and not is_program(words):
            raise UsageError(
                "--on is for a program.", hint="tpuctl profile run --on t1 -- python train.py"
            )
        if is_program(words):
            refuse_for_programs(
                {f"--{name.replace('_', '-')}": given for name, given in of_pipelines.items()}
            )
            if on:
                refuse_unused({"--steps": steps, "--seconds": seconds}, "with --on")
                profile = _profile_on(on, words, log, confirm=confirm, on_progress=on_progress)
            else:
                profile = profile_program(words, steps=steps, seconds=seconds, log=log)
        else:
            # Loaded here: a training that is watched needs nothing of it.
            from tpuctl.profiling.profile import profile_target

            refuse_unused({"--model": None if fit else model}, "without --fit")
            options = {name: given for name, given in of_pipelines.items() if given is not None}
            profile = profile_target(
                words[0], steps=steps, seconds=seconds, on_progress=on_progress, **options
            )
        _write(profile, on_progress, out=out, html=html)
        return check(profile, limits)

    def watch(
        self,
        program: Sequence[str],
        *,
        seconds: float | None = None,
        log: int | None = None,
        out: Path | None = None,
        on_profile: Callable[[Profile], None] = lambda profile: None,
        on_progress: OnProgress = silent,
    ) -> Profile:
        """Profile a training once a second while it runs, and return the last profile.

        `program` is the words of its command line. It is stopped after `seconds`. `log` is the file
        descriptor for its stdout, by default this process's.
        """
        from tpuctl.profiling.program.run import profile_program

        _check_outputs(out)
        profile = profile_program(program, limit_s=seconds, log=log, on_look=on_profile)
        _write(profile, on_progress, out=out)
        return profile

    def trace(
        self,
        path: Path,
        *,
        out: Path | None = None,
        html: Path | None = None,
        fail_if: Sequence[str] = (),
        on_progress: OnProgress = silent,
    ) -> Profile:
        """Read a profiler's trace: when devices were idle, and what the host did meanwhile."""
        from tpuctl.profiling.compare import check, parse_limits
        from tpuctl.profiling.trace.profile import profile_trace

        _check_outputs(out, html)
        limits = parse_limits(fail_if)
        profile = profile_trace(Path(path), on_progress=on_progress)
        _write(profile, on_progress, out=out, html=html)
        return check(profile, limits)

    def show(
        self,
        file: Path,
        *,
        html: Path | None = None,
        png: Path | None = None,
        fail_if: Sequence[str] = (),
        on_progress: OnProgress = silent,
    ) -> Profile:
        """Read a profile from its .tpuprof file, and write it as HTML or PNG."""
        from tpuctl.profiling.compare import check, parse_limits
        from tpuctl.profiling.tpuprof import load

        _check_outputs(html, png)
        limits = parse_limits(fail_if)
        profile = check(load(Path(file)), limits)
        _write(profile, on_progress, html=html, png=png)
        return profile

    def diff(self, before: Path, after: Path) -> Comparison:
        """Compare the profiles in two .tpuprof files."""
        from tpuctl.profiling.compare import diff
        from tpuctl.profiling.tpuprof import load

        return diff(load(Path(before)), load(Path(after)))


def _profile_on(on: str, words: Sequence[str], log: int | None, **talk: Any) -> Profile:
    """Launch a training elsewhere, and fetch the profile that every launch writes there."""
    from tempfile import TemporaryDirectory

    from tpuctl.api.colab import colab_type, runtime_name
    from tpuctl.api.launch import launch
    from tpuctl.api.workers import Workers, cp, print_output
    from tpuctl.errors import NotFoundError, TargetError
    from tpuctl.profiling.program.run import NO_STEPS
    from tpuctl.profiling.tpuprof import load
    from tpuctl.training.remote_launch import FOLDER

    script, *arguments = words[1:] if words[0].startswith("python") else words
    if not script.endswith(".py") or on in ("auto", "local"):
        raise UsageError(
            f"--on {on} cannot profile {script}.",
            hint="tpuctl profile run --on t1 -- python train.py",
        )
    ended: Any = launch(
        script,
        arguments,
        on=Workers(on, on_warning=lambda text: talk["on_progress"](message(text))),
        sink=lambda stream, data: print_output(log or stream, data),
        **talk,
    )
    inside = f"tpuctl/{PROFILE}"
    with TemporaryDirectory(prefix="tpuctl-") as folder:
        path = Path(f"{runtime_name(script)}-output", inside)
        if hasattr(ended, "out"):
            path = Path(ended.out, inside)
        elif not colab_type(on):
            path = Path(folder, PROFILE)
            cp(f"{on}:{FOLDER}/{inside}", path)
        try:
            profile = load(path)
        except NotFoundError as error:
            why = "".join(f" {each}" for each in ended.failures)
            raise TargetError(
                f"{script} on {on}: no step was found, or too few to measure.{why}", hint=NO_STEPS
            ) from error
    failed = tuple(str(error) for error in ended.failures)
    return replace(profile, unmet=(*profile.unmet, *failed)) if failed else profile


def ProfileCallback() -> Any:
    """Make a Keras callback that profiles one `fit`, and has its `result` afterwards.

    model.fit(data, callbacks=[c := tpuctl.ProfileCallback()])
    """
    from tpuctl.lazy import need_modules

    need_modules("tpuctl.ProfileCallback", "keras", extra="tf")
    from tpuctl.profiling.program._keras import ProfileCallback

    return ProfileCallback()


profile = ProfileCommands()


def _check_outputs(*places: Path | None) -> None:
    """Fail before the measurement, not after it, if a result cannot be written."""
    from tpuctl.profiling.tpuprof import check_place

    for place in filter(None, places):
        check_place(Path(place))


def _write(
    profile: Profile,
    on_progress: OnProgress,
    *,
    out: Path | None = None,
    html: Path | None = None,
    png: Path | None = None,
) -> None:
    from tpuctl.storage.local import write_atomically

    if out:
        from tpuctl.profiling.tpuprof import save

        save(profile, Path(out))
        on_progress(message(f"Wrote the profile to {out}. To see it: tpuctl profile show {out}"))
    if html:
        from tpuctl.reporters.profile_html import profile_page

        write_atomically(Path(html), profile_page(profile))
        on_progress(message(f"Wrote the report to {html}"))
    if png:
        from tpuctl.reporters.profile_html import profile_png

        write_atomically(Path(png), profile_png(profile))
        on_progress(message(f"Wrote the picture to {png}"))
