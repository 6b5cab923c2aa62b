"""How fast this machine trains: a sweep over batch sizes, and the comparison of two machines."""
