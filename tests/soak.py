"""`make soak`: strike every command at every point in every way, and watch for a day.

Prints how many points and strikes there were per command, and what failed. `python -m tests.soak
create gc share=0.1 only=kill` strikes some commands, at every tenth of their points, in one way.
"""

import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp

from tests.interrupt_cases import CASES
from tests.interrupting import Undisturbed, interrupted, undisturbed

PROCESSES = 3
HOURS = 24.0


def main() -> int:
    """Strike, then endure; exit code 1 if anything failed."""
    words = sys.argv[1:]
    options = dict(word.split("=") for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    root = Path(mkdtemp(prefix="tpuctl-soak-"))
    # The secret of every emulator in these processes, and of its clients.
    token = root / "token"
    token.write_text("only-this-soak-knows")
    os.environ |= {"HOME": str(root), "TPUCTL_STATE_DIR": str(root / "state")}
    os.environ |= {"TPUCTL_TPU_TOKEN_FILE": str(token), "GRPC_VERBOSITY": "NONE"}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        failed = sum(
            strike_all(pool, name, root / str(index), **options)
            for index, name in enumerate(names or CASES)
        )
    if not names:
        failed += day(root / "day")
    shutil.rmtree(root)
    return int(failed > 0)


def strike_all(
    pool: ProcessPoolExecutor, name: str, root: Path, *, only: str = "", share: str = "1"
) -> int:
    """Strike one command; how often it failed."""
    began = time.monotonic()
    wanted = undisturbed(CASES[name], root / "undisturbed")
    strikes = [strike for strike in wanted.strikes() if strike.startswith(only)]
    # Every n-th, kind by kind, so that a share reaches from the first point to the last.
    strikes = sorted(strikes, key=lambda strike: strike.split()[0])[:: round(1 / float(share))]
    tasks = {
        strike: pool.submit(attempt, name, strike, root / str(index), wanted)
        for index, strike in enumerate(strikes)
    }
    results = {strike: task.result() for strike, task in tasks.items()}
    hurt = {strike: text for strike, (_, text) in results.items() if text}
    kinds = Counter(strike.split()[0] for strike in strikes)
    reached = sum(reached for reached, _ in results.values())
    say(
        f"{name}: {len(wanted.points)} points, {len(strikes)} strikes, {reached} reached "
        f"({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}), "
        f"{len(hurt)} failed, {time.monotonic() - began:.0f} s"
    )
    for strike, text in hurt.items():
        say(f"--- {name}: {strike}\n{text}")
    return len(hurt)


def attempt(name: str, strike: str, root: Path, wanted: Undisturbed) -> tuple[bool, str]:
    """One strike; whether it was reached, and what went wrong."""
    try:
        return interrupted(CASES[name], strike, root, wanted), ""
    except AssertionError as error:
        return True, str(error)[:3000]
    except Exception:
        return True, traceback.format_exc()[-3000:]


def sample(name: str, count: int, root: Path) -> list[str]:
    """Some strikes at one command, every other one a kill; what went wrong."""
    wanted, chance = undisturbed(CASES[name], root / "undisturbed"), random.Random(name)
    kills = [strike for strike in wanted.strikes() if strike.startswith("kill")]
    others = [strike for strike in wanted.strikes() if not strike.startswith("kill")]
    strikes = [chance.choice((kills, others)[index % 2]) for index in range(count)]
    results = [attempt(name, strike, root / str(i), wanted) for i, strike in enumerate(strikes)]
    return [f"{strike}: {text}" for strike, (_, text) in zip(strikes, results, strict=True) if text]


def day(root: Path) -> int:
    """Watch for a day; prints what came of it, and whether that is right."""
    from tests.endurance import endure, undisturbed_weights

    root.mkdir()
    endured = endure(root, hours=HOURS, pace_s=0.1)
    say(endured.report())
    is_right = (
        endured.result.error is None
        and set(endured.weights) == {undisturbed_weights(root / "alone", hours=HOURS)}
        and abs(endured.result.usd_so_far - endured.billed_usd) < 0.01
        and endured.is_flat
    )
    say("watch: the weights and the cost are right" if is_right else "watch: FAILED")
    return int(not is_right)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
