"""The program `tpuctl`, which is `python -m tpuctl` too."""

import signal
import sys

from tpuctl.start_python import leave_out_current_folder


def main() -> None:
    """Run the command line without the current folder on Python's path."""
    # Ctrl-C while Python imports or tidies up just ends the process, without a traceback.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    leave_out_current_folder()
    from tpuctl.cli.app import main as run

    try:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        # Another Ctrl-C while the first was being reported.
        sys.exit(130)
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
