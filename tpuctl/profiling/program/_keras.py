"""The Keras callback that profiles a training; a separate module because it imports Keras."""

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
        """Start recording."""
        self._block.__enter__()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop and draw the conclusions."""
        self._block.__exit__(None, None, None)

    @property
    def result(self) -> Profile:
        """The profile of the last `fit`; raises TargetError before the first."""
        return self._block.result
