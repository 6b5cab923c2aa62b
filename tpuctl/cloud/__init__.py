"""Cloud TPUs, from create to delete: what we asked for, what there is, what it costs."""
