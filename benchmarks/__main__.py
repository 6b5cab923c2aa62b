"""`make bench`: run every benchmark, or those named on the command line."""

import importlib
import os
import pkgutil
import secrets
import sys
import tempfile
import traceback

import benchmarks

NOT_A_BENCHMARK = {
    "__main__", "timing", "peers", "presize_peer", "presize_whole_peer", "profile_pipelines",
    "labelled_pipelines", "profile_labels", "profile_records", "fit_program",
    "side_attribution", "side_detection",
}  # fmt: skip


def main() -> int:
    """Run them one after the other; one that fails does not stop the rest."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    names = sys.argv[1:] or [name for name in names if name not in NOT_A_BENCHMARK]
    failed = []
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(secrets.token_hex(32))
        token.flush()
        # The secret of every emulator that they start, and of their clients.
        os.environ["TPUCTL_TPU_TOKEN_FILE"] = token.name
        for name in names:
            try:
                importlib.import_module(f"benchmarks.{name}").main()
            except (Exception, SystemExit):
                traceback.print_exc()
                failed.append(name)
    print(f"{len(names)} benchmarks; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
