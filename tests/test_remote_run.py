"""`tpuctl run` against real SSH servers."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("asyncssh")

from tests.waiting import wait_until
from tests.workers import Heard, Slice, alive, new_key, running_slice
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.remote.hosts import parse_hosts, pick_workers, ranges
from tpuctl.remote.run import plan_command, run_command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    """Four workers that nobody harms."""
    with running_slice(tmp_path_factory.mktemp("slice"), 4) as workers:
        yield workers


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    """Three workers to be harmed."""
    with running_slice(tmp_path, 3) as workers:
        yield workers


def python(code: str) -> tuple[str, ...]:
    return ("python3", "-c", code)


def run(workers: Slice, *argv: str, sink: Callable[[int, bytes], None] | None = None):
    return run_command(workers.hosts, plan_command(argv), workers.access, sink=sink or Heard())


def test_every_worker_runs_it_and_says_who_it_is(shared: Slice) -> None:
    heard = Heard()
    result = run(shared, "printenv", "TPU_WORKER_ID", sink=heard)
    assert result.exit_code == 0
    assert sorted(heard.out.splitlines()) == [b"[%d] %d" % (n, n) for n in range(4)]


ANYTHING = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(ANYTHING, max_size=6))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arguments_arrive_exactly_as_given(shared: Slice, words: list[str]) -> None:
    heard = Heard()
    one = pick_workers(shared.hosts, "0")
    show = "import sys, json; print(json.dumps(sys.argv[1:]))"
    command = plan_command([*python(show), *words])
    assert run_command(one, command, shared.access, sink=heard).exit_code == 0
    assert json.loads(heard.out) == words


@pytest.mark.parametrize(
    "word", ["", " ", "'", '"', "$HOME", "`id`", "-x", "--", "a\nb", "*", "ü€", "\udcff", "\\"]
)
def test_hostile_words_and_values_meet_no_shell(shared: Slice, word: str) -> None:
    heard = Heard()
    one = pick_workers(shared.hosts, "0")
    show = "import sys, os; os.write(1, os.fsencode(sys.argv[1]) + b'|' + os.environb[b'V'])"
    command = plan_command([*python(show), word], env=[f"V={word}"])
    run_command(one, command, shared.access, sink=heard)
    assert heard.out == os.fsencode(word) + b"|" + os.fsencode(word)


def test_one_workers_bytes_pass_unchanged(shared: Slice) -> None:
    heard = Heard()
    one = pick_workers(shared.hosts, "2")
    code = "import os; os.write(1, bytes(range(256)) * 999); os.write(2, b'\\r\\xff')"
    run_command(one, plan_command(python(code)), shared.access, sink=heard)
    assert heard.out == bytes(range(256)) * 999
    assert heard.err == b"\r\xff"


def test_the_exit_code_is_that_of_the_first_failing_worker_by_number(shared: Slice) -> None:
    result = run(shared, *python("import os; exit(int(os.environ['TPU_WORKER_ID']) * 7)"))
    assert result.exit_code == 7
    assert [worker.exit_code for worker in result.workers] == [0, 7, 14, 21]
    assert result.status == "partial"
    (failure,) = result.failures
    assert "ended with exit code 7 on worker 1" in str(failure)
    assert "It also failed on workers 2-3, in a different way." in str(failure)


def test_stdin_is_closed(shared: Slice) -> None:
    heard = Heard()
    run(shared, *python("import sys; print(repr(sys.stdin.read()))"), sink=heard)
    assert b"all 4 workers: ''" in heard.out or heard.out.count(b"''") >= 1


def test_a_command_that_is_not_there_exits_127(shared: Slice) -> None:
    result = run(shared, "no-such-command")
    assert result.exit_code == 127
    assert "could not start 'no-such-command'" in str(result.failures[0])
    assert "The same on workers 1-3." in str(result.failures[0])
    (as_one,) = run(shared, "echo hi").failures
    assert as_one.hint == "Give its words one by one, or to a shell: sh -c 'CMD'"


def test_a_folder_that_is_not_there_is_named(shared: Slice) -> None:
    command = plan_command(["true"], folder="nowhere")
    result = run_command(shared.hosts, command, shared.access, sink=Heard())
    assert result.failures[0].code == "not_found"
    assert "nowhere" in str(result.failures[0])


def test_a_command_killed_by_a_signal_says_so(shared: Slice) -> None:
    result = run(shared, *python("import os; os.kill(os.getpid(), 9)"))
    assert result.exit_code == 137
    assert result.workers[0].signal == "SIGKILL"
    assert result.failures[0].code == "command_killed"


def test_what_a_command_leaves_behind_ends_with_it(shared: Slice) -> None:
    marker = f"left-{os.getpid()}"
    result = run(shared, "sh", "-c", f"sh -c 'sleep 600; : {marker}' {marker} & echo done")
    assert result.exit_code == 0
    assert "left processes behind" in result.warnings[0]
    assert alive(marker) == []


def test_output_that_is_still_in_the_pipe_is_not_lost(shared: Slice) -> None:
    heard = Heard()
    one = pick_workers(shared.hosts, "0")
    code = "import os; os.write(1, b'x' * 60000)"
    run_command(one, plan_command(python(code)), shared.access, sink=heard)
    assert len(heard.out) == 60000


def test_a_worker_that_refuses_keeps_the_others_from_starting(own: Slice) -> None:
    own.refuse(1)
    result = run(own, "touch", "started")
    assert result.exit_code == 3
    assert [failure.code for failure in result.failures] == ["worker_unreachable", "not_started"]
    assert "worker 1" in str(result.failures[0])
    assert result.failures[1].hint == "Run it on these workers only: --worker 0,2"
    assert not (own.folder(0) / "started").exists()


def test_a_worker_that_accepts_and_says_nothing_is_given_up(own: Slice) -> None:
    with socket.create_server(("127.0.3.9", 0)) as silent:
        hosts = parse_hosts(f"{own.option},me@127.0.3.9:{silent.getsockname()[1]}")
        timeouts = replace(own.access.timeouts, connect_s=0.3)
        access = replace(own.access, timeouts=timeouts)
        result = run_command(hosts[3:], plan_command(["true"]), access, sink=Heard())
    assert result.exit_code == 3
    assert "did not answer within 0.3 s" in str(result.failures[0])


def test_a_name_that_nobody_knows_is_said_to_be_one(own: Slice) -> None:
    hosts = parse_hosts("me@no-such-machine.invalid")
    result = run_command(hosts, plan_command(["true"]), own.access, sink=Heard())
    assert "unknown host name" in str(result.failures[0])


def test_a_key_that_is_not_accepted_is_an_error_of_its_own(own: Slice, tmp_path: Path) -> None:
    new_key(tmp_path / "x")
    access = replace(own.access, keys=(tmp_path / "x",))
    result = run_command(own.hosts, plan_command(["true"]), access, sink=Heard())
    assert result.failures[0].code == "worker_auth"
    assert "does not accept our only key (user me)" in str(result.failures[0])
    result = run_command(own.hosts, plan_command(["true"]), replace(access, keys=()), sink=Heard())
    assert "needs a key, and none was found here (user me)" in str(result.failures[0])


def test_a_key_with_a_passphrase_is_used_through_the_agent(
    own: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("ssh-agent"):
        pytest.skip("there is no ssh-agent (apt-get install openssh-client)")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(own.root / "agent"))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(own.root / "agent")]) as agent:
        try:
            # Its socket has a name a moment before it listens.
            wait_until(
                lambda: subprocess.run(["ssh-add", "-l"], capture_output=True).returncode < 2
            )
            subprocess.run(["ssh-add", "-q", str(own.key)], check=True)
            lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(own.key)]
            subprocess.run(lock, check=True, capture_output=True)
            tpus = tuple(replace(host, is_own=False) for host in own.hosts)
            for hosts in (own.hosts, tpus):
                done = run_command(hosts, plan_command(["true"]), own.access, sink=Heard())
                assert done.exit_code == 0
        finally:
            agent.kill()
    refused = run_command(tpus, plan_command(["true"]), own.access, sink=Heard())
    assert refused.failures[0].code == "worker_auth"
    assert (refused.failures[0].hint or "").endswith(f": ssh-add {own.key}")


def test_a_chosen_file_that_is_no_key_is_named(own: Slice) -> None:
    (own.root / "nonsense").write_text("nonsense")
    (own.root / "nonsense").chmod(0o600)
    access = replace(own.access, keys=(own.root / "nonsense",))
    with pytest.raises(InvalidInputError, match="is not a valid private key"):
        run_command(own.hosts, plan_command(["true"]), access, sink=Heard())
    access = replace(own.access, keys=(own.root / "nowhere",))
    with pytest.raises(InvalidInputError, match=r"key: No such file or directory\.$"):
        run_command(own.hosts, plan_command(["true"]), access, sink=Heard())


def test_another_host_key_is_refused_and_the_hint_forgets_the_old_one(own: Slice) -> None:
    assert run(own, "true").exit_code == 0
    own.refuse(2)
    own.come_back(2, host_key=own.root / "another")
    result = run(own, "touch", "started")
    assert result.failures[0].code == "host_key_changed"
    assert not (own.folder(0) / "started").exists()
    hint = result.failures[0].hint or ""
    subprocess.run(hint.partition(": ")[2], shell=True, check=True, capture_output=True)
    assert run(own, "true").exit_code == 0


def test_a_host_key_that_the_users_own_file_contradicts_is_refused(own: Slice) -> None:
    new_key(own.root / "another")
    other = (own.root / "another.pub").read_text().strip()
    ssh = Path.home() / ".ssh"
    ssh.mkdir()
    worker = own.running[0]
    (ssh / "known_hosts").write_text(f"[{worker.addresses[0]}]:{worker.port} {other}\n")
    result = run_command(own.hosts[:1], plan_command(["true"]), own.access, sink=Heard())
    assert result.failures[0].code == "host_key_changed"


def dropping(workers: Slice, index: int, heard: Heard) -> Callable[[int, bytes], None]:
    """A sink that breaks a worker's connection as soon as anybody has said something."""

    def sink(stream: int, data: bytes) -> None:
        heard(stream, data)
        if b"half" in heard.out:
            workers.drop(index)

    return sink


def test_a_connection_that_breaks_in_mid_line_leaves_the_half_line_to_be_seen(own: Slice) -> None:
    heard, marker = Heard(), f"half-{os.getpid()}"
    code = "import time; print('whole'); print('half', end='', flush=True); time.sleep(600)"
    command = plan_command([*python(code), marker])
    result = run_command(own.hosts[:1], command, own.access, sink=dropping(own, 0, heard))
    assert heard.out == b"whole\nhalf"
    assert result.workers[0].stdout == "whole\nhalf"
    assert (result.exit_code, result.failures[0].code) == (1, "worker_lost")
    assert "worker 0" in str(result.failures[0])
    wait_until(lambda: alive(marker) == [])


def test_the_other_workers_finish_when_one_connection_breaks(own: Slice) -> None:
    code = (
        "import os, time; mine = os.environ['TPU_WORKER_ID']; print('half', mine, flush=True);"
        " time.sleep(600 if mine == '1' else 0)"
    )
    result = run(own, *python(code), sink=dropping(own, 1, Heard()))
    assert [worker.exit_code for worker in result.workers] == [0, None, 0]
    assert [failure.code for failure in result.failures] == ["worker_lost"]


def test_ctrl_c_ends_every_remote_process(own: Slice) -> None:
    marker = f"ctrl-c-{os.getpid()}"
    argv = [sys.executable, "-m", "tpuctl", "run", "--host", own.option, "--key", str(own.key)]
    script = f"sleep 600 & echo up; sh -c 'sleep 600; :' {marker}"
    child = subprocess.Popen(
        [*argv, "--", "sh", "-c", script, marker], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout
    assert child.stdout.readline()
    wait_until(lambda: len(alive(marker)) >= 3)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 130
    assert alive(marker) == []
    warning, said = errors.decode().strip().split("\n")
    assert warning.startswith("Warning: First connection")
    assert said == "Interrupted."


def test_a_reader_that_goes_away_ends_the_remote_command(own: Slice) -> None:
    marker = f"pipe-{os.getpid()}"
    argv = [sys.executable, "-m", "tpuctl", "run", "--host", own.option, "--key", str(own.key)]
    child = subprocess.Popen(
        [*argv, "--", "sh", "-c", f"while echo {marker}; do :; done", marker],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(120) == 1
    assert child.stderr
    # The first connection to each worker is announced; nothing else is said.
    assert child.stderr.read().count(b"\n") == 1
    child.stderr.close()
    assert alive(marker) == []


def test_noise_of_a_shells_start_up_files_does_no_harm(own: Slice) -> None:
    heard, noise = Heard(), own.folder(0) / "noise"
    noise.write_text("echo welcome; printf '\\0more'; echo to >&2\n")
    own.refuse(0)
    own.come_back(0, env={"BASH_ENV": str(noise)})
    result = run_command(own.hosts[:1], plan_command(["echo", "hi"]), own.access, sink=heard)
    assert (result.exit_code, heard.out, heard.err) == (0, b"hi\n", b"")


def test_a_worker_without_python_says_what_to_install(own: Slice, tmp_path: Path) -> None:
    own.refuse(0)
    own.come_back(0, env={"PATH": str(tmp_path)})
    result = run_command(own.hosts[:1], plan_command(["true"]), own.access, sink=Heard())
    assert "python3" in str(result.failures[0])
    assert "Install Python" in (result.failures[0].hint or "")


@pytest.mark.parametrize(
    "text", ["", ",", "a b", "me@", "-oProxyCommand=x", "me@-x", "me@ip:0", "me@ip:70000", "@x"]
)
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)


def test_machines_are_numbered_in_the_order_given() -> None:
    hosts = parse_hosts("me@10.0.0.5,you@box:2222,me@[fd00::5]:22")
    assert [(host.index, host.user, host.address, host.port) for host in hosts] == [
        (0, "me", "10.0.0.5", 22),
        (1, "you", "box", 2222),
        (2, "me", "fd00::5", 22),
    ]


@pytest.mark.parametrize(
    ("wanted", "found"), [("all", [0, 1, 2, 3]), ("0", [0]), ("0,2-3", [0, 2, 3]), ("1-1", [1])]
)
def test_workers_are_picked_by_number(wanted: str, found: list[int]) -> None:
    hosts = parse_hosts("a,b,c,d")
    assert [host.index for host in pick_workers(hosts, wanted)] == found


@pytest.mark.parametrize("wanted", ["4", "2-1", "x", "", "-1", "0,,1", "0-9"])
def test_workers_that_are_not_there_are_refused(wanted: str) -> None:
    with pytest.raises(UsageError):
        pick_workers(parse_hosts("a,b,c,d"), wanted)


def test_of_one_worker_no_range_is_named() -> None:
    with pytest.raises(UsageError, match="--worker 3 is out of range: the only worker is 0"):
        pick_workers(parse_hosts("a"), "3")


def test_ranges_are_written_short() -> None:
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7"


@pytest.mark.parametrize("env", [["A"], ["=x"], ["1A=x"], ["A-B=x"]])
def test_what_is_no_variable_is_refused(env: list[str]) -> None:
    with pytest.raises(UsageError):
        plan_command(["true"], env=env)


def test_json_holds_what_each_worker_said(tpuctl, own: Slice) -> None:
    words = ("run", "--host", own.option, "--key", str(own.key), "--json", "--", "echo", "hi")
    result = tpuctl(*words)
    assert [worker["stdout"] for worker in result.data["workers"]] == ["hi\n"] * 3
    assert result.document["status"] == "ok"


def test_no_command_is_wrong_usage(tpuctl) -> None:
    assert tpuctl("run", "--host", "me@127.0.0.1").exit_code == 2
    assert tpuctl("run").exit_code == 2
