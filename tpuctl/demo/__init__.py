"""The whole day on this machine: doctor, profile, presize, profile again, train, report."""
