"""Settings as a table."""

from rich.table import Table

from tpuctl.settings import Settings


def text(settings: Settings) -> Table:
    """Show each setting, its value and where it came from."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "from", "meaning"):
        table.add_column(column)
    for setting in settings.settings:
        table.add_row(setting.name, setting.value or "-", setting.source, setting.meaning)
    return table
