"""A program of a user, for mypy and pyright: what tpuctl returns has types (make smoke-all)."""

import tpuctl
from tpuctl import data

machine = tpuctl.doctor()
names: list[str] = [problem.code for problem in machine.problems]
runtime: str = machine.runtime
chips: int = machine.chips

listed = tpuctl.list()
costs = [(tpu.name, tpu.usd_so_far) for tpu in listed.tpus]
created = tpuctl.create("t1", "v5e-8", zone="auto", ttl_s=3600)
name: str = created.name

profile = tpuctl.profile.run("input.py:make", device_step_ms=20)
headline: str = profile.headline
presized = data.presize("photos", "small", data.PresizeOptions(size=(224, 224)))
images: int = presized.images
