"""Profile training programs as they run: find their iterators, record their waits and steps."""
