import json
from pathlib import Path
from typing import Any

import pytest

from tests.training_runs import environment, warm
from tpuctl.training.schedules import OneCyclePlan

SCRIPT = Path(__file__).with_name("training_on_replicas.py")

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.fixture(scope="module", params=[("tensorflow", 3), ("jax", 2)], ids=lambda p: p[0])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    backend, replicas = request.param
    out = tmp_path_factory.mktemp("plots")
    done = warm(backend).run([str(SCRIPT), backend, str(replicas), str(out)], environment(backend))
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_the_finder_names_a_rate_that_trains_and_puts_everything_back(run: dict[str, Any]) -> None:
    assert 1e-4 < run["steepest"] < 1
    assert run["restored"]
    assert run["found"]["suggested"] == run["steepest"]
    assert len(run["found"]["rates"]) == len(run["found"]["losses"]) > 10
    assert run["said"] == [
        f"learning rate: {run['steepest']:.3g}, where the loss falls fastest",
        "learning rate: none, because the loss never fell",
    ]


def test_one_cycle_sets_every_steps_rate_and_the_model_learns(run: dict[str, Any]) -> None:
    plan = OneCyclePlan(0.05, 65)
    assert run["rates"] == pytest.approx([plan.rate(step) for step in range(65)])
    assert run["last_rate"] == pytest.approx(plan.rate(64), rel=1e-4)
    assert run["accuracy"] > 0.9


def test_predict_gives_what_one_device_gives_for_any_number_of_rows(run: dict[str, Any]) -> None:
    assert run["errors"] == {name: pytest.approx(0, abs=1e-6) for name in run["errors"]}
    assert run["empty"] == [0, 3]


def test_predict_keeps_the_structure_of_inputs_and_outputs(run: dict[str, Any]) -> None:
    assert run["forks"] == {name: pytest.approx([0, 0], abs=1e-6) for name in run["forks"]}
    assert run["no_rows"] == {"one": [0, 3], "two": [0, 1]}


def test_predict_compiles_once_and_nothing_for_a_rest(run: dict[str, Any]) -> None:
    assert run["first_compilations"] > 0
    assert run["compilations"] == 0


def test_predict_says_what_is_no_batch(run: dict[str, Any]) -> None:
    assert run["refusals"] == [
        "Could not predict: int holds no rows.",
        "Could not predict: a batch holds str, not an array with rows.",
        "Could not predict: a batch holds int, not an array with rows.",
        "Could not predict: a batch holds float32, not an array with rows.",
        "Could not predict: the model expects rows of shape (20,), not (7,).",
        "Could not predict: batch_size must be at least 1, not 0.",
        "Could not predict: str is not a Keras model.",
    ]


def test_the_plots_are_pictures(run: dict[str, Any]) -> None:
    assert [Path(plot).read_bytes()[:8] for plot in run["plots"]] == [b"\x89PNG\r\n\x1a\n"] * 2
