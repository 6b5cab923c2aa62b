"""The shards of a plan, built in supervised worker processes that lose at most one image."""
