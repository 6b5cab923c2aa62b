"""The deep look: a short trace of the host, taken within a budget and linked to the stages."""
