from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.settings import load_settings


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


def test_an_empty_variable_is_not_a_setting(tmp_path: Path) -> None:
    assert source_of("zone", env={"TPUCTL_ZONE": ""}, cwd=tmp_path)[1] == "not set"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"zone = ", "Could not read the settings in .*tpuctl.toml"),
        (b"zone = 5", "zone in .* must be text"),
        (b'zoen = "x"', "Unknown setting 'zoen'"),
        (b"\xff\xfe\x00", "Could not read the settings in .*tpuctl.toml"),
    ],
)
def test_a_bad_file_is_one_error_that_names_it(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "tpuctl.toml").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        load_settings(env={}, cwd=tmp_path)


def test_a_file_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "tpuctl.toml", []
    read_text = Path.read_text

    def count(path: Path, **options: str) -> str:
        reads.append(path)
        return read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", count)
    file.write_text('zone = "first"')
    for _ in range(6):
        assert source_of("zone", env={}, cwd=tmp_path)[0] == "first"
    assert reads == [file]
    file.write_text('zone = "second one"')
    assert source_of("zone", env={}, cwd=tmp_path)[0] == "second one"
    assert reads == [file, file]
