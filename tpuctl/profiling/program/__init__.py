"""Profile training programs: find their iterators, and record waits and steps."""
