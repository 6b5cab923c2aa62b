"""The reader for PyTorch: every record once, the same batches whoever decodes them."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

from torch.utils.data import DataLoader  # noqa: E402

from tests.pictures import fill  # noqa: E402
from tpuctl.datasets.models import PresizeOptions  # noqa: E402
from tpuctl.datasets.presize import presize  # noqa: E402
from tpuctl.datasets.readers import (  # noqa: E402
    open_batches,
    open_torch_dataset,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    options = PresizeOptions(size=(24, 32), workers=1, shard_bytes=4000)
    presize(fill(folder / "photos", 26, classes=2), folder / "small", options)
    (folder / "small" / "train-00000-of-00009-ffffffff.tfrecord").write_bytes(b"foreign")
    return folder / "small"


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_loader_processes_change_nothing_about_the_batches(made: Path, workers: int) -> None:
    steps = 2 * open_batches(made, 4).steps_per_epoch + 1
    dataset = open_torch_dataset(made, 4, seed=3, steps=steps)
    loaded = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    expected = list(open_batches(made, 4, seed=3, steps=steps))
    assert len(loaded) == len(expected) == steps
    for (images, labels), batch in zip(loaded, expected, strict=True):
        assert images.shape == (4, 3, 24, 32)
        assert images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), batch.images)
        assert labels.dtype == torch.int64
        np.testing.assert_array_equal(labels.numpy(), batch.labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_at_a_step_on_each_host(made: Path, workers: int) -> None:
    for host in range(2):
        share = {"seed": 1, "host": host, "hosts": 2}
        whole = list(open_batches(made, 3, steps=9, **share))  # type: ignore[arg-type]
        dataset = open_torch_dataset(made, 3, start_step=5, steps=4, **share)  # type: ignore[arg-type]
        rest = list(DataLoader(dataset, batch_size=None, num_workers=workers))
        assert len(rest) == 4
        for (images, _), batch in zip(rest, whole[5:], strict=True):
            np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), batch.images)


def test_planes_stay_flat(tmp_path: Path) -> None:
    options = PresizeOptions(size=(24, 32), workers=1, encode="yuv420")
    presize(fill(tmp_path / "photos", 6), tmp_path / "small", options)
    (images, labels), *_ = open_torch_dataset(tmp_path / "small", 4, planes=True, steps=1)
    assert images.shape == (4, 24 * 32 * 3 // 2)
    assert labels.tolist() == [-1] * 4
