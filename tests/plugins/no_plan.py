"""Is no check: it has no PLAN."""
