"""Cloud TPUs from create to delete: what was requested, what exists and what it costs."""
