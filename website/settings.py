"""The settings, and every environment variable that tpuctl reads or sets."""

import json
from pathlib import Path

from tpuctl.settings import KEYS

VARIABLES = json.loads((Path(__file__).parent / "variables.json").read_text(encoding="utf-8"))


def pages() -> dict[str, str]:
    """Return both pages by their addresses."""
    return {"reference/settings.md": _settings(), "reference/environment.md": _environment()}


def _settings() -> str:
    rows = [
        f"| `{key.name}` | `{key.variable}` | {'yes' if key.in_project_files else 'no'} | {key.meaning} |"
        for key in KEYS
    ]
    return (
        "\n".join(
            [
                "# Settings",
                "",
                "In order of precedence: an option such as `--zone`, a variable, the nearest `tpuctl.toml` in",
                "the current folder or above it, your own `~/.config/tpuctl/config.toml`, the default.",
                "`tpuctl config` shows each value and where it came from.",
                "[More on both files](../cloud-tpus.md#settings).",
                "",
                "| setting | variable | in `tpuctl.toml` | meaning |",
                "|---|---|---|---|",
                *rows,
            ]
        )
        + "\n"
    )


def _environment() -> str:
    lines = ["# Environment variables", ""]
    lines += ["Those of [settings](settings.md):", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{key.variable}` | {key.meaning} |" for key in KEYS]
    for title, rows in VARIABLES.items():
        lines += ["", f"## {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in rows.items()]
    return "\n".join(lines) + "\n"
