"""`make bench`: run every benchmark, or those named on the command line."""

import importlib
import pkgutil
import sys
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
    failed = False
    for name in sys.argv[1:] or [name for name in names if name not in NOT_A_BENCHMARK]:
        try:
            importlib.import_module(f"benchmarks.{name}").main()
        except Exception:
            traceback.print_exc()
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
