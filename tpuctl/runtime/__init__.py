"""Where am I: runtime, accelerator, frameworks, and which processes use the TPU."""
