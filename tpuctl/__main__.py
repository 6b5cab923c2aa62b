"""The program `tpuctl`, which is `python -m tpuctl` too."""

from tpuctl.start_python import leave_out_current_folder


def main() -> None:
    """Run the command line without the current folder on Python's path."""
    leave_out_current_folder()
    from tpuctl.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
