"""`make soak`: strike every command at every point, in every way; print counts and failures."""

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


def main() -> int:
    """Strike the commands named on the command line, or all; exit code 1 if one was hurt."""
    names = [word for word in sys.argv[1:] if "=" not in word] or list(CASES)
    options = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    only, share = options.get("only", ""), float(options.get("share", 1))
    root = Path(mkdtemp(prefix="tpuctl-soak-"))
    failed = 0
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for name in names:
            began, folder = time.monotonic(), root / str(names.index(name))
            wanted = undisturbed(CASES[name], folder / "undisturbed")
            shutil.rmtree(folder / "undisturbed")
            strikes = [strike for strike in wanted.strikes() if strike.startswith(only)]
            strikes = random.Random(0).sample(strikes, max(1, int(len(strikes) * share)))
            tasks = [
                pool.submit(attempt, name, strike, folder / str(index), wanted)
                for index, strike in enumerate(strikes)
            ]
            results = [task.result() for task in tasks]
            hurt = [
                (strike, text)
                for strike, (_, text) in zip(strikes, results, strict=True)
                if text
            ]
            kinds = Counter(strike.split()[0] for strike in strikes)
            reached = sum(reached for reached, _ in results)
            sys.stdout.write(
                f"{name}: {len(wanted.points)} points, {len(strikes)} strikes, {reached} reached "
                f"({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}), "
                f"{len(hurt)} failed, {time.monotonic() - began:.0f} s\n"
            )
            for strike, text in hurt:
                sys.stdout.write(f"--- {name}: {strike}\n{text}\n")
            sys.stdout.flush()
            failed += len(hurt)
    shutil.rmtree(root)
    return int(failed > 0)


def attempt(name: str, strike: str, root: Path, wanted: Undisturbed) -> tuple[bool, str]:
    """One strike; whether it was reached, and what went wrong."""
    try:
        return interrupted(CASES[name], strike, root, wanted), ""
    except AssertionError as error:
        return True, str(error)[:3000]
    except Exception:
        return True, traceback.format_exc()[-3000:]


if __name__ == "__main__":
    sys.exit(main())
