"""Keep a TPU alive and a job running on it: a state machine, and a loop that observes and acts."""
