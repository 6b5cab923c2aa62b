"""What is wrong with this machine's TPU, and how to fix it."""
