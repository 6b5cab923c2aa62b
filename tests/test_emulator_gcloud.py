"""gcloud itself, as `tpuctl emulator start` points it here; more: make test-clients."""

from pathlib import Path

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.clients import VERSION, emulator_for_clients, need

pytestmark = pytest.mark.slow


def test_gcloud_creates_a_tpu_and_copies_a_file(tmp_path: Path) -> None:
    need("gcloud")
    (tmp_path / "file").write_text("abc")
    with emulator_for_clients(tmp_path) as target:
        node = ("t1", "--accelerator-type=v5litepod-8", f"--version={VERSION}")
        head = ("gcloud", "compute", "tpus", "tpu-vm", "create", *node)
        assert "Created tpu [t1]" in target.run(*head, "--zone=us-central1-a")
        target.run("gcloud", "storage", "cp", str(tmp_path / "file"), "gs://photos/a")
        assert "gs://photos/a" in target.run("gcloud", "storage", "ls", "gs://photos")
        target.run("gcloud", "storage", "rm", "-r", "gs://photos")
        assert "photos" not in target.run("gcloud", "storage", "buckets", "list")
