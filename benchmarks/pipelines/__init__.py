"""Pipelines written after public ones: is what `profile run` says of them true?"""

from collections.abc import Sequence


def main(words: Sequence[str] = ()) -> None:
    """`python -m benchmarks pipelines`."""
    from benchmarks.pipelines.suite import main as run

    run(words)
