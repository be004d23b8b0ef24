"""Jobs that the items of `make lease` start: scripts as users have them, most of which fail."""
