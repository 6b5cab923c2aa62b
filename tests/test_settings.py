import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Tpuctl
from tpuctl.errors import InvalidInputError
from tpuctl.settings import (
    KEYS,
    Settings,
    cache_dir,
    files_read_once,
    home,
    load_settings,
    state_dir,
)


def source_of(name: str, **places: object) -> tuple[str | None, str]:
    settings = load_settings(**places)  # type: ignore[arg-type]
    found = next(setting for setting in settings.settings if setting.name == name)
    return found.value, found.source


def test_each_place_wins_over_the_next(tmp_path: Path) -> None:
    user, project = tmp_path / "xdg" / "tpuctl" / "config.toml", tmp_path / "p" / "tpuctl.toml"
    below = tmp_path / "p" / "a" / "b"
    below.mkdir(parents=True)
    user.parent.mkdir(parents=True)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert source_of("zone", env=env, cwd=below) == (None, "not set")
    user.write_text('zone = "user"')
    assert source_of("zone", env=env, cwd=below) == ("user", str(user))
    project.write_text('zone = "project"')
    assert source_of("zone", env=env, cwd=below) == ("project", str(project))
    env["TPUCTL_ZONE"] = "variable"
    assert source_of("zone", env=env, cwd=below) == ("variable", "TPUCTL_ZONE")
    flags = {"zone": "flag"}
    assert source_of("zone", env=env, cwd=below, flags=flags) == ("flag", "--zone")


def test_a_command_reads_each_file_once_and_python_each_time(tmp_path: Path) -> None:
    places = {"env": {"XDG_CONFIG_HOME": str(tmp_path)}, "cwd": tmp_path}
    file = tmp_path / "tpuctl.toml"
    file.write_text('zone = "before"')
    with files_read_once():
        assert source_of("zone", **places)[0] == "before"
        file.write_text('zone = "after"')
        assert source_of("zone", **places)[0] == "before"
    assert source_of("zone", **places)[0] == "after"


def test_commands_run_in_a_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert tpuctl("config").exit_code == 0


def test_an_empty_variable_is_not_a_setting(tmp_path: Path) -> None:
    assert source_of("zone", env={"TPUCTL_ZONE": ""}, cwd=tmp_path)[1] == "not set"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"zone = ", "Could not read the settings in .*tpuctl.toml"),
        (b"zone = 5", "zone in .* must be text"),
        (b'zoen = "x"', "Unknown setting 'zoen'"),
        (b"x = " + b"9" * 6000, "Could not read the settings in .*tpuctl.toml"),
        (b"\xff\xfe\x00", "Could not read the settings in .*tpuctl.toml"),
    ],
)
def test_a_bad_file_is_one_error_that_names_it(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "tpuctl.toml").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        load_settings(env={}, cwd=tmp_path)


def test_a_change_is_seen_even_with_the_same_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "tpuctl.toml"
    file.write_text('zone = "first"')
    assert source_of("zone", env={}, cwd=tmp_path)[0] == "first"
    before = file.stat()
    file.write_text('zone = "other"')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source_of("zone", env={}, cwd=tmp_path)[0] == "other"


HARMFUL = (
    "project", "provider", "cache_dir", "state_dir", "tpu_endpoint", "gce_endpoint",
    "colab_endpoint", "kaggle_endpoint", "staging",
)  # fmt: skip


def read(cwd: Path, **env: str) -> Settings:
    return load_settings(env=env, cwd=cwd, quiet=True)


@pytest.mark.parametrize("name", [key.name for key in KEYS])
def test_a_project_file_sets_only_what_is_harmless(tmp_path: Path, name: str) -> None:
    """A repository that was cloned plants each key; below it, the user works."""
    below = tmp_path / "clone" / "src"
    below.mkdir(parents=True)
    (tmp_path / "clone" / "tpuctl.toml").write_text(f'{name} = "planted"')
    settings = read(below, HOME=str(tmp_path))
    if name in HARMFUL:
        assert settings[name] != "planted"
        (ignored,) = settings.ignored
        assert (ignored.name, ignored.file) == (name, str(tmp_path / "clone" / "tpuctl.toml"))
        assert f"TPUCTL_{name.upper()}" in ignored.message
        assert "config.toml" in ignored.message
    else:
        assert (settings[name], settings.ignored) == ("planted", ())


def test_the_user_file_and_the_environment_set_everything(tmp_path: Path) -> None:
    config = tmp_path / "tpuctl" / "config.toml"
    config.parent.mkdir()
    config.write_text("".join(f'{key.name} = "mine"\n' for key in KEYS))
    settings = read(tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    assert {setting.value for setting in settings.settings} == {"mine"}
    assert settings.ignored == ()
    env = {key.variable: "set" for key in KEYS}
    assert {each.value for each in read(tmp_path, **env).settings} == {"set"}


def by_mode(file: Path, mode: int) -> None:
    file.chmod(mode)


def by_folder(file: Path, mode: int) -> None:
    file.parent.chmod(mode)


def by_owner(file: Path, uid: int) -> None:
    os.chown(file, uid, -1)


def by_folder_owner(file: Path, uid: int) -> None:
    os.chown(file.parent, uid, -1)


def by_link(file: Path, _: int) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def by_fifo(file: Path, _: int) -> None:
    file.unlink()
    os.mkfifo(file)


def by_size(file: Path, size: int) -> None:
    file.write_text('zone = "planted" #' + " " * size)


OTHER_USER = 4711
WRITABLE = [
    (by_mode, 0o666, "other users may write to .*tpuctl.toml. To use it: chmod go-w"),
    (by_mode, 0o646, "other users may write"),
    (by_folder, 0o777, "other users may write"),
    (by_folder, 0o1777, "other users may write"),
    (by_owner, OTHER_USER, "belongs to another user"),
    (by_folder_owner, OTHER_USER, "belongs to another user"),
    (by_link, 0, "symbolic link"),
    (by_fifo, 0, "not a regular file"),
    (by_size, 1 << 20, "larger than"),
]


@pytest.mark.parametrize(("spoil", "how", "reason"), WRITABLE)
def test_a_project_file_that_another_user_may_have_written_is_ignored(
    tmp_path: Path, spoil: Callable[[Path, int], None], how: int, reason: str
) -> None:
    if how == OTHER_USER and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    above, folder = tmp_path / "tpuctl.toml", tmp_path / "project"
    folder.mkdir()
    above.write_text('zone = "above"')
    file = folder / "tpuctl.toml"
    file.write_text('zone = "planted"')
    assert read(folder)["zone"] == "planted"
    spoil(file, how)
    settings = read(folder)
    (ignored,) = settings.ignored
    assert (ignored.file, ignored.name) == (str(file), None)
    assert re.search(reason, ignored.reason)
    assert (settings["zone"], settings.files) == ("above", (str(above),))


def test_the_user_file_is_checked_too_but_may_be_a_link(tmp_path: Path) -> None:
    folder, dotfiles = tmp_path / "tpuctl", tmp_path / "dotfiles"
    folder.mkdir()
    dotfiles.mkdir()
    (dotfiles / "config").write_text('state_dir = "mine"')
    (folder / "config.toml").symlink_to(dotfiles / "config")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert read(tmp_path, **env)["state_dir"] == "mine"
    for path in (dotfiles / "config", dotfiles):
        path.chmod(0o777)
        settings = read(tmp_path, **env)
        assert settings["state_dir"] != "mine"
        assert "other users may write" in settings.warnings[0]
        path.chmod(0o700)


@pytest.mark.slow
def test_a_file_exchanged_between_check_and_use_is_not_used(tmp_path: Path) -> None:
    """Another process swaps a good file and a link to a planted one, as fast as it can."""
    file, planted = tmp_path / "tpuctl.toml", tmp_path / "planted"
    planted.write_text('zone = "planted"')
    planted.chmod(0o666)
    swap = (
        "import os, sys\n"
        "file, planted = sys.argv[1:]\n"
        "print(flush=True)\n"
        "while True:\n"
        "    open(file + '1', 'w').write('zone = \"good\"')\n"
        "    os.replace(file + '1', file)\n"
        "    os.symlink(planted, file + '2')\n"
        "    os.replace(file + '2', file)\n"
    )
    words = [sys.executable, "-c", swap, str(file), str(planted)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as swapping:
        assert swapping.stdout
        swapping.stdout.readline()
        seen = [read(tmp_path) for _ in range(2000)]
        swapping.kill()
    values = {settings["zone"] for settings in seen}
    assert "planted" not in values
    assert {"good", None} <= values, "the swap was never seen, so nothing was tried"


def test_config_shows_what_was_ignored_and_each_command_warns_once(
    tmp_path: Path, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tpuctl.toml").write_text('zone = "here"\nstate_dir = "planted"')
    shown = tpuctl("config")
    assert shown.stderr.count("Ignored the setting state_dir in") == 1
    assert "a project file may set only bucket and zone" in shown.stderr
    data = tpuctl("config", "--json").data
    assert [each["name"] for each in data["ignored"]] == ["state_dir"]
    sources = {setting["name"]: setting["source"] for setting in data["settings"]}
    assert sources["zone"] == str(tmp_path / "tpuctl.toml")
    assert sources["state_dir"] == "default"
    stopped = tpuctl("emulator", "status")
    assert stopped.stderr.count("Ignored the setting state_dir in") == 1
    assert not (tmp_path / "planted").exists()


def test_python_gets_the_same_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuctl.settings.on_ignored", warnings.warn)
    (tmp_path / "tpuctl.toml").write_text('tpu_endpoint = "127.0.0.1:1"')
    with pytest.warns(UserWarning, match="Ignored the setting tpu_endpoint"):
        assert load_settings(env={}, cwd=tmp_path)["tpu_endpoint"] is None


def test_a_planted_key_does_not_open_the_users_tpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a repository brings an SSH key and has tpuctl find it."""
    (tmp_path / "loot" / "ssh").mkdir(parents=True)
    (tmp_path / "tpuctl.toml").write_text(f'state_dir = "{tmp_path}/loot"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpuctl.settings.on_ignored", lambda _: None)
    assert "loot" not in str(state_dir())
    monkeypatch.setenv("TPUCTL_STATE_DIR", f"{tmp_path}/loot")
    assert "loot" in str(state_dir()), "the check above would not notice"


def test_the_users_own_group_may_write_but_no_other(tmp_path: Path) -> None:
    file = tmp_path / "tpuctl.toml"
    file.write_text('zone = "here"')
    file.chmod(0o664)
    assert read(tmp_path)["zone"] == "here"
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another group")
    os.chown(file, -1, OTHER_USER)
    assert read(tmp_path)["zone"] is None


def by_link_to(file: Path, _: int) -> None:
    file.rename(file.parent / f"{file.name}-elsewhere")
    file.symlink_to(file.parent / f"{file.name}-elsewhere")


def by_link_of_another(file: Path, owner: int) -> None:
    by_link_to(file, 0)
    os.lchown(file, owner, -1)


def by_link_to_anothers(file: Path, owner: int) -> None:
    by_link_to(file, 0)
    os.chown(file, owner, -1)


def by_second_name(file: Path, _: int) -> None:
    os.link(file, file.parents[2] / "second")


PLANTED = [
    ("", by_mode, 0o777, "other users may write to"),
    ("", by_mode, 0o1777, "other users may write to"),
    ("", by_owner, OTHER_USER, "belongs to another user"),
    ("", by_link_of_another, OTHER_USER, "belongs to another user"),
    ("", by_link_to_anothers, OTHER_USER, "belongs to another user"),
    ("creates", by_owner, OTHER_USER, "belongs to another user"),
    ("creates", by_link_to, 0, "is a symbolic link"),
    ("ssh", by_mode, 0o777, "other users may write to"),
    ("known_hosts", by_owner, OTHER_USER, "belongs to another user"),
    ("known_hosts", by_link_to, 0, "is a symbolic link"),
    ("ssh/id_tpuctl", by_owner, OTHER_USER, "belongs to another user"),
    ("ssh/id_tpuctl", by_second_name, 0, "another name elsewhere"),
    ("emulator/token", by_mode, 0o666, "other users may write to"),
    ("creates/planted.json", by_owner, OTHER_USER, "belongs to another user"),
    ("colab/t1.json", by_owner, OTHER_USER, "belongs to another user"),
]
READERS = [
    "run --host me@127.0.0.1:1 -- true", "cp --host me@127.0.0.1:1 missing :x", "list",
    "ssh --host me@127.0.0.1:1", "top --host me@127.0.0.1:1 --once", "free --host me@127.0.0.1:1",
    "logs --host me@127.0.0.1:1", "stop --host me@127.0.0.1:1", "show t1", "gc",
    "wait t1 --for gone",
    "create t1 --type v5e-8 --zone us-west4-a --yes", "delete t1 --yes", "watch t1 -- true",
    "launch train.py --on t1", "data serve --host me@127.0.0.1:1", "emulator start --detach",
    "emulator status", "emulator stop",
]  # fmt: skip


def state_of_every_kind(folder: Path) -> Path:
    names = ("known_hosts", "ssh/id_tpuctl", "emulator/token", "creates/planted.json")
    for name in (*names, "colab/t1.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("find", [state_dir, cache_dir])
@pytest.mark.parametrize(("name", "spoil", "how", "reason"), PLANTED)
def test_a_folder_in_which_another_user_may_have_put_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find, name, spoil, how, reason
) -> None:
    if how == OTHER_USER and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    folder = state_of_every_kind(tmp_path / "place")
    variable = f"TPUCTL_{find.__name__.upper()}"
    monkeypatch.setenv(variable, str(folder))
    assert find() == folder
    spoil(folder / name, how)
    for text in (str(folder), f"{folder}/", f"{folder}/."):
        monkeypatch.setenv(variable, text)
        with pytest.raises(InvalidInputError, match=reason) as refusal:
            find()
        assert str(folder / name) in str(refusal.value)
        assert variable in f"{refusal.value} {refusal.value.hint}"


@pytest.mark.parametrize("find", [state_dir, cache_dir])
def test_a_folder_that_the_user_keeps_elsewhere_by_a_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find
) -> None:
    folder = state_of_every_kind(tmp_path / "place")
    by_link_to(folder, 0)
    monkeypatch.setenv(f"TPUCTL_{find.__name__.upper()}", f"{folder}/")
    assert find() == tmp_path / "place-elsewhere"
    (tmp_path / "dangling").symlink_to("not-yet")
    monkeypatch.setenv(f"TPUCTL_{find.__name__.upper()}", str(tmp_path / "dangling"))
    assert find() == tmp_path / "not-yet"


def test_what_others_cannot_reach_may_have_any_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With umask 000, say; one that is not there yet is no reason to refuse either."""
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "place"))
    assert state_dir() == tmp_path / "place"
    folder = state_of_every_kind(tmp_path / "place")
    (folder / "ssh").chmod(0o777)
    folder.chmod(0o700)
    assert state_dir() == folder


@pytest.mark.parametrize("words", READERS)
def test_every_command_refuses_a_planted_state_folder(
    tmp_path: Path, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The attack: a folder with a key, host keys, a journal and a secret; others can write."""
    folder = state_of_every_kind(tmp_path / "place")
    folder.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    def state_of_all() -> dict[Path, tuple[int, ...]]:
        """Return what changes when a file is written, not when it is read."""
        found = {path: path.stat() for path in folder.rglob("*")}
        return {
            path: (it.st_mode, it.st_ino, it.st_uid, it.st_size, it.st_mtime_ns, it.st_ctime_ns)
            for path, it in found.items()
        }

    before = state_of_all()
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(folder))
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "127.0.0.1:1")
    refused = tpuctl(*words.split())
    assert refused.exit_code != 0
    assert f"Could not use {folder} (state_dir, from TPUCTL_STATE_DIR)" in " ".join(
        refused.stderr.split()
    )
    assert state_of_all() == before


@pytest.mark.parametrize("find", [state_dir, cache_dir])
def test_no_folder_of_a_repository_is_taken_for_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find
) -> None:
    """The attack: a repository with a folder called ~ and one for each relative path."""
    monkeypatch.chdir(tmp_path)
    variable = f"TPUCTL_{find.__name__.upper()}"
    for name in ("~/mine", "mine"):
        state_of_every_kind(tmp_path / name)
    monkeypatch.setenv(variable, "~/mine")
    assert find() == home() / "mine"
    monkeypatch.setenv(variable, "mine")
    with pytest.raises(InvalidInputError, match="not an absolute path"):
        find()
    monkeypatch.delenv(variable)
    for place in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{place}_HOME", "mine")
    assert find().is_relative_to(home())
