"""A callback for `model.fit` that profiles the training it is given to."""

from typing import Any

import keras

from tpuctl.profiling.models import Profile
from tpuctl.profiling.program.inside import ProfileBlock


class ProfileCallback(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Profiles one `fit`: `model.fit(data, callbacks=[c := tpuctl.ProfileCallback()])`."""

    def __init__(self) -> None:
        super().__init__()
        self._block = ProfileBlock()

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to watch."""
        self._block.__enter__()

    def on_train_end(self, logs: Any = None) -> None:
        """End, and judge."""
        self._block.__exit__(None, None, None)

    @property
    def result(self) -> Profile:
        """The profile of the last `fit`; raises TargetError before there was one."""
        return self._block.result
