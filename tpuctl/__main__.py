"""`python -m tpuctl` is `tpuctl`."""

from tpuctl.cli.app import main

if __name__ == "__main__":
    main()
