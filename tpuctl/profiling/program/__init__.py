"""Training programs watched as they run: their iterators found, waits and steps written down."""
