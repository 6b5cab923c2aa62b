"""The template torch-xla-images, on the CPU of PyTorch/XLA: `make test-xla`."""

import csv
import importlib.util
import json
import runpy
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training_runs import digit_shards, interrupt, refused, said, train
from tpuctl.training.catalog import find_template

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        importlib.util.find_spec("torch_xla") is None, reason="needs torch_xla: make test-xla"
    ),
]
NAME = "torch-xla-images"
SMALL = ("--image-size", 16, "--batch-size", 16)


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return runpy.run_path(str(find_template(NAME)))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 pictures of the digits 0, 1 and 2, presized to 32x32."""
    return digit_shards(tmp_path_factory)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained")
    return out, train(NAME, "", out, "--data", shards, "--batch-size", 24, "--epochs", 5)


def test_it_learns_digits_and_its_device_did_every_step(trained) -> None:
    _, result = trained
    # 100 % of 24 when it was measured.
    assert result["test_accuracy"] >= 0.8
    assert result["steps"] == 5 * (216 // 24)
    assert [(one["steps"], one["examples"]) for one in result["executed"]] == [(45, 45 * 24)]
    assert 0 <= result["input_wait_fraction"] < 1


def test_another_learning_rate_in_every_step_compiles_nothing_again(trained) -> None:
    """The first two steps, prediction and its zeros: a few programs for 45 steps."""
    _, result = trained
    assert 0 < result["compilations"] <= 8


def test_it_predicts_any_number_of_pictures_in_their_order(template, trained, shards: Path) -> None:
    out, _ = trained
    options = ("--data", shards, "--batch-size", 32, "--predict")
    assert "240 predictions in" in said(NAME, "", out, *options)
    rows = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    assert [int(row["picture"]) for row in rows] == list(range(240))
    manifest = json.loads((shards / "manifest.json").read_text())
    records = template["open_shards"](str(shards), manifest)
    labels = [template["decode"](records, 32, number)[1] for number in range(len(records))]
    names = list(manifest["classes"])
    right = [row["class"] == names[label] for row, label in zip(rows, labels, strict=True)]
    assert np.mean(right) > 0.8


def weights(result: dict[str, Any]) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(result["model"], weights_only=True)
    return found


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Twelve steps on two devices, on fake data."""
    out = tmp_path_factory.mktemp("two")
    return out, train(NAME, "", out, "--data", "fake", "--steps", 12, "--cpu-devices", 2, *SMALL)


def test_two_devices_share_every_batch_and_train_as_one_would(on_two, tmp_path: Path) -> None:
    import torch

    _, two = on_two
    assert (two["replicas"], two["devices"]) == (2, ["CPU:0", "CPU:1"])
    assert [(one["steps"], one["examples"]) for one in two["executed"]] == [(12, 12 * 8)] * 2
    assert 0 < two["compilations"] <= 8
    alone = train(NAME, "", tmp_path, "--data", "fake", "--steps", 12, *SMALL)
    assert [one["examples"] for one in alone["executed"]] == [12 * 16]
    for name, weight in weights(alone).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_two_devices_that_are_interrupted_end_with_the_same_weights(
    on_two, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    import torch

    options = ("--data", "fake", "--steps", 12, "--save-every", 1, "--cpu-devices", 2, *SMALL)
    assert interrupt(NAME, "", tmp_path, number, "step ", *options) == code
    parts = train(NAME, "", tmp_path, *options)
    assert 0 < parts["resumed_after_step"] < 12
    one, two = weights(parts), weights(on_two[1])
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_a_model_without_a_checkpoint_is_not_replaced(on_two, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    model.write_bytes(Path(on_two[1]["model"]).read_bytes())
    before = model.read_bytes()
    options = ("--data", "fake", "--steps", 2, *SMALL)
    assert "has a model and no checkpoint: --overwrite?" in refused(NAME, "", tmp_path, *options)
    said(NAME, "", tmp_path, *options, "--find-lr")
    assert model.read_bytes() == before
    assert train(NAME, "", tmp_path, *options, "--overwrite")["steps"] == 2
    assert model.read_bytes() != before


def test_two_devices_predict_what_one_predicts(trained, shards: Path) -> None:
    out, _ = trained
    found = []
    for more in ((), ("--cpu-devices", 2)):
        said(NAME, "", out, "--data", shards, "--batch-size", 14, "--predict", *more)
        found.append((out / "predictions.csv").read_text())
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 241


def test_the_finder_suggests_a_rate_between_useless_and_explosive(tmp_path: Path) -> None:
    said(NAME, "", tmp_path, "--data", "fake", "--find-lr", "--steps", 40, *SMALL)
    found = json.loads((tmp_path / "lr.json").read_text())
    assert found["rates"] == sorted(found["rates"])
    assert 1e-5 < found["suggested"] < 10
    assert max(found["losses"]) > 2 * min(found["losses"])


def test_what_cannot_begin_names_the_flag_and_the_way_out(tmp_path: Path) -> None:
    assert "--dtype: invalid choice" in refused(NAME, "", tmp_path, "--dtype", "float16")
    assert "--data fake" in refused(NAME, "", tmp_path, "--data", tmp_path)
    assert "--batch-size 500 is more" in refused(NAME, "", tmp_path, "--batch-size", 500)
    assert "Train first" in refused(NAME, "", tmp_path, "--predict")
    uneven = refused(NAME, "", tmp_path, "--batch-size", 9, "--cpu-devices", 2)
    assert "--batch-size 9 on 2 devices: 8 would divide" in uneven


def test_launch_picks_pytorch_and_both_devices_work(tmp_path: Path, tpuctl) -> None:
    options = [f"--set={name}={value}" for name, value in {
        "data": "fake", "steps": 2, "batch-size": 16, "image-size": 16, "out": tmp_path,
    }.items()]  # fmt: skip
    result = tpuctl("launch", NAME, "--json", "--cpu-devices", "2", *options)
    assert result.exit_code == 0
    assert [count["examples"] for count in result.data["executed"]] == [16, 16]


# ---- Parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "exponential", "cosine"])
def test_one_cycle_rises_for_a_third_and_falls_to_nearly_nothing(template, kind: str) -> None:
    rates = [template["one_cycle"](kind, step, 100, 0.5) for step in range(101)]
    assert rates[0] == pytest.approx(0.02)
    assert max(rates) == rates[30] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(5e-5)
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)


def test_without_annealing_the_rate_stays(template) -> None:
    assert {template["one_cycle"]("none", step, 10, 0.5) for step in range(10)} == {0.5}


@pytest.mark.parametrize("world", [2, 4])
def test_devices_share_an_epoch_without_overlap_and_can_begin_anywhere(
    template, world: int
) -> None:
    def load(row: int):
        return np.full(1, row), row

    def batches(rank: int, step: int, count: int) -> list[list[int]]:
        endless = template["read_batches"](load, np.arange(64), 4, 7, step, (rank, world))
        return [next(endless)[1].tolist() for _ in range(count)]

    per_epoch = 64 // world // 4
    whole = [batches(rank, 0, 2 * per_epoch) for rank in range(world)]
    for epoch in (slice(0, per_epoch), slice(per_epoch, None)):
        seen = [row for own in whole for batch in own[epoch] for row in batch]
        assert sorted(seen) == list(range(64))
    assert whole[0][:per_epoch] != whole[0][per_epoch:]
    for rank in range(world):
        assert batches(rank, 3, 2) == whole[rank][3:5]


def test_gradients_are_the_mean_over_all_processes(
    template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one device the sum is its own: as one of two it gets half of its gradients."""
    import torch
    import torch_xla

    # Otherwise torch_xla skips the exchange where there is one process.
    monkeypatch.setenv("XLA_ALWAYS_ALLREDUCE", "1")
    device = torch_xla.device()
    batch = [
        torch.zeros(2, 16, 16, 3, dtype=torch.uint8, device=device),
        torch.tensor([0, 1], device=device),
        torch.tensor([True, False], device=device),
    ]
    gradients = []
    for world in (1, 2):
        model = template["make_model"](4, seed=0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        template["train_step"](model, optimizer, batch, 0.1, world, torch.float32)
        torch_xla.sync()
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert any(one.abs().max() > 0 for one in gradients[0])
    for alone, half in zip(*gradients, strict=True):
        torch.testing.assert_close(half, alone / 2)
