"""What presizing buys: the same photographs profiled before, and after in each encoding.

Prints the table of docs/data.md: each row is `tpuctl profile run` against the step of a published
training. CPU per example is what to compare; the rest follows from it and from the machine.
"""

import tempfile
from pathlib import Path

from tpuctl.datasets.models import Encode, PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.demo.demo import assemble_photographs
from tpuctl.profiling.models import Profile
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.reference import reference_step_ms

BATCH_SIZE = 32
SECONDS = 6.0
# The colours of yuv420 are for the device to compute, so a profile of the host says little of it.
ENCODINGS: tuple[Encode, ...] = ("jpeg", "raw")
HEAD = (
    "| input | CPU per example | examples per s | vCPUs to keep the device busy | device idle |",
    "|---|---|---|---|---|",
)


def main() -> None:
    step_ms, source = reference_step_ms(BATCH_SIZE)
    photos = assemble_photographs()
    with tempfile.TemporaryDirectory() as place:
        rows = [row("images", measured(photos, step_ms))]
        for encode in ENCODINGS:
            folder = Path(place) / encode
            presize(photos, folder, PresizeOptions(encode=encode))
            rows.append(row(f"presized, `{encode}`", measured(folder, step_ms)))
    print(source)
    print(*HEAD, *rows, sep="\n")


def measured(folder: Path, step_ms: float) -> Profile:
    return profile_target(
        str(folder), seconds=SECONDS, batch_size=BATCH_SIZE, device_step_ms=step_ms
    )


def row(name: str, profile: Profile) -> str:
    assert profile.cpu_ms_per_example is not None
    cells = (
        f"{profile.cpu_ms_per_example:.2f} ms",
        f"{profile.pipeline_examples_per_s or 0:,.0f}",
        f"{profile.vcpus.needed_to_saturate or 0:.1f}",
        f"{profile.device_idle_fraction or 0:.0%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
