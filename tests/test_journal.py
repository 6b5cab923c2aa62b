"""The journal survives crashes, full disks, other processes and files that are none of its own."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tpuctl.cloud.journal import Journal, JournalEntry, new_create_id
from tpuctl.errors import WriteError
from tpuctl.storage.local import locked

NOW = datetime(2026, 11, 20, 12, 0, 0, 5, tzinfo=timezone.utc)


@dataclass
class Place:
    project: str = "p"
    endpoint: str = "e"


def entry(**fields: object) -> JournalEntry:
    known = {"name": "t1", "zone": "z", "kind": "node", "project": "p", "endpoint": "e"}
    ids = {"create_id": new_create_id(), "accelerator_type": "v5litepod-8"}
    return JournalEntry(**{**known, **ids, **fields})  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "creates")


def test_an_entry_comes_back_as_it_was_written(journal: Journal) -> None:
    written = entry(spot=True, usd_per_hour=9.6, created=NOW, phase="ready", operation="o")
    journal.intend(written)
    assert journal.find(written.create_id) == written
    assert journal.entries(Place()) == (written,)  # type: ignore[arg-type]


FIRST_FORMAT = """{
 "schema": "tpuctl-create/1",
 "create_id": "0b7c2f2e-5a5e-4d0e-9f43-3f2d6a1f0c11",
 "name": "t1",
 "zone": "us-central1-a",
 "kind": "queued",
 "project": "p",
 "endpoint": "e",
 "accelerator_type": "v5litepod-8",
 "spot": true,
 "usd_per_hour": 9.6,
 "phase": "closed",
 "session": "s",
 "race": "r",
 "operation": "projects/p/locations/z/operations/o",
 "node_id": "7",
 "created": "2026-11-20T12:00:00.000005+00:00",
 "missing_since": "2026-11-20T12:00:00.000005+00:00",
 "closed": "2026-11-20T12:00:00.000005+00:00",
 "outcome": "deleted"
}"""


def test_the_file_has_the_format_that_earlier_versions_read_and_wrote(journal: Journal) -> None:
    written = JournalEntry(
        "0b7c2f2e-5a5e-4d0e-9f43-3f2d6a1f0c11",
        *("t1", "us-central1-a", "queued", "p", "e", "v5litepod-8"),
        spot=True,
        usd_per_hour=9.6,
        phase="closed",
        session="s",
        race="r",
        operation="projects/p/locations/z/operations/o",
        node_id="7",
        created=NOW,
        missing_since=NOW,
        closed=NOW,
        outcome="deleted",
    )
    journal.intend(written)
    path = journal.folder / f"{written.create_id}.json"
    assert path.read_text() == FIRST_FORMAT
    assert journal.find(written.create_id) == written


def test_entries_of_another_project_or_endpoint_are_not_seen(journal: Journal) -> None:
    for fields in ({"project": "other"}, {"endpoint": "other"}):
        journal.intend(entry(**fields))
    assert journal.entries(Place()) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"schema": "tpuctl-create/1"}',
        b'{"schema": "other/1"}',
    ],
)
def test_a_file_that_is_no_entry_is_left_alone(journal: Journal, content: bytes) -> None:
    journal.intend(ours := entry())
    (journal.folder / "x.json").write_bytes(content)
    assert journal.entries(Place()) == (ours,)  # type: ignore[arg-type]
    assert (journal.folder / "x.json").read_bytes() == content


def test_a_key_of_a_later_version_does_no_harm(journal: Journal) -> None:
    journal.intend(ours := entry())
    path = journal.folder / f"{ours.create_id}.json"
    path.write_text(path.read_text().replace('"zone"', '"news": 1, "zone"'))
    assert journal.find(ours.create_id) == ours


def test_without_a_place_to_write_nothing_is_intended_and_nothing_known_is_lost(
    journal: Journal,
) -> None:
    journal.intend(ours := entry())
    journal.folder.rename(journal.folder.with_name("kept"))
    journal.folder.write_text("in the way")
    with pytest.raises(WriteError):
        journal.intend(entry())
    assert journal.update(ours, phase="ready").phase == "ready"
    journal.folder.unlink()
    journal.folder.with_name("kept").rename(journal.folder)
    assert journal.find(ours.create_id) == ours


def test_closing_is_for_ids_that_are_ours(journal: Journal) -> None:
    journal.intend(ours := entry(phase="ready"))
    for create_id in (None, "unknown", "../../etc/passwd", ours.create_id):
        journal.close(create_id, "deleted", at=NOW)
    closed = replace(ours, phase="closed", outcome="deleted", closed=NOW)
    assert journal.find(ours.create_id) == closed
    assert len(list(journal.folder.iterdir())) == 1


def test_a_session_is_alive_while_it_is_open(journal: Journal) -> None:
    with journal.session() as name:
        assert journal.is_alive(name)
    assert not journal.is_alive(name)
    assert not journal.is_alive("")


HOLD = """
import sys, pathlib
from tpuctl.cloud.journal import Journal
with Journal(pathlib.Path(sys.argv[1])).session() as name:
    print(name, flush=True)
    sys.stdin.read()
"""


def test_a_session_ends_with_kill_9(journal: Journal) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(journal.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    name = process.stdout.readline().strip()
    assert journal.is_alive(name)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert list((journal.folder / "sessions").iterdir())
    assert not journal.is_alive(name)
    assert not list((journal.folder / "sessions").iterdir())


def test_what_killed_commands_have_left_is_removed_and_what_is_in_use_stays(
    journal: Journal,
) -> None:
    killed, writing = journal.folder / ".x.json.1.part", journal.folder / ".y.json.2.part"
    stale = journal.folder / "sessions" / f"{new_create_id()}.lock"
    with journal.session() as session:
        for path in (killed, writing, stale):
            path.touch()
        with locked(writing, wait_s=0, busy=""):
            journal.clean_up()
            assert not killed.exists()
            assert writing.exists()
        assert not stale.exists()
        assert journal.is_alive(session)
