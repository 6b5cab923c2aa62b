"""Run an input pipeline and measure it, in a process of its own."""
