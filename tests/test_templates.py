"""What all templates promise, and that `launch` of each works on every framework it names."""

import ast
from pathlib import Path

import pytest

from tests.training_runs import warm_launch
from tpuctl.training.catalog import find_template, list_templates

TEMPLATES = list_templates().templates
# Where Keras templates have to differ: what they read and what they train.
OWN = {"load_data", "make_fake_data", "make_model"}
KERAS = ("mnist-cnn", "imdb-lstm")


def definitions(name: str) -> dict[str, str]:
    tree = ast.parse(find_template(name).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: ast.unparse(node) for node in tree.body if isinstance(node, kinds)}


# What these would show, the same template on the other framework or mnist-cnn shows.
LIKE_ANOTHER = [
    ("fashion-mnist", "tensorflow"), ("fashion-mnist", "jax"), ("imdb-lstm", "jax"),
    ("images", "jax"),
]  # fmt: skip


@pytest.mark.parametrize("name", KERAS)
def test_what_templates_share_they_share_word_for_word(name: str) -> None:
    first, other = (
        {function: text.replace(one, "NAME") for function, text in definitions(one).items()}
        for one in ("mnist-cnn", name)
    )
    shared = set(first) & set(other) - OWN
    assert {"open_devices", "Steps", "make_example", "main"} <= shared
    assert [one for one in sorted(shared) if first[one] != other[one]] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_template_is_short_enough_to_be_read(template) -> None:
    lines = len(Path(template.path).read_text(encoding="utf-8").splitlines())
    assert lines <= (270 if template.name in (*KERAS, "fashion-mnist") else 450)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_template_names_its_frameworks_and_how_it_was_measured(template) -> None:
    assert template.frameworks
    assert "--data fake" in template.usage
    assert "@@" not in Path(template.path).read_text(encoding="utf-8")


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(
            template.name,
            framework,
            marks=[pytest.mark.soak] * ((template.name, framework) in LIKE_ANOTHER),
        )
        for template in TEMPLATES
        for framework in template.frameworks
        if framework != "torch"
    ],
)
def test_launch_trains_every_template_on_two_replicas_and_both_work(
    name: str,
    framework: str,
    tmp_path: Path,
    tpuctl,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # jax-images, which imports least, starts as it does for users.
    if name != "jax-images":
        warm_launch(monkeypatch, framework)
    small = ["--set", "image-size=32"] if "images" in name else []
    small += ["--set", "examples=64"] if name in (*KERAS, "fashion-mnist") else []
    small += ["--set", "length=8"] if name == "imdb-lstm" else []
    result = tpuctl(
        "launch", name, "--framework", framework, "--cpu-devices", "2", "--json",
        "--set", "data=fake", "--set", "steps=2", "--set", "batch-size=16",
        "--set", f"out={tmp_path}", *small,
    )  # fmt: skip
    assert result.exit_code == 0, capfd.readouterr().err
    data = result.data
    assert [count["steps"] for count in data["executed"]] == [2, 2]
    assert [count["examples"] for count in data["executed"]] == [16, 16]
    assert len({count["device"] for count in data["executed"]}) == 2
