"""Keeping other people's libraries from writing on the user's terminal."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

VERBOSITY = "GRPC_VERBOSITY"


@contextmanager
def quietly() -> Iterator[None]:
    """Load a library of Google's inside: what they would say, they are told when loaded.

    gRPC would log that a server went away, google-api-core warn about old versions of Python.
    """
    wanted = os.environ.get(VERBOSITY)
    os.environ[VERBOSITY] = wanted or "NONE"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if wanted is None:
            del os.environ[VERBOSITY]
