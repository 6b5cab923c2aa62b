"""What happened on workers, as text."""

from tpuctl.remote.ends import Ends


def ends(result: Ends) -> None:
    """Nothing: the commands have said it themselves, and failures are said as such."""
