"""Keras callbacks: the one-cycle schedule and the learning-rate finder."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import keras

from tpuctl.errors import InvalidInputError, MissingExtraError
from tpuctl.storage.local import write_atomically
from tpuctl.training._plot import write_curves
from tpuctl.training.bench import name_place
from tpuctl.training.schedules import OneCyclePlan, RangeTest, range_test_rate, read_range_test


class OneCycle(keras.callbacks.Callback):
    """Set the learning rate and momentum of `model.fit` by the one-cycle schedule.

    `steps` is the number of training steps over all epochs; `plan` are arguments of
    `schedules.OneCyclePlan`. With `steps_per_execution` above 1 the rate changes once per
    execution. `history` holds the (step, rate) pairs that were set.
    """

    def __init__(self, max_rate: float, steps: int, *, first_step: int = 0, **plan: Any) -> None:
        super().__init__()
        self.plan = OneCyclePlan(max_rate, steps, **plan)
        self.history: list[tuple[int, float]] = []
        self._step = first_step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate for this step."""
        rate = self.plan.rate(self._step)
        optimizer = _set_rate(self.model, rate)
        # In a compiled step, momentum that is a Python number is a constant: only an optimizer
        # that keeps it as a variable can change it.
        momentum: Any = getattr(optimizer, "momentum", None)
        if hasattr(momentum, "assign"):
            momentum.assign(self.plan.momentum_at(self._step))
        self.history.append((self._step, rate))
        self._step += 1

    def write_plot(self, path: str | Path) -> Path:
        """Plot the schedule as a PNG."""
        points = [(step, self.plan.rate(step)) for step in range(self.plan.steps)]
        return write_curves(
            Path(path),
            {"learning rate": points},
            x="step",
            y="learning rate",
            title=f"One-cycle schedule: up to {max(rate for _, rate in points):.3g}",
            about=name_place(),
        )


class LearningRateFinder(keras.callbacks.Callback):
    """Run a learning-rate range test, suggest a rate, and restore the model.

        finder = LearningRateFinder(steps=100)
        model.fit(dataset, steps_per_epoch=100, epochs=1, callbacks=[finder])
        finder.result.steepest

    The test stops early when the loss reaches `diverged_at` times its best value or is not finite.
    Weights and optimizer are restored at the end. `result` is None until then.
    """

    def __init__(
        self, steps: int, *, low: float = 1e-7, high: float = 10.0, diverged_at: float = 4.0
    ) -> None:
        super().__init__()
        if steps < 2 or not 0 < low < high:
            raise InvalidInputError(
                f"Invalid range test: {steps} steps from {low} to {high}. It needs 2 steps or more "
                "and 0 < low < high."
            )
        self.result: RangeTest | None = None
        self._steps, self._low, self._high, self._diverged_at = steps, low, high, diverged_at
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._weights: list[Any] | None = None
        self._optimizer: list[Any] | None = None
        self._seen = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Save weights and optimizer state."""
        self._rates, self._losses, self._seen = [], [], 0.0
        optimizer = _unwrapped_optimizer(self.model)
        if not self.model.built:
            raise InvalidInputError(
                "The learning-rate finder cannot restore a model that has no weights yet.",
                hint="Begin the model with keras.Input(shape), or call model.build(shape) first.",
            )
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self._weights = self.model.get_weights()
        self._optimizer = [variable.numpy() for variable in optimizer.variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reset the running mean, as Keras does."""
        self._seen = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate for this step."""
        rate = range_test_rate(len(self._rates), self._steps, self._low, self._high)
        self._rates.append(rate)
        _set_rate(self.model, rate)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the loss of this step, and stop if the training has diverged."""
        # Keras reports the mean since the epoch began: the loss of the step is the difference.
        total = float((logs or {})["loss"]) * (batch + 1)
        loss = total - self._seen
        self._seen = total
        self._losses.append(loss)
        count = len(self._losses)
        best = min(self._losses)
        is_lost = not math.isfinite(loss) or loss > self._diverged_at * max(best, 1e-12)
        if count >= self._steps or (is_lost and count > self._steps // 10):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Restore weights and optimizer, and evaluate the test."""
        _sync_state(self.model)
        self.model.set_weights(self._weights)
        variables = _unwrapped_optimizer(self.model).variables
        for variable, value in zip(variables, self._optimizer or (), strict=True):
            variable.assign(value)
        self.result = read_range_test(self._rates[: len(self._losses)], self._losses)

    def write(self, folder: str | Path) -> str:
        """Write lr.json and, with matplotlib, lr.png; return the suggestion in words."""
        found = self._finished()
        if found.rates:
            with contextlib.suppress(MissingExtraError):
                self.write_plot(Path(folder, "lr.png"))
        document = {"rates": found.rates, "losses": found.losses, "suggested": found.steepest}
        write_atomically(Path(folder, "lr.json"), json.dumps(document, indent=2).encode())
        if found.steepest is None:
            return "learning rate: none, because the loss never fell"
        return f"learning rate: {found.steepest:.3g}, where the loss falls fastest"

    def _finished(self) -> RangeTest:
        if self.result is None:
            raise InvalidInputError(
                "The learning-rate finder has no result yet.", hint="Pass it to model.fit first."
            )
        return self.result

    def write_plot(self, path: str | Path) -> Path:
        """Plot loss against learning rate as a PNG, with the suggested rate."""
        found = self._finished()
        mark, losses = found.steepest, found.losses
        # Where the loss explodes, everything else would be a flat line at the bottom.
        top = 1.5 * max(losses[: max(1, len(losses) // 4)], default=1.0)
        return write_curves(
            Path(path),
            {"loss": list(zip(found.rates, losses, strict=True))},
            x="learning rate",
            y="loss of a step",
            title="Learning-rate range test",
            about=name_place(),
            logarithmic=True,
            mark=(mark, f"steepest: {mark:.2g}") if mark else None,
            top=top if top > 0 else None,
        )


def _unwrapped_optimizer(model: Any) -> Any:
    """Return the optimizer itself, without a loss-scaling wrapper."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise InvalidInputError("The model has no optimizer.", hint="Call model.compile() first.")
    return getattr(optimizer, "inner_optimizer", optimizer)


def _set_rate(model: Any, rate: float) -> Any:
    """Set the rate of the next step and return the optimizer."""
    _sync_state(model)
    optimizer = _unwrapped_optimizer(model)
    optimizer.learning_rate = rate
    return optimizer


def _sync_state(model: Any) -> None:
    """Copy the state back into the model.

    Keras on JAX keeps all variables outside the model during fit; an assignment to the model is
    lost unless its state is synchronised first.
    """
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
