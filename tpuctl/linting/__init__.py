"""Lint: what in a notebook or script will break or crawl on a TPU, read without running it."""
