"""Data sets of small images: presized once, verified, described, cached and read."""
