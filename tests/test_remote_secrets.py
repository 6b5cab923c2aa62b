"""What must not leave this machine unasked, and what nobody else may read on it or on a worker."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("pathspec")

from tests.workers import Heard, Slice, new_key, running_slice
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.hosts import Host, parse_hosts
from tpuctl.remote.jobs import start_job
from tpuctl.remote.keys import key_for_tpus
from tpuctl.remote.local_tree import LocalTree, read_tree
from tpuctl.remote.logs import read_logs
from tpuctl.remote.run import plan_command
from tpuctl.remote.ssh import plan_shell

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n"
SECRETS = {
    ".env": "PASSWORD=x",
    ".env.production": "PASSWORD=x",
    ".ENV": "PASSWORD=x",
    "sub/id_rsa": "x",
    "id_ed25519": "x",
    "prod-key.json": "{}",
    "sub/deep/service-account-1.json": "{}",
    ".netrc": "x",
    ".aws/credentials": "x",
    ".ssh/config": "x",
    "store.p12": "x",
    "deploy": KEY,
    "deploy.pem": "-----BEGIN RSA PRIVATE KEY-----",
    "notes.txt": f"my key:\n{KEY}",
    "deploy.pem.orig": "-----BEGIN EC PRIVATE KEY-----",
    "config.yaml": "users:\n- user:\n    client-key-data: QUJD\n",
    "pull.json": '{"auths": {"gcr.io": {"auth": "QUJD"}}}',
    "login.cfg": "[Credentials]\ngs_oauth2_refresh_token = 1//x",
    "token": "hf_" + "a" * 34,
    "hosts.yml": "github.com:\n  oauth_token: gho_" + "b" * 36,
    "aws.ini": "aws_secret_access_key = " + "c" * 40,
    "exported.json": "\0".join('{"type": "service_account"}') + "\0",
    "robot.json": '{\n "type": "service_account",\n "private_key": "x"}',
}
PLAIN = {
    "train.py": f'HEADER = """{KEY}"""',
    ".env.example": "PASSWORD=",
    "id_rsa.pub": "ssh-rsa x",
    "cert.pem": "-----BEGIN CERTIFICATE-----",
    "data.json": '{"type": "FeatureCollection"}',
    "environment.yml": "x",
    "keys.txt": "a b c",
    "monkey.json": "{}",
    "model.yaml": "auth: none\ntoken: <pad>\n",
    "tokenizer.json": '{"token": "hf_", "auths": 3}',
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return filled(tmp_path / "code", {**SECRETS, **PLAIN})


def filled(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def copied(tree: LocalTree) -> set[str]:
    return {entry.path for entry in tree.entries if entry.kind == "f"}


def secrets(tree: LocalTree) -> set[str]:
    return {one.path for one in tree.left_out if one.is_secret}


def test_likely_secrets_are_left_out_and_named_and_nothing_else_is(code: Path) -> None:
    tree = read_tree(code)
    assert copied(tree) == set(PLAIN)
    folders = {".aws/credentials": ".aws", ".ssh/config": ".ssh"}
    assert secrets(tree) == {folders.get(name, name) for name in SECRETS}
    assert all(one.why for one in tree.left_out)


def test_secrets_are_copied_when_that_is_asked_for(code: Path) -> None:
    assert copied(read_tree(code, include_secrets=True)) == {*PLAIN, *SECRETS}


def test_a_line_in_tpuignore_lets_one_secret_pass(code: Path) -> None:
    (code / ".tpuignore").write_text("!.env\n")
    assert ".env" in copied(read_tree(code))
    assert "sub/id_rsa" in secrets(read_tree(code))


def test_a_gitignore_that_lists_what_to_keep_lets_no_secret_pass(code: Path) -> None:
    (code / ".gitignore").write_text("*\n!*/\n!*.json\n!.env\n")
    assert copied(read_tree(code)) == {"data.json", "monkey.json", "tokenizer.json"}


def test_a_single_file_that_is_named_is_copied(code: Path) -> None:
    assert read_tree(code / ".env").is_file


def test_a_link_with_a_secret_name_is_left_out_and_nothing_is_read_through_links(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = filled(tmp_path / "code", {"a": "x"})
    (code / ".env").symlink_to("/etc/hostname")
    (code / "blocks").symlink_to(tmp_path / "pipe")
    os.mkfifo(code / "fifo")
    tree = read_tree(code)
    assert secrets(tree) == {".env"}
    assert tree.odd == ("fifo",)


@pytest.mark.parametrize("kind", ["repository", "worktree", "folder below"])
def test_what_git_is_told_to_exclude_is_left_out(tmp_path: Path, kind: str) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    main = filled(
        tmp_path / "main", {"a.py": "x", "mine.txt": "x", "sub/mine.txt": "x", "sub/b": ""}
    )
    git = ["git", "-C", str(main), "-c", "user.name=n", "-c", "user.email=e@x.org"]
    subprocess.run(["git", "init", "-q", main], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    (main / ".git" / "info").mkdir(exist_ok=True)
    (main / ".git" / "info" / "exclude").write_text("mine.txt\n!*.py\n")
    place = main
    if kind == "worktree":
        place = tmp_path / "other"
        subprocess.run([*git, "worktree", "add", "-q", place, "-b", "other"], check=True)
    tree = read_tree(place / "sub" if kind == "folder below" else place)
    assert copied(tree) == ({"b"} if kind == "folder below" else {"a.py", "sub/b"})
    assert ".git/info/exclude" in {one.why.split()[-1] for one in tree.left_out}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path / "slice", 1) as workers:
        yield workers


@pytest.mark.slow
def test_a_copy_says_once_what_it_left_out_and_a_dry_run_lists_it(
    tpuctl: Any, own: Slice, code: Path
) -> None:
    os.mkfifo(code / "pipe")
    where = ("--host", own.option, "--key", str(own.key))
    preview = tpuctl("cp", str(code), ":code", *where, "--dry-run", "--json").data
    assert not (own.folder(0) / "code").exists()
    assert {file["path"] for file in preview["files"]} == set(PLAIN)
    assert preview["size_bytes"] == sum(len(text.encode()) for text in PLAIN.values())
    why = {one["path"]: one["why"] for one in preview["left_out"]}
    assert why[".netrc"] == "passwords"
    assert why["pipe"] == "neither a file, a folder nor a link"
    text = tpuctl("cp", str(code), ":code", *where, "--dry-run").stdout
    assert f"Would copy {len(PLAIN)} files" in text
    assert "  .netrc  may be secret: passwords" in text
    result = tpuctl("cp", str(code), ":code", *where)
    (warning,) = [line for line in result.stderr.splitlines() if "secrets" in line]
    assert f"and {len(SECRETS) - 3} more" in warning
    assert not (own.folder(0) / "code" / ".env").exists()
    assert tpuctl("cp", str(code), ":code", *where, "--include-secrets").exit_code == 0
    assert (own.folder(0) / "code" / ".env").exists()


@pytest.mark.slow
def test_a_dry_run_of_a_copy_from_a_worker_writes_nothing(
    tpuctl: Any, own: Slice, tmp_path: Path
) -> None:
    filled(own.folder(0) / "logs", {"a": "123", "sub/b": "4567"})
    (own.folder(0) / "logs" / "up").symlink_to("/etc")
    target = tmp_path / "back"
    where = ("--host", own.option, "--key", str(own.key), "--dry-run", "--json")
    preview = tpuctl("cp", ":logs", str(target), *where).data
    assert {(file["path"], file["size_bytes"]) for file in preview["files"]} == {
        (str(target / "a"), 3),
        (str(target / "sub" / "b"), 4),
    }
    assert [one["path"] for one in preview["left_out"]] == ["up"]
    assert not target.exists()


def test_a_variable_without_a_value_takes_it_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert plan_command(["true"], env=["TOKEN", "A=", "B=x=y"]).env == {
        "TOKEN": "s3cret", "A": "", "B": "x=y",
    }  # fmt: skip
    monkeypatch.delenv("TOKEN")
    for bad in ("TOKEN", "", "=x", "A B", "1A"):
        with pytest.raises(UsageError):
            plan_command(["true"], env=[bad])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["run", "job", "launch"])
def test_a_secret_variable_is_on_no_command_line_here_or_there(
    own: Slice, tmp_path: Path, way: str
) -> None:
    secret = f"s3cret-{os.getpid()}"
    (tmp_path / "look.sh").write_text("echo value $TOKEN; ps -eo args | cat\n")
    (tmp_path / "look.py").write_text("import os\nos.system('sh look.sh')\n")
    where = ["--host", own.option, "--key", str(own.key), "--env", "TOKEN"]
    shell = ["--", "sh", str(tmp_path / "look.sh")]
    words = {
        "run": ["run", *where, *shell],
        "job": ["run", *where, "--job", "j", "--no-check", *shell],
        "launch": ["launch", str(tmp_path / "look.py"), "--code", str(tmp_path), *where],
    }[way]
    if way == "launch":
        own.folder(0).parent.chmod(0o755)
    command = [sys.executable, "-m", "tpuctl", *words]
    ended = subprocess.run(
        command, env={**os.environ, "TOKEN": secret}, capture_output=True, text=True
    )
    text = ended.stdout
    if way == "job":
        heard = Heard()
        read_logs(own.hosts, own.access, sink=heard, note=lambda _: None, job="j", follow=True)
        text = heard.out.decode()
    assert text.count(secret) == 1, ended.stderr
    assert f"value {secret}\n" in text
    assert "ps -eo args" in text


@pytest.mark.slow
@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_the_files_of_a_job_and_our_own_are_private_whatever_the_umask(
    own: Slice, tmp_path: Path, umask: str
) -> None:
    before = os.umask(int(umask, 8))
    try:
        job = plan_command(["sh", "-c", "umask; echo x > made"])
        started = start_job(own.hosts, job, own.access, job="j", check=False)
        assert started.failures == ()
        heard = Heard()
        read_logs(own.hosts, own.access, sink=heard, note=lambda _: None, job="j", follow=True)
        pair = key_for_tpus(tmp_path / "state")
    finally:
        os.umask(before)
    folder = own.folder(0) / ".tpuctl"
    names = [folder, folder / "jobs", *(folder / "jobs").rglob("*")]
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in names} == {
        path.name: "0o0" for path in names
    }
    for path in (pair.path, own.access.host_keys.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def nobody(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run tpuctl as a user id that no passwd file has, without a home folder."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("changing the user needs root and setpriv")
    command = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return subprocess.run(
        [*command, sys.executable, "-m", "tpuctl", *words],
        cwd=cwd, env={**kept, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("home", [None, "relative"])
@pytest.mark.parametrize(
    "words",
    [
        ("top", "local", "--json"),
        ("free", "local", "--dry-run", "--json"),
        ("config", "--json"),
        ("list", "--json"),
        ("doctor", "--json"),
        ("run", "--json", "--host", "me@127.0.0.1:9", "--", "true"),
        ("run", "--json", "--host", "127.0.0.1:9", "--", "true"),
        ("cp", "--json", "/etc/hostname", "x@y:"),
        ("ssh", "--json", "--host", "me@127.0.0.1:9"),
        ("logs", "--json", "t1"),
    ],
    ids=lambda words: "-".join(words[:1]) + str(len(words)),
)
def test_a_user_without_a_name_and_a_home_gets_no_bug(
    tmp_path: Path, words: tuple[str, ...], home: str | None
) -> None:
    # Without HOME, the current folder may be searched; with a relative one, it may not.
    for folder in (tmp_path, *tmp_path.parents)[: -len(Path(gettempdir()).parts)] * (not home):
        folder.chmod(0o755)
    (tmp_path / "~" / ".ssh").mkdir(parents=True)
    (tmp_path / "~" / ".ssh" / "config").write_text("Nonsense\n")
    ended = nobody(*words, cwd=tmp_path, **({"HOME": home} if home else {}))
    document = json.loads(ended.stdout)
    assert "bug" not in {error["code"] for error in document["errors"]}, ended.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["~"]


ODD = ["a b", 'a"b', "a'b", r"a\b", "a%hb", "%%", "a#b", "#", "a$b", "a,b", "ü", "a\tb", "a\nb",
       "~", r"a\ b", "*", "a\\", " ", "a=b", "-o"]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("is_own", [True, False])
def test_ssh_reads_the_very_file_that_is_our_record(
    tmp_path: Path, name: str, is_own: bool
) -> None:
    if not shutil.which("ssh"):
        pytest.skip("there is no ssh client (apt-get install openssh-client)")
    folder = tmp_path / name
    folder.mkdir()
    new_key(folder / "key")
    host = parse_hosts("me@10.0.0.1")[0] if is_own else Host(0, "10.0.0.1", "me", key_alias="t.1-0")
    access = Access((folder / "key",), HostKeys(folder / "known_hosts"))
    argv = plan_shell((host,), access).argv
    asked = subprocess.run(
        [argv[0], "-G", "-F", "/dev/null", *argv[1:]], capture_output=True, text=True, check=True
    )
    option = "globalknownhostsfile" if is_own else "userknownhostsfile"
    assert f"\n{option} {folder}/known_hosts" in f"\n{asked.stdout}"
    assert ("\nstricthostkeychecking accept-new\n" in asked.stdout) is not is_own
    # The name of the key is expanded only when it is read.
    identity = str(folder / "key").replace("%", "%%")
    assert f"\nidentityfile {identity}\n" in f"\n{asked.stdout}"


def test_a_path_that_ssh_would_replace_is_refused(tmp_path: Path) -> None:
    access = Access((), HostKeys(tmp_path / "${HOME}" / "known_hosts"))
    with pytest.raises(InvalidInputError, match=r"\$\{"):
        plan_shell(parse_hosts("me@10.0.0.1"), access)
