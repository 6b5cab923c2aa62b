"""Jobs that outlive their connection: `run --detach`, `logs`, `stop`."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")

from tests.waiting import wait_until
from tests.workers import Cable, Heard, Slice, alive, running_slice
from tpuctl.errors import UsageError
from tpuctl.remote.agent import joblog
from tpuctl.remote.agent import jobs as agent_jobs
from tpuctl.remote.agent.wire import Refusal
from tpuctl.remote.hosts import parse_hosts
from tpuctl.remote.jobs import list_jobs, start_job, stop_job
from tpuctl.remote.logs import Logs, read_logs
from tpuctl.remote.run import plan_command

pytestmark = pytest.mark.slow


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path, 2) as workers:
        yield workers


def start(workers: Slice, *argv: str, job: str = "j", check: bool = True):
    return start_job(workers.hosts, plan_command(argv), workers.access, job=job, check=check)


def follow(workers: Slice, sink: Callable[[int, bytes], None], job: str | None = None) -> Logs:
    return read_logs(
        workers.hosts, workers.access, sink=sink, note=lambda _: None, job=job, follow=True
    )


def show(workers: Slice, **how: object) -> bytes:
    heard = Heard()
    read_logs(workers.hosts, workers.access, sink=heard, note=lambda _: None, **how)  # type: ignore[arg-type]
    return heard.out


def folder(workers: Slice, index: int = 0, job: str = "j") -> Path:
    return workers.folder(index) / ".tpuctl" / "jobs" / job


def python(code: str) -> tuple[str, ...]:
    return ("python3", "-c", code)


def test_a_job_outlives_its_connection_and_its_exit_code_outlives_it(own: Slice) -> None:
    started = start(own, "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.05; done; exit 7")
    assert started.exit_code == 0
    assert [state.state for state in list_jobs(own.hosts, own.access).jobs[0].workers] == [
        "running",
        "running",
    ]
    for index in (0, 1):
        (own.folder(index) / "go").touch()
    heard = Heard()
    ended = follow(own, heard)
    assert ended.exit_code == 7
    assert heard.out.count(b"begun") in (1, 2)
    assert follow(own, Heard()).exit_code == 7


def test_a_job_gets_its_words_variables_and_folder_exactly(own: Slice) -> None:
    (own.folder(0) / "a b").mkdir()
    word = "q'\"\n$HOME ü"
    code = "import os, sys; print([sys.argv[1], os.environ['V'], os.path.basename(os.getcwd())])"
    command = plan_command([*python(code), word], env=[f"V={word}"], folder="a b")
    one = own.hosts[:1]
    start_job(one, command, own.access, job="j")
    heard = Heard()
    read_logs(one, own.access, sink=heard, note=lambda _: None, follow=True)
    assert heard.out.decode().strip() == repr([word, word, "a b"])


def test_the_environment_is_not_written_down(own: Slice) -> None:
    start_job(own.hosts, plan_command(["true"], env=["TOKEN=secret"]), own.access, job="j")
    follow(own, Heard())
    assert all(b"secret" not in path.read_bytes() for path in folder(own).iterdir())


def test_following_goes_on_where_a_connection_broke(own: Slice) -> None:
    lines = 3000
    code = f"import time\nfor n in range({lines}): print(n); n % 300 or time.sleep(0.1)"
    start(own, *python(code))
    heard, drops = Heard(), [0]

    def sink(stream: int, data: bytes) -> None:
        heard(stream, data)
        if drops[0] < 4:
            drops[0] += 1
            own.drop(0)

    one = own.hosts[:1]
    noted: list[str] = []
    ended = read_logs(one, own.access, sink=sink, note=noted.append, follow=True)
    assert ended.exit_code == 0
    assert [int(line) for line in heard.out.split()] == list(range(lines))
    assert noted
    assert "worker 0" in noted[0]


@pytest.mark.slow
def test_a_worker_that_drops_in_the_middle_of_a_line_says_it_once_and_whole(own: Slice) -> None:
    start(own, "sh", "-c", "printf half; while [ ! -e go ]; do sleep 0.05; done; echo ' a line'")
    heard, dropped = Heard(), threading.Event()

    def note(text: str) -> None:
        dropped.set()
        for index in (0, 1):
            (own.folder(index) / "go").touch()

    def drop() -> None:
        wait_until(lambda: all((folder(own, w) / "log").read_bytes() for w in (0, 1)))
        # A first connection that breaks while it is made is an error, not a drop in mid-line.
        wait_until(lambda: all(own.running[w].sessions for w in (0, 1)))
        while not dropped.wait(0.3):
            own.drop(0)
            own.drop(1)

    wait_until(lambda: not any(own.running[w].sessions for w in (0, 1)))
    thread = threading.Thread(target=drop)
    thread.start()
    ended = read_logs(own.hosts, own.access, sink=heard, note=note, job="j", follow=True)
    thread.join()
    assert ended.exit_code == 0
    lines = sorted(heard.out.decode().splitlines())
    assert lines in (["all 2 workers: half a line"], ["[0] half a line", "[1] half a line"])


def test_a_connection_that_dies_without_a_word_is_noticed_and_replaced(own: Slice) -> None:
    start(own, "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two")
    cable = Cable(own.running[0].addresses[0], own.running[0].port)
    heard = Heard()

    def sink(stream: int, data: bytes) -> None:
        heard(stream, data)
        cable.cut()
        (own.folder(0) / "go").touch()

    hosts = parse_hosts(f"me@127.0.0.1:{cable.port}")
    ended = read_logs(hosts, own.access, sink=sink, note=lambda _: None, follow=True)
    cable.close()
    assert (ended.exit_code, heard.out) == (0, b"one\ntwo\n")


def test_a_worker_that_never_comes_back_is_given_up(own: Slice) -> None:
    start(own, "sh", "-c", "echo up; sleep 600")
    impatient = replace(own.access, timeouts=replace(own.access.timeouts, reconnect_s=0.3))

    def sink(stream: int, data: bytes) -> None:
        own.refuse(0)

    one = own.hosts[:1]
    ended = read_logs(one, impatient, sink=sink, note=lambda _: None, follow=True)
    assert (ended.exit_code, ended.failures[0].code) == (3, "worker_unreachable")


def test_logs_show_the_last_lines_of_the_newest_job(own: Slice) -> None:
    start(own, "true", job="old")
    start(own, *python("for n in range(20000): print(n)"), job="new")
    follow(own, Heard())
    assert sorted(show(own, tail=2).split(b"\n"))[1:] in (
        [b"all 2 workers: 19998", b"all 2 workers: 19999"],
        sorted([b"[0] 19998", b"[0] 19999", b"[1] 19998", b"[1] 19999"]),
    )
    assert show(own, tail=0) == b""
    assert show(own, job="old") == b""


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("count", [0, 1, 3, 20000, 99999])
def test_the_tail_is_that_of_tail(tmp_path: Path, count: int, end: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(b"line %d" % n for n in range(20000)) + end)
    with path.open("rb") as log:
        log.seek(joblog.tail_offset(log.fileno(), count))
        ours = log.read()
    assert ours == subprocess.check_output(["tail", "-n", str(count), path])


def test_stop_ends_the_whole_session_and_kills_what_ignores_it(own: Slice) -> None:
    marker = f"stop-{os.getpid()}"
    code = "import signal as s, time; s.signal(15, s.SIG_IGN); print('up'); time.sleep(600)"
    script = f"sh -c 'sleep 600; :' {marker} & exec python3 -c \"$0\" {marker}"
    start(own, "sh", "-c", script, code)
    wait_until(lambda: all((folder(own, index) / "log").read_bytes() for index in (0, 1)))
    assert len(alive(marker)) >= 4
    stopped = stop_job(own.hosts, own.access, grace_s=0.2)
    assert stopped.exit_code == 0
    assert [worker.state for worker in stopped.workers] == ["stopped", "stopped"]
    assert alive(marker) == []
    again = stop_job(own.hosts, own.access)
    assert [worker.was for worker in again.workers] == ["stopped", "stopped"]


def test_stop_without_a_name_ends_the_job_that_is_running(own: Slice) -> None:
    running = start(own, "sleep", "600")
    start(own, "true", job="later")
    follow(own, Heard(), job="later")
    assert stop_job(own.hosts, own.access).job == running.job


def test_a_process_that_has_got_the_jobs_old_id_is_left_alone(own: Slice) -> None:
    start(own, "true")
    follow(own, Heard())
    (folder(own) / "exit.json").unlink()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        who = json.loads((folder(own) / "pid.json").read_text())
        who["pid"] = [stranger.pid, 1]
        (folder(own) / "pid.json").write_text(json.dumps(who))
        stopped = stop_job(own.hosts[:1], own.access)
        assert stopped.workers[0].was == "lost"
        assert stranger.poll() is None
        stranger.kill()


def test_a_job_that_the_kernel_kills_says_so(own: Slice) -> None:
    start(own, *python("import os; os.kill(os.getpid(), 9)"))
    ended = follow(own, Heard())
    assert (ended.exit_code, ended.failures[0].code) == (137, "command_killed")
    assert "SIGKILL" in str(ended.failures[0])


def test_a_job_whose_machine_was_restarted_is_lost_and_not_waited_for(own: Slice) -> None:
    start(own, "sleep", "600")
    own.refuse(0)
    own.come_back(0)
    ended = read_logs(own.hosts[:1], own.access, sink=Heard(), note=lambda _: None, follow=True)
    assert ended.failures[0].code == "job_lost"


def test_a_job_that_cannot_start_everywhere_runs_nowhere(own: Slice) -> None:
    marker = f"part-{os.getpid()}"
    start_job(own.hosts[1:], plan_command(["true"]), own.access, job="k")
    started = start(own, "sh", "-c", "sleep 600; :", marker, job="k")
    assert started.exit_code == 1
    assert [failure.code for failure in started.failures] == ["already_exists", "not_started"]
    assert alive(marker) == []


def test_a_job_without_such_a_command_fails_at_once_and_leaves_127(own: Slice) -> None:
    assert start(own, "no-such-command").exit_code == 127
    assert follow(own, Heard()).exit_code == 127


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KiB, where the machine lets us mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_loses_no_exit_code_and_is_said_to_be_the_reason(
    tmp_path: Path, small_disk: Path
) -> None:
    with running_slice(tmp_path, 1, homes=small_disk) as workers:
        start(workers, "sh", "-c", "yes > filler; echo lost; exit 5", check=False)
        ended = follow(workers, Heard())
        assert (ended.exit_code, ended.failures[0].code) == (5, "worker_disk_full")
        another = start(workers, "true", job="another", check=False)
        assert another.failures[0].code == "worker_disk_full"
        assert "df -h" in (another.failures[0].hint or "")
        (small_disk / "worker-0" / "filler").unlink()
        assert start(workers, "true", job="another", check=False).exit_code == 0


def test_ctrl_c_leaves_the_job_alone(own: Slice) -> None:
    marker = f"follow-{os.getpid()}"
    start(own, "sh", "-c", "echo up; sleep 600; :", marker)
    argv = [sys.executable, "-m", "tpuctl", "logs", "-f", "--host", own.option]
    child = subprocess.Popen(
        [*argv, "--key", str(own.key)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130
    assert b"The job keeps running" in said
    assert len(alive(marker)) >= 2


def test_the_command_line_starts_lists_follows_and_stops(tpuctl, own: Slice) -> None:
    where = ("--host", own.option, "--key", str(own.key))
    started = tpuctl("run", *where, "--job", "train", "--", "sh", "-c", "echo hi; sleep 600")
    assert "Job train runs on 2 workers." in started.stdout
    again = f"tpuctl logs --host {own.option} --key {own.key} --job train -f"
    assert again in started.stdout
    assert "running" in tpuctl("logs", *where, "--list").stdout
    assert tpuctl("logs", *where, "--list", "--json").data["jobs"][0]["job"] == "train"
    assert "Stopped job train on workers 0-1." in tpuctl("stop", *where).stdout
    assert tpuctl("logs", *where, "-f").exit_code == 143
    assert tpuctl("logs", *where, "--job", "nothing").exit_code == 1
    assert tpuctl("run", *where, "--job", "../x", "--", "true").exit_code == 2


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a b", "a\n", "x" * 65])
def test_what_cannot_be_a_jobs_name_is_refused(own: Slice, name: str) -> None:
    with pytest.raises(UsageError):
        stop_job((), own.access, job=name)
    with pytest.raises(Refusal):
        agent_jobs._folder_of(name)


def test_two_jobs_at_the_same_moment_do_not_meet(own: Slice) -> None:
    ends: list[int] = []

    def begin() -> None:
        ends.append(start(own, "true", job="same").exit_code)

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 in ends
    assert len(list_jobs(own.hosts, own.access).jobs) == 1


def test_a_job_that_is_just_being_started_is_running_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    request = {"job": "new", "argv": ["true"], "folder": None, "log_bytes": 0}
    place = Path(agent_jobs._make_folder(request))
    assert agent_jobs._state(str(place))["state"] == "running"
    written = json.loads((place / "job.json").read_text())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, check=True)  # fmt: skip
    written["starter"][1] = int(ended.stdout)
    (place / "job.json").write_text(json.dumps(written))
    assert agent_jobs._state(str(place))["state"] == "lost"


@pytest.mark.parametrize("part", [".tpuctl", ".tpuctl/jobs"])
@pytest.mark.parametrize("kind", ["writable", "another user's", "link"])
def test_jobs_that_another_user_may_have_planted_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, kind: str
) -> None:
    if kind == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    monkeypatch.setenv("HOME", str(tmp_path))
    planted = tmp_path / ".tpuctl" / "jobs" / "j"
    planted.mkdir(parents=True)
    (planted / "job.json").write_text('{"job": "j", "started_s": 1.0}')
    assert agent_jobs._all_jobs() == ["j"]
    if kind == "writable":
        (tmp_path / part).chmod(0o777)
    elif kind == "link":
        (tmp_path / part).rename(tmp_path / "elsewhere")
        (tmp_path / part).symlink_to(tmp_path / "elsewhere")
    else:
        os.chown(tmp_path / part, 4711, -1)
    request = {"job": "new", "argv": ["true"], "folder": None, "log_bytes": 0}
    for use in (agent_jobs._all_jobs, lambda: agent_jobs._make_folder(request)):
        with pytest.raises(Refusal, match="not a folder that only you can write to"):
            use()
    assert not (planted.parent / "new").exists()
