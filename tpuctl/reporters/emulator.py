"""The emulator's own commands as text; what `start` prints can be pasted into a shell."""

import shlex

from rich.table import Table

from tpuctl.emulator.process import Started, Status, Stopped


def started(result: Started) -> str:
    """Write the lines to export; the rest are comments of the shell."""
    verb = "goes on" if result.resumed else "runs"
    return "\n".join(
        [
            f"# An emulator of the Cloud TPU API {verb}: process {result.pid},"
            f" {result.time_scale:g} emulated seconds in every real one.",
            *_exports(result.exports),
        ]
    )


def stopped(result: Stopped) -> str:
    """Say what was stopped."""
    if not result.was_running:
        return "No emulator was running."
    return f"The emulator (process {result.pid}) has ended. What it held is kept."


def status(result: Status) -> Table | str:
    """Show where the emulator is and what it holds."""
    if not result.running:
        kept = " What the last one held is kept." if result.kept else ""
        return f"No emulator is running.{kept} Start one: tpuctl emulator start --detach"
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _facts(result).items():
        table.add_row(name, value)
    return table


def _facts(result: Status) -> dict[str, str]:
    return {
        "process": str(result.pid),
        "API": str(result.endpoint),
        "HTTP": str(result.http),
        "emulated time": f"{result.time} (times {result.time_scale:g})",
        "scenario": result.scenario or "none: every known zone and type",
        "requests": str(result.requests),
        "nodes": _counts(result.nodes),
        "queued resources": _counts(result.queued_resources),
        "export": "\n".join(_exports(result.exports)),
    }


def _counts(by_state: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(by_state.items())) or "none"


def _exports(variables: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
