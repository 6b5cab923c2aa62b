"""GKE: whole jobs as JobSets, which the cluster schedules and restarts."""
