"""End to end on this machine: doctor, profile, presize, profile again, train, report."""
