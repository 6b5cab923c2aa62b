import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_templates import TEMPLATES
from tpuctl.errors import MissingExtraError, NotFoundError, UsageError
from tpuctl.training import snippets
from tpuctl.training.catalog import Flag, Template, describe_script, find_template
from tpuctl.training.choose import Choice
from tpuctl.training.plan import ON_ALL_HOSTS, pick_choice

STRATEGY = Flag("--strategy", "", choices=("auto", "default", "mesh", "single", "mirrored"))
SCRIPT = Template("images", "", "images.py", (STRATEGY,), ("tensorflow", "jax"), "")


def offers(**strategies: str) -> list[Choice]:
    return [Choice(name, strategy, "because", "") for name, strategy in strategies.items()]


def test_the_machines_preference_wins_when_the_script_can_use_it() -> None:
    choices = offers(tensorflow="default", jax="mesh")
    assert pick_choice(SCRIPT, choices, preferred="jax").framework == "jax"
    assert pick_choice(SCRIPT, choices, preferred="tensorflow").framework == "tensorflow"


def test_a_framework_that_the_script_cannot_use_is_passed_over() -> None:
    choices = offers(tensorflow="default", torch="xla-launch")
    assert pick_choice(SCRIPT, choices, preferred="torch").framework == "tensorflow"


def test_jax_on_the_tpu_beats_a_tensorflow_that_cannot_see_it() -> None:
    choices = offers(tensorflow="none-on-tpu", jax="mesh")
    assert pick_choice(SCRIPT, choices, preferred="tensorflow").framework == "jax"


def test_a_tensorflow_that_cannot_see_the_tpu_still_trains_and_says_so() -> None:
    choice = pick_choice(SCRIPT, offers(tensorflow="none-on-tpu"), preferred="tensorflow")
    assert choice.strategy == "default"
    assert "running on the CPU" in choice.because


def test_what_the_user_names_is_kept() -> None:
    choices = offers(tensorflow="default", jax="mesh")
    choice = pick_choice(
        SCRIPT, choices, preferred="tensorflow", framework="jax", strategy="single"
    )
    assert (choice.framework, choice.strategy) == ("jax", "single")


def test_nothing_installed_names_what_to_install() -> None:
    nothing = offers(tensorflow="not-installed", jax="not-installed")
    with pytest.raises(MissingExtraError) as caught:
        pick_choice(SCRIPT, nothing, preferred="jax")
    assert caught.value.hint == "pip install 'tpuctl[tf]'"
    with pytest.raises(NotFoundError, match="jax, which is not installed"):
        pick_choice(SCRIPT, nothing, preferred="jax", framework="jax")


def test_what_is_to_be_installed_sees_the_accelerator() -> None:
    nothing = offers(tensorflow="not-installed", jax="not-installed")
    with pytest.raises(NotFoundError) as caught:
        pick_choice(SCRIPT, nothing, preferred="jax", accelerator="tpu")
    assert caught.value.hint == "pip install -U 'jax[tpu]'"
    with pytest.raises(NotFoundError) as caught:
        pick_choice(SCRIPT, nothing, preferred="jax", accelerator="gpu")
    assert caught.value.hint == "pip install -U 'tensorflow[and-cuda]'"


@pytest.mark.parametrize("accelerator", ["none", "gpu", "tpu"])
def test_the_torch_that_a_template_needs_is_of_the_same_release_as_its_torch_xla(
    accelerator: str,
) -> None:
    script = describe_script(find_template("torch-xla-images"))
    nothing = offers(torch="not-installed")
    with pytest.raises(NotFoundError) as caught:
        pick_choice(script, nothing, preferred="jax", accelerator=accelerator)
    words = [word for word in shlex.split(caught.value.hint or "") if word.startswith("torch")]
    release = re.search(r"pip install torch==([\d.]+)", Path(script.path).read_text())
    assert release
    assert [word.partition("~=")[2] for word in words] == [release[1]] * 2


def test_tensorflow_for_tpus_is_not_put_beside_jax() -> None:
    script = describe_script(find_template("custom-loop"))
    with pytest.raises(NotFoundError) as caught:
        pick_choice(script, offers(jax="mesh"), preferred="jax", accelerator="tpu")
    assert "new environment" in (caught.value.hint or "")
    with pytest.raises(NotFoundError) as caught:
        pick_choice(script, offers(jax="not-installed"), preferred="jax", accelerator="tpu")
    assert caught.value.hint == "pip install -U 'tensorflow-tpu'"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_no_template_is_given_a_strategy_that_it_does_not_know(template: Template) -> None:
    known = next(flag.choices for flag in template.flags if flag.name == "--strategy")
    for framework in template.frameworks:
        for strategy in snippets.known(framework):
            offered = offers(**{framework: strategy})
            if strategy in ON_ALL_HOSTS and strategy not in known:
                with pytest.raises(UsageError, match="trains on one host") as caught:
                    pick_choice(template, offered, preferred=framework)
                assert "jax-images" in (caught.value.hint or "")
            else:
                assert pick_choice(template, offered, preferred=framework).strategy in known


def test_a_gpu_that_a_template_cannot_use_is_said() -> None:
    script = describe_script(find_template("torch-xla-images"))
    choice = pick_choice(script, offers(torch="cuda-single"), preferred="torch")
    assert choice.strategy == "cpu"
    assert "torch-xla-images does not support cuda-single" in choice.because


@pytest.mark.parametrize("strategy", ["nonsense", "mesh"])
def test_a_strategy_of_no_framework_or_another_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError) as caught:
        pick_choice(SCRIPT, offers(tensorflow="default"), preferred="jax", strategy=strategy)
    assert "mirrored" in (caught.value.hint or "")


def test_a_strategy_for_a_script_that_takes_none_is_refused() -> None:
    script = replace(SCRIPT, flags=())
    with pytest.raises(UsageError, match="has no --strategy"):
        pick_choice(script, offers(jax="mesh"), preferred="jax", strategy="mesh")


def test_a_framework_the_script_cannot_use_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="does not support torch"):
        pick_choice(SCRIPT, offers(torch="cpu"), preferred="torch", framework="torch")
    anything = replace(SCRIPT, frameworks=())
    assert (
        pick_choice(anything, offers(torch="not-installed"), preferred="jax").strategy == "default"
    )
    assert pick_choice(anything, offers(torch="cpu"), preferred="jax").framework == "torch"
