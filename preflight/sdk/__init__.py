"""What `preflight.check` offers beyond records: the user's own code, pairs of nodes (who meets whom, and what bad pairs
have in common), sockets, how nodes reach each other, and the arithmetic of devices."""
