"""Machines of the user, given with --host, as a provider: they can be reached, and nothing else."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from tpuctl.errors import NotFoundError
from tpuctl.providers.port import Abilities, Login, ProviderOffer, Reached, refused
from tpuctl.remote.hosts import parse_hosts
from tpuctl.remote.keys import open_access

NAME = "hosts"


class Hosts:
    """The machines named by `--host`; tpuctl neither creates nor deletes them."""

    abilities = Abilities(
        NAME,
        "--host",
        instead={
            "create": "Use a machine that exists: tpuctl run --host me@10.0.0.5 -- CMD",
            "delete": "Shut the machines down yourself; tpuctl stop --host ... ends a job there.",
        },
    )

    def __init__(self, project: str | None, on_warning: Callable[[str], None]) -> None:
        """Take what every provider takes; hosts need neither."""

    def why_unusable(self) -> str | None:
        """Say how such machines are named."""
        return "machines are named where they are used: --host me@10.0.0.5"

    def is_recorded(self, name: str) -> bool:
        """Always False: hosts have addresses, not names."""
        return False

    was_deleted = is_recorded

    def is_used(self) -> bool:
        """Always False: nothing on them costs money."""
        return False

    plan = create = refused("create")
    plan_delete = delete = find_orphans = delete_orphans = refused("delete")
    list = refused("list")

    def get(self, name: str, zone: str | None) -> NoReturn:
        """Raise: there are no objects to read."""
        raise NotFoundError(f"TPU {name} not found among hosts.", hint="tpuctl list")

    def offers(self, accelerator_type: str | None) -> Sequence[ProviderOffer]:
        """Offer nothing."""
        return ()

    def balance(self) -> None:
        """Return nothing: their cost is unknown."""

    def reach(self, name: str, login: Login) -> Reached:
        """Read the addresses; `name` is the value of --host."""
        access = open_access(on_warning=login.on_warning, key=login.key, jump=login.jump)
        return Reached(parse_hosts(name), access, None)
