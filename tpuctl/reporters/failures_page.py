"""The page of the documentation that lists every failure in the catalogue."""

from tpuctl.diagnosis.diagnose import CHECKS
from tpuctl.diagnosis.explain import Failure, failures

_HEAD = """\
# Failures

Every failure that `tpuctl doctor` and `tpuctl explain` know. `tpuctl explain CODE` prints one of
them; `tpuctl explain < train.log` finds those that a log shows. In a text, … stands for anything.

This page is made from `tpuctl/diagnosis/data/failures.json` by `make golden`.
"""


def page() -> str:
    """Write the whole page in Markdown."""
    return "\n".join([_HEAD, *map(_entry, failures().values())])


def _entry(failure: Failure) -> str:
    texts = "\n".join(f"- `` {text} ``" for text in failure.texts)
    seen = "seen by `tpuctl doctor`" if failure.code in CHECKS else "known by its text"
    command = f"\n\n    {failure.fix_command}" if failure.fix_command else ""
    return (
        f"## {failure.code}: {failure.title}\n\n"
        f"{failure.severity}, {seen}\n\n{texts}\n\n"
        f"{failure.cause}\n\n**{failure.fix}**{command}\n\n"
        f"Confidence {failure.confidence}. Source: {failure.source}.\n"
    )
