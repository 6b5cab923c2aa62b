"""What an error message itself advises, for messages that the catalogue is not sure about."""

import re
from collections.abc import Sequence

from tpuctl.diagnosis.evidence import is_raised

_LONGEST, _SHORTEST, _LAST_LINES = 400, 15, 20
# Wrapped lines of a message go on in lower case or with a quotation.
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?i:(?<!hint: ))(?<=\w: )|\n(?![a-z\"'`(])")
_VERBS = (
    "add|adjust|call|change|check that|choose|consider|convert|decrease|disable|enable|ensure|give"
    "|increase|install|make sure|move|pass|provide|put|reduce|remove|rename|replace|run|set|specify"
    "|switch|try|update|upgrade|use|wrap"
)
_ADVICE = re.compile(
    rf"(?i:hint:|\W*(?:you can |instead,? |or )?(?:{_VERBS})\b"
    r"|.*\bplease\b|to (?:fix|resolve|avoid|solve|work around|bypass|suppress)\b"
    r"|.*\b(?:did you (?:forget|mean)|you (?:need|must|have to|should|can|may want)\b)"
    r"|.*\binstead\b)"
)
# What a check demands says what to change, too.
_DEMAND = re.compile(r"(?i).*\b(?:must|should|has to|have to|needs? to|requires?|only supports?)\b")
_NO_CURE = re.compile(
    r"(?i)\b(?:report|file an?|open an?|contact|visit|see|refer|wait|ignore|feel free|let us know"
    r"|bug|search|read|more info\w*|release notes|more details)\b|rebuild TensorFlow"
)


def advice_in(lines: Sequence[str]) -> str | None:
    """Return the last sentence of a log that says what to do, or else what a check demands.

    It is looked for from the last exception on, or in the last lines if none was raised.
    """
    raised = [at for at, line in enumerate(lines) if is_raised(line)]
    end = "\n".join(lines[raised[-1] if raised else -_LAST_LINES :])
    found = [" ".join(each.split()) for each in _SENTENCES.split(end)]
    said = [each for each in found if _SHORTEST <= len(each) <= _LONGEST and " " in each]
    useful = [each for each in said if not _NO_CURE.search(each)]
    advised = [each for each in useful if _ADVICE.match(each)]
    demanded = [each for each in useful if raised and _DEMAND.match(each)]
    return next(reversed(advised or demanded), None)
