"""The user's own code: found by name, loaded, run in a process of its own, its errors explained."""
