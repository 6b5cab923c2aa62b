"""The emulator as a whole: one world behind a gRPC and an HTTP port on loopback."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpuctl.clock import Clock
from tpuctl.emulator.machines import Machines, ticking
from tpuctl.emulator.metadata import FrontDesk
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.service import Emulator as Emulator
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World
from tpuctl.errors import MissingExtraError, PortTakenError


@contextmanager
def serve(
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    folder: Path | None = None,
    machines: Path | None = None,
    port: int = 0,
) -> Iterator[Emulator]:
    """Run an emulator on loopback, in threads of this process, for as long as the block lasts.

    With a folder it goes on from where the last one in that folder ended, however it ended.
    With a folder for `machines` every worker is one, reached by SSH.
    Raises MissingExtraError, and PortTakenError.
    """
    plan = scenario if isinstance(scenario, Scenario) else parse_scenario(dict(scenario or {}))
    store = Store(folder) if folder else None
    world = open_world(plan, store, clock)
    with serve_world(
        world, clock=clock, store=store, ports=[(port, 0)], machines=machines
    ) as emulator:
        yield emulator


@contextmanager
def serve_world(
    world: World,
    *,
    clock: Clock,
    store: Store | None,
    ports: Sequence[tuple[int, int]],
    machines: Path | None = None,
) -> Iterator[Emulator]:
    """Put a world behind the first pair of ports (gRPC, HTTP) that is free; 0 is any."""
    emulator = Emulator(world, clock, store)
    with ExitStack() as stack:
        folder = store.storage if store else Path(stack.enter_context(TemporaryDirectory()))
        for index, pair in enumerate(ports):
            try:
                stack.enter_context(_faces(emulator, folder, *pair))
                break
            except PortTakenError:
                if index == len(ports) - 1:
                    raise
        if machines:
            stack.enter_context(_switched_on(emulator, machines))
        yield emulator


@contextmanager
def _switched_on(emulator: Emulator, folder: Path) -> Iterator[None]:
    """Let the workers be machines; without the extra `ssh` they stay what the API says of them."""
    try:
        emulator.machines = machines = Machines(folder, emulator.http)
    except ModuleNotFoundError:
        yield
        return
    try:
        with ticking(emulator.look):
            yield
    finally:
        emulator.machines = None
        machines.close()


def open_world(scenario: Scenario, store: Store | None, clock: Clock) -> World:
    """Go on with the world of a store, or begin one."""
    if store and store.has_world:
        return store.resume()
    seed, now = secrets.token_hex(8), clock.now()
    if store:
        return store.begin(scenario, seed=seed, now=now)
    return World(scenario, seed=seed, now=now)


@contextmanager
def _faces(emulator: Emulator, folder: Path, port: int, http_port: int) -> Iterator[None]:
    try:
        from tpuctl.emulator._grpc import serve_grpc
        from tpuctl.emulator._rest import serve_rest
        from tpuctl.emulator.storage.face import StorageFace
    except ImportError as error:
        raise MissingExtraError("The emulator", extra="gcp", module=str(error.name)) from error
    server, bound = serve_grpc(emulator.answer, emulator.headers, port=port)
    if not bound:
        raise _taken(port)
    try:
        rest = serve_rest(FrontDesk(emulator), StorageFace(emulator, folder), port=http_port)
    except OSError as error:
        server.stop(grace=None).wait()
        raise _taken(http_port) from error
    emulator.endpoint = f"127.0.0.1:{bound}"
    emulator.http = f"http://127.0.0.1:{rest.server_address[1]}"
    try:
        yield
    finally:
        rest.shutdown()
        rest.server_close()
        server.stop(grace=None).wait()


def _taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"Could not listen on 127.0.0.1:{port}: the port is taken.",
        hint="Choose another one, or 0 for any that is free.",
    )
