"""Names of TPUs: found only where every zone has answered, and never guessed among namesakes."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.cloud_world import CloudWorld, Worlds
from tests.conftest import Tpuctl
from tests.test_cli_options import commands
from tests.tpus import FAR, HERE, ask, journal_in, nodes_of, queue, remember, sent
from tpuctl.cloud.create import create
from tpuctl.cloud.delete import delete, plan_delete
from tpuctl.cloud.gc import delete_orphans, find_orphans
from tpuctl.cloud.journal import DELETED, JournalEntry
from tpuctl.cloud.models import LABEL_CREATE_ID, LABEL_TTL_S, Node
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.cloud.requests import cancel, is_of, reconcile
from tpuctl.errors import UnavailableError

# Every command that takes the name of a TPU.
LOOKING: dict[str, tuple[str, ...]] = {
    "show": ("t1",),
    "wait": ("t1", "--for", "gone"),
    "delete": ("t1", "--yes"),
    "watch": ("t1", "--accelerator-type", "v5e-8", "--yes", "--", "true"),
    "migrate": ("t1",),
    "run": ("t1", "--", "true"),
    "cp": ("code", "t1:code"),
    "ssh": ("t1", "--dry-run"),
    "logs": ("t1",),
    "stop": ("t1",),
    "free": ("t1", "--yes"),
    "top": ("t1", "--once"),
    "launch": ("train.py", "--on", "t1"),
    "data serve": ("t1",),
}
NOT_BY_NAME = {"list", "gc", "create", "data presize", "quota"}
CHANGES = {"delete_node", "delete_queued_resource", "create_node", "update_node"}


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "train.py").write_text("print('hello')")


def test_no_command_that_takes_a_zone_was_forgotten() -> None:
    taking = {name for name, command in commands() if "--zone" in flags_of(command)}
    assert taking == LOOKING.keys() | NOT_BY_NAME


def flags_of(command: Any) -> set[str]:
    return {flag for param in command.params for flag in param.opts}


@pytest.fixture(params=["list_nodes", "list_queued_resources"])
def silent(request: pytest.FixtureRequest, world: Worlds) -> CloudWorld:
    """TPU t1 in one zone, while another zone, which may have one too, does not answer."""
    away = {"on": request.param, "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    ask(here, "t1")
    here.clock.sleep(300)
    return here


@pytest.mark.parametrize("name", LOOKING)
def test_no_command_guesses_while_a_zone_is_silent(
    silent: CloudWorld, tpuctl: Tpuctl, name: str
) -> None:
    before = set(silent.requests) & CHANGES
    result = tpuctl(*name.split(), "--json", *LOOKING[name])
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (3, "unavailable"), error
    assert FAR in error["message"]
    assert f"--zone {HERE}" in error["hint"]
    assert set(silent.requests) & CHANGES == before
    assert nodes_of(silent) == {"t1": "READY"}


def test_with_the_zone_named_a_silent_one_does_not_matter(
    silent: CloudWorld, tpuctl: Tpuctl
) -> None:
    assert tpuctl("show", "t1", "--zone", HERE).exit_code == 0
    assert tpuctl("delete", "t1", "--zone", HERE, "--dry-run").exit_code == 0


def in_two_zones(here: CloudWorld) -> None:
    ask(here, "t1")
    ask(here, "t1", zone=FAR)


def in_a_queue_elsewhere(here: CloudWorld) -> None:
    ask(here, "t1")
    queue(here, "t1", zone=FAR)


def in_two_queues(here: CloudWorld) -> None:
    queue(here, "t1")
    queue(here, "t1", zone=FAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize("make", [in_two_zones, in_a_queue_elsewhere, in_two_queues])
def test_no_command_chooses_among_namesakes(
    world: Worlds, tpuctl: Tpuctl, name: str, make: Callable[[CloudWorld], None]
) -> None:
    here = world()
    make(here)
    before = sorted(method for method, _, _ in here.emulator.requests if method in CHANGES)
    result = tpuctl(*name.split(), "--json", *LOOKING[name])
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (2, "usage"), error
    assert f"2 TPUs are named t1: in {FAR}, {HERE}" in error["message"]
    assert ("queued" in error["message"]) == (make is not in_two_zones)
    assert "--zone" in error["hint"]
    assert before == sorted(m for m, _, _ in here.emulator.requests if m in CHANGES)


def test_a_create_whose_name_is_taken_in_a_zone_that_falls_silent_is_unavailable(
    world: Worlds, tmp_path: Path
) -> None:
    away = {"on": "get_node", "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    ask(here, "t1")
    plan = plan_create(CreateOptions("t1", "v5e-8", zones=(HERE,)))
    ended = create(here.api, plan, journal=journal_in(tmp_path))
    assert isinstance(ended.failures[0], UnavailableError)
    assert (ended.exit_code, sent(here, "delete_node")) == (3, [])


@pytest.mark.parametrize(("zone", "code"), [(None, 3), (HERE, 0)])
def test_delete_all_with_a_silent_zone_says_so_by_its_code(
    silent: CloudWorld, tmp_path: Path, zone: str | None, code: int
) -> None:
    journal = journal_in(tmp_path)
    plan = plan_delete(silent.api, None, zone=zone, journal=journal)
    assert delete(silent.api, plan, journal=journal).exit_code == code
    assert nodes_of(silent) == {}


@pytest.mark.parametrize("words", [("t1", "--yes"), ("--all", "--yes")])
def test_a_repository_does_not_choose_what_is_deleted(
    world: Worlds, tpuctl: Tpuctl, tmp_path: Path, words: tuple[str, ...]
) -> None:
    here = world()
    in_two_zones(here)
    (tmp_path / "tpuctl.toml").write_text(f'zone = "{FAR}"')
    assert FAR in tpuctl("show", "t1").stdout, "the file's zone is used where nothing is lost"
    assert tpuctl("delete", *words).exit_code == 2
    assert sent(here, "delete_node") == []


def test_the_question_names_the_project(world: Worlds, tpuctl: Tpuctl) -> None:
    here = world()
    ask(here, "t1")
    ask(here, "t2")
    for words in (("t1",), ("t1", "t2"), ("--all",)):
        assert f"In project {here.api.project}: " in " ".join(
            tpuctl("delete", *words).stderr.split()
        )


class Exchange:
    """The service's clock, during whose next sleep the TPU is exchanged for another."""

    def __init__(self, here: CloudWorld, act: Callable[[], object]) -> None:
        self._clock, self._act, self.todo = here.api.clock, act, True

    def now(self) -> datetime:
        return self._clock.now()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
        if self.todo:
            self.todo = False
            self._act()


def copy_of(here: CloudWorld, name: str = "t1") -> dict[str, str]:
    """The labels of a TPU, as somebody copies them to another."""
    return dict(here.api.get_node(name, zone=HERE).labels)


def make_copy(here: CloudWorld, labels: dict[str, str], name: str = "t1", zone: str = HERE) -> Node:
    """Another live TPU with those labels, the create id included."""
    ask(here, name, zone=zone)
    for key, node in here.emulator.advance().nodes.items():
        if (key.name, key.zone) == (name, zone):
            node.spec.document["labels"] = dict(labels)
    here.clock.sleep(300)
    return here.api.get_node(name, zone=zone)


def exchange(here: CloudWorld, kind: str) -> None:
    """Delete t1 and make another one with the same name, zone and labels."""
    labels = copy_of(here)
    if kind == "queued":
        here.api.delete_queued_resource("t1", zone=HERE, force=True)
        here.clock.sleep(300)
        queue(here, "t1", labels={k: v for k, v in labels.items() if k != LABEL_CREATE_ID})
        here.clock.sleep(300)
        return
    here.api.delete_node("t1", zone=HERE)
    here.clock.sleep(300)
    make_copy(here, labels)


def by_delete(here: CloudWorld, folder: Path, entry: JournalEntry) -> Iterator[None]:
    plan = plan_delete(here.api, ["t1"], zone=HERE, journal=journal_in(folder))
    yield
    delete(here.api, plan, journal=journal_in(folder))


def by_gc(here: CloudWorld, folder: Path, entry: JournalEntry) -> Iterator[None]:
    journal = journal_in(folder)
    found = find_orphans(here.api, journal=journal)
    assert [orphan.name for orphan in found.found] == ["t1"]
    yield
    delete_orphans(here.api, found, journal=journal)


def by_create(here: CloudWorld, folder: Path, entry: JournalEntry) -> Iterator[None]:
    journal = journal_in(folder)
    reconcile(here.api, journal)
    yield
    cancel(here.api, journal, [journal.find(entry.create_id) or entry], outcome="cancelled")


@pytest.mark.parametrize("path", [by_delete, by_gc, by_create])
@pytest.mark.parametrize("kind", ["node", "queued"])
@pytest.mark.parametrize("is_exchanged", [True, False])
def test_the_identity_is_read_again_right_before_each_deletion(
    world: Worlds, tmp_path: Path, path: Any, kind: Any, is_exchanged: bool
) -> None:
    """What was planned for is gone, and a copy with the same labels has its name."""
    here = world()
    request = (ask if kind == "node" else queue)(here, "t1", labels={LABEL_TTL_S: "60"})
    here.clock.sleep(600)
    entry = remember(journal_in(tmp_path), here, request, phase="abandoned", kind=kind)
    if path is by_create:
        resource = here.api.get_node("t1", zone=HERE)
        if kind == "queued":
            queued = here.api.get_queued_resource("t1", zone=HERE)
            journal_in(tmp_path).update(entry, created=queued.created)
        else:
            known = {"node_id": resource.id, "created": resource.created}
            journal_in(tmp_path).update(entry, **known)
    steps = path(here, tmp_path, entry)
    next(steps)
    if is_exchanged:
        exchange(here, kind)
    before = len(sent(here, "delete_node")) + len(sent(here, "delete_queued_resource"))
    assert next(steps, None) is None
    after = len(sent(here, "delete_node")) + len(sent(here, "delete_queued_resource"))
    assert (after > before) != is_exchanged
    assert nodes_of(here) == ({"t1": "READY"} if is_exchanged else {})


@pytest.mark.parametrize(
    ("name", "zone"), [("t2", HERE), ("t1", FAR), ("t1", HERE)], ids=["name", "zone", "id"]
)
@pytest.mark.parametrize("labels", [{}, {LABEL_TTL_S: "60"}], ids=["create", "ttl"])
def test_gc_leaves_a_live_tpu_with_copied_labels_alone(
    world: Worlds, tpuctl: Tpuctl, name: str, zone: str, labels: dict[str, str]
) -> None:
    """`gcloud describe` and `create` copy our labels; the original was ours, and is gone or not."""
    here = world({"time_scale": 100, "delete_s": 1})
    from tpuctl.cloud.journal import Journal

    journal, phase = Journal(), "ready" if labels else "abandoned"
    request = ask(here, "t1", labels=labels)
    here.clock.sleep(300)
    original = here.api.get_node("t1", zone=HERE)
    known = {"node_id": original.id, "created": original.created, "phase": phase}
    remember(journal, here, request, **known)
    copied = copy_of(here)
    if (name, zone) == ("t1", HERE):
        here.api.delete_node("t1", zone=HERE)
        here.clock.sleep(60)
    node = make_copy(here, copied, name, zone)
    here.clock.sleep(600)
    found = find_orphans(here.api, journal=journal).found
    assert (name, zone) not in {(orphan.name, orphan.zone) for orphan in found}
    delete_orphans(here.api, find_orphans(here.api, journal=journal), journal=journal)
    assert here.api.get_node(name, zone=zone).id == node.id
    assert len(found) == ((name, zone) != ("t1", HERE)), "the original itself is found"


LABELS = {"as it was": "60", "at once": "0", "padded": "0060"}


@pytest.mark.parametrize("name", LABELS)
def test_a_label_that_this_machine_did_not_set_deletes_nothing(
    world: Worlds, tpuctl: Tpuctl, name: str
) -> None:
    """Another machine's, copied from a TPU that is gone, or written by somebody who may."""
    here = world({"time_scale": 500, "delete_s": 1}, real_time=True)
    ask(here, "t1", labels={LABEL_TTL_S: LABELS[name]})
    here.clock.sleep(600)
    before = here.api.get_node("t1", zone=HERE)
    shown = tpuctl("gc", "--yes", "--json")
    assert here.api.get_node("t1", zone=HERE) == before
    assert (shown.exit_code, shown.data["found"]) == (0, [])
    (warning,) = shown.document["warnings"]
    assert f"tpuctl delete t1 --zone {HERE}" in warning
    assert tpuctl("delete", "t1", "--zone", HERE, "--yes").exit_code == 0
    assert nodes_of(here) == {}


def test_deleting_a_copy_does_not_end_the_journal_of_the_original(
    world: Worlds, tmp_path: Path
) -> None:
    here, journal = world(), journal_in(tmp_path)
    entry = remember(journal, here, ask(here, "t1"), phase="ready")
    here.clock.sleep(300)
    make_copy(here, copy_of(here), "t2")
    delete(here.api, plan_delete(here.api, ["t2"], journal=journal), journal=journal)
    assert journal.find(entry.create_id) == entry
    assert find_orphans(here.api, journal=journal).found == ()


def test_what_was_seen_to_be_gone_does_not_come_back(world: Worlds, tmp_path: Path) -> None:
    """Its entry knows no id, but was closed by a deletion: what has its labels now is a copy."""
    here, journal = world(), journal_in(tmp_path)
    entry = remember(journal, here, ask(here, "t1"), phase="closed", outcome=DELETED)
    here.clock.sleep(300)
    assert find_orphans(here.api, journal=journal).found == ()
    journal.update(entry, outcome="gone")
    assert len(find_orphans(here.api, journal=journal).found) == 1


def test_is_of_compares_all_that_is_known(world: Worlds, tmp_path: Path) -> None:
    here, journal = world(), journal_in(tmp_path)
    entry = remember(journal, here, ask(here, "t1"))
    node = here.api.get_node("t1", zone=HERE)
    known = {"node_id": node.id, "created": node.created}
    entry = journal.update(entry, **known)
    read = journal.find(entry.create_id)
    assert read is not None
    assert is_of(node, read)
    later = node.created + timedelta(microseconds=1)
    for wrong in ({"name": "t2"}, {"zone": FAR}, {"node_id": "9"}, {"created": later}):
        assert not is_of(node, journal.update(read, **wrong))
