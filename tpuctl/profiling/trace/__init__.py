"""Traces of accelerators (XSpace files), read without any library."""
