"""What a text shows, in words."""

from typing import Any

from tpuctl.diagnosis.explain import Explanation


def text(explanation: Explanation) -> Any:
    """Show each match with its cause, its fix and the command for it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    if not explanation.matches:
        return Text("Nothing in this text is in the catalogue. On the machine: tpuctl doctor")
    parts: list[Any] = []
    for match in explanation.matches:
        head = Text(f"{match.code}  ", style="bold yellow")
        head.append(match.title, style="bold")
        lines = [Text(match.cause), Text(f"→ {match.fix}")]
        if match.fix_command:
            command = f"  {match.fix_command}"
            lines.append(Text(command, style="green", no_wrap=True, overflow="ignore"))
        lines.append(Text(f"confidence {match.confidence}; {match.source}", style="dim"))
        parts += [head, *(Padding(line, (0, 0, 0, 2)) for line in lines), Text()]
    return Group(*parts[:-1])
