"""Workers, one or 256: run, copy, follow and stop over SSH, with nothing to install on them."""
