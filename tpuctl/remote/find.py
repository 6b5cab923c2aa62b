"""Where the workers are: given as addresses, or asked from the API."""

from tpuctl.errors import UsageError
from tpuctl.remote.hosts import Host, parse_hosts, pick_workers


def find_workers(name: str | None, *, hosts: str | None, workers: str = "all") -> tuple[Host, ...]:
    """The workers of a TPU, or the machines of `--host`; `workers` is `all` or numbers.

    Raises UsageError for an unclear wish.
    """
    if hosts and name:
        raise UsageError("Both a NAME and --host were given.", hint="Give one of them.")
    if hosts:
        return pick_workers(parse_hosts(hosts), workers)
    raise UsageError("Which machines? Give a NAME or --host.", hint="See: tpuctl run --help")
