"""`profile run --fit`: the device's step comes from the compiler, as an interval."""

from pathlib import Path

import pytest

from tests.fit_cases import compiles, write_programs
from tests.pipeline_cases import write_target
from tests.warm_child import start_warm_child
from tpuctl.errors import UsageError
from tpuctl.profiling.profile import profile_target


def test_only_one_thing_can_stand_in_for_the_device() -> None:
    with pytest.raises(UsageError, match="Both --device-step-ms and --fit"):
        profile_target("anything", device_step_ms=5.0, fit="v5e-1")


@pytest.mark.tf
@pytest.mark.slow
class TestMeasured:
    pytestmark = compiles

    def test_the_interval_of_the_step_widens_the_vcpus(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
        target = write_target(
            tmp_path, "def make():\n    return tf.data.Dataset.range(64).repeat().batch(64)\n"
        )
        model = f"{write_programs(tmp_path)}:dense"
        profile = profile_target(target, seconds=1, batch_size=64, fit="v5e-1", model=model)
        device = profile.device
        assert device
        assert device.low_ms
        assert device.high_ms
        assert device.low_ms <= device.step_ms <= device.high_ms
        assert "on a v5litepod-1 takes between" in device.source
