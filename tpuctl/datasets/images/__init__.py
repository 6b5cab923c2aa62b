"""Decode, resize and encode images."""
