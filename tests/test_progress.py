"""What is said of long work to a caller in Python: nothing at first, then now and then."""

import io

from tpuctl.progress import Progress, StderrProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(out: io.StringIO, at_s: list[float]) -> str:
    moments = iter(at_s)
    speak = StderrProgress("Copying gs://shelf/small", out, lambda: next(moments))
    for done in (0, 100, 200, 400):
        speak(Progress("fetch", done, 400, "MiB"))
    return out.getvalue()


def test_work_that_is_over_at_once_says_nothing() -> None:
    assert said(io.StringIO(), [0, 1, 1, 1]) == ""


def test_long_work_says_how_far_it_is_and_its_end() -> None:
    text = said(io.StringIO(), [0, 3, 4, 5])
    assert text.splitlines() == [
        "Copying gs://shelf/small: 100 of 400 MiB, 33.3 MiB/s, 9 s left",
        "Copying gs://shelf/small: 400 of 400 MiB",
    ]


def test_a_terminal_sees_one_line_that_changes() -> None:
    text = said(Terminal(), [0, 3, 4, 5])
    paces = {100: ", 33.3 MiB/s, 9 s left", 200: ", 50 MiB/s, 4 s left", 400: ""}
    lines = [
        f"\r\x1b[KCopying gs://shelf/small: {done} of 400 MiB{pace}" for done, pace in paces.items()
    ]
    assert text == "".join(lines) + "\n"
