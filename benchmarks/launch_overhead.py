"""What does watching cost? The same training by `launch`, and without the profile's layer 0.

They train beside each other, a second each while the others are stopped, so that what else the
machine does hits them alike; how far two that are not watched differ is the noise. Counted is what
a step takes once the steps run: start and compilation are over by then.
"""

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.runtime.live import live_machine
from tpuctl.training.plan import LaunchPlan, plan_training
from tpuctl.training.run import Training, run_training
from tpuctl.training.watched import watch_training

TURNS = 30
TURN_S = 1.0
# The step itself takes long in the one, and next to nothing in the other.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "mnist-cnn": ("batch-size=32", "examples=6400"),
    "custom-loop": (),
}
_RUNS: Mapping[str, Callable[..., Training]] = {
    "alone": run_training,
    "again": run_training,
    "launch": watch_training,
}
# `custom-loop` says how many steps are done, Keras how many an epoch had.
_STEPS = re.compile(rb"step (\d+): |(\d+)/\d+ - ")
_WARM_LINES = 2


@dataclass
class Trainee:
    """A training process, and (step, CPU seconds, seconds of its own turns) each time it spoke."""

    plan: LaunchPlan
    run: Callable[..., Training]
    seen: list[tuple[int, float, float]] = field(default_factory=list)
    process: psutil.Process | None = None
    _turns_s: float = 0.0
    _resumed_s: float | None = None

    def train(self) -> None:
        """Run until stopped from outside."""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(reading,))
        reader.start()
        try:
            self.run(self.plan, log=writing, errors=Path(os.devnull))
        finally:
            os.close(writing)
            reader.join()

    def turn(self) -> None:
        """Go on for a while."""
        assert self.process
        self._resumed_s = time.perf_counter()
        self.process.resume()
        time.sleep(TURN_S)
        self.process.suspend()
        self._turns_s += time.perf_counter() - self._resumed_s
        self._resumed_s = None

    def cost_of_a_step(self) -> tuple[float, float]:
        """Milliseconds of CPU and of wall time, from the first turn's line to the last line."""
        first, last = next(each for each in self.seen if each[2]), self.seen[-1]
        steps, cpu_s, wall_s = (after - before for before, after in zip(first, last, strict=True))
        return cpu_s / steps * 1e3, wall_s / steps * 1e3

    def _read(self, output: int) -> None:
        with open(output, "rb") as lines:
            for line in lines:
                if found := _STEPS.match(line):
                    done = self.seen[-1][0] if self.seen else 0
                    self._note(int(found[1] or done + int(found[2])))

    def _note(self, step: int) -> None:
        if self.process is None:
            children = psutil.Process().children()
            self.process = next(c for c in children if self.plan.argv[1:] == tuple(c.cmdline()[1:]))
        times, resumed_s = self.process.cpu_times(), self._resumed_s
        turn_s = time.perf_counter() - resumed_s if resumed_s else 0.0
        self.seen.append((step, times.user + times.system, self._turns_s + turn_s))


def train_in_turns(trainees: Mapping[str, Trainee]) -> None:
    """Start all, wait until their steps run, and let each go on by turns; then end them."""
    threads = [threading.Thread(target=each.train) for each in trainees.values()]
    for thread in threads:
        thread.start()
    while any(len(each.seen) < _WARM_LINES for each in trainees.values()):
        time.sleep(0.1)
    processes = [each.process for each in trainees.values() if each.process]
    for process in processes:
        process.suspend()
    for _ in range(TURNS):
        for trainee in trainees.values():
            trainee.turn()
    for process in processes:
        process.kill()
    for thread in threads:
        thread.join()


def main() -> None:
    """Print CPU and wall time of a step, watched over not watched."""
    here = diagnose(live_machine())
    for template, settings in TEMPLATES.items():
        with tempfile.TemporaryDirectory() as folder:
            common = (*settings, "data=fake", "steps=10000000", "save-every=10000000")
            trainees = {
                name: Trainee(
                    plan_training(template, here, settings=(*common, f"out={folder}/{name}")), run
                )
                for name, run in _RUNS.items()
            }
            train_in_turns(trainees)
        costs = {name: trainee.cost_of_a_step() for name, trainee in trainees.items()}
        for kind, alone, again, watched in zip(("CPU", "wall"), *costs.values(), strict=True):
            usual = (alone + again) / 2
            print(
                f"launch {template}: {kind} time of a step {usual:.2f} ms alone, {watched:.2f} ms "
                f"watched: {watched / usual - 1:+.1%} (noise: {abs(alone / again - 1):.1%})"
            )


if __name__ == "__main__":
    main()
