"""One cycle and the learning-rate finder as Keras callbacks."""

import math
from pathlib import Path
from typing import Any

import keras

from tpuctl.errors import InvalidInputError
from tpuctl.training._plot import write_plot
from tpuctl.training.schedules import OneCyclePlan, RangeTest, range_test_rate, read_range_test


class OneCycle(keras.callbacks.Callback):
    """Drive the learning rate (and momentum) of `model.fit` through one cycle.

    `steps` is the number of training steps of the whole run, over all epochs; further arguments are
    those of `schedules.OneCyclePlan`. With `steps_per_execution` above 1 the rate changes
    once for each execution. `history` holds (step, rate) as they were set.
    """

    def __init__(self, max_rate: float, steps: int, *, first_step: int = 0, **plan: Any) -> None:
        super().__init__()
        self.plan = OneCyclePlan(max_rate, steps, **plan)
        self.history: list[tuple[int, float]] = []
        self._step = first_step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the step that begins."""
        rate = self.plan.rate(self._step)
        optimizer = _set_rate(self.model, rate)
        # Momentum is a Python number that a compiled step has swallowed already: only an optimizer
        # that keeps it as a variable can follow.
        momentum: Any = getattr(optimizer, "momentum", None)
        if hasattr(momentum, "assign"):
            momentum.assign(self.plan.momentum_at(self._step))
        self.history.append((self._step, rate))
        self._step += 1

    def write_plot(self, path: str | Path) -> Path:
        """Draw the whole cycle as a PNG."""
        steps = range(self.plan.steps)
        return write_plot(
            Path(path),
            list(steps),
            [self.plan.rate(step) for step in steps],
            x="step",
            y="learning rate",
        )


class LearningRateFinder(keras.callbacks.Callback):
    """Raise the learning rate step by step, watch the loss, and name a rate; then undo it all.

        finder = LearningRateFinder(steps=100)
        model.fit(dataset, steps_per_epoch=100, epochs=1, callbacks=[finder])
        finder.result.steepest

    The test ends early where the loss is `diverged_at` times its best or no number. Weights and
    optimizer are as before when it ends. `result` is None until then.
    """

    def __init__(
        self, steps: int, *, low: float = 1e-7, high: float = 10.0, diverged_at: float = 4.0
    ) -> None:
        super().__init__()
        if steps < 2 or not 0 < low < high:
            raise InvalidInputError(
                f"Could not plan a range test of {steps} steps from {low} to {high}: it takes at "
                "least 2 steps, and 0 < low < high."
            )
        self.result: RangeTest | None = None
        self._steps, self._low, self._high, self._diverged_at = steps, low, high, diverged_at
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._weights: list[Any] | None = None
        self._optimizer: list[Any] | None = None
        self._seen = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember what must be put back."""
        self._rates, self._losses, self._seen = [], [], 0.0
        optimizer = _plain_optimizer(self.model)
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self._weights = self.model.get_weights()
        self._optimizer = [variable.numpy() for variable in optimizer.variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the epoch's mean anew, as Keras does."""
        self._seen = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the next rate."""
        rate = range_test_rate(len(self._rates), self._steps, self._low, self._high)
        self._rates.append(rate)
        _set_rate(self.model, rate)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the loss of this step alone; stop where the training has come apart."""
        # Keras reports the mean since the epoch began; the step's own loss is in the difference.
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
        """Put weights and optimizer back, and read the test."""
        _take_back_state(self.model)
        self.model.set_weights(self._weights)
        variables = _plain_optimizer(self.model).variables
        for variable, value in zip(variables, self._optimizer or (), strict=True):
            variable.assign(value)
        self.result = read_range_test(self._rates[: len(self._losses)], self._losses)

    def write_plot(self, path: str | Path) -> Path:
        """Draw loss against learning rate as a PNG, with the rate that is advised."""
        if self.result is None:
            raise InvalidInputError("The learning-rate finder has not run yet: fit with it first.")
        mark = self.result.steepest
        return write_plot(
            Path(path),
            list(self.result.rates),
            list(self.result.losses),
            x="learning rate",
            y="loss",
            logarithmic=True,
            mark=(mark, f"steepest: {mark:.2g}") if mark else None,
        )


def _plain_optimizer(model: Any) -> Any:
    """The optimizer whose rate counts: the one inside where losses are scaled."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise InvalidInputError("The model has no optimizer.", hint="Call model.compile() first.")
    return getattr(optimizer, "inner_optimizer", optimizer)


def _set_rate(model: Any, rate: float) -> Any:
    """Give the optimizer a rate for the next step; returns the optimizer."""
    _take_back_state(model)
    optimizer = _plain_optimizer(model)
    optimizer.learning_rate = rate
    return optimizer


def _take_back_state(model: Any) -> None:
    """Keras on JAX keeps all variables outside of the model during fit: what is assigned to the
    model is lost unless its state was taken back before.
    """
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
