"""Ahead-of-time compilation: does a program fit a TPU that is not here, and how fast is it?"""
