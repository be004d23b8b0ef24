"""What `preflight.check` offers beyond records: files, a process for calls that may hang (probe), the user's own code,
pairs of nodes (who meets whom, and what bad pairs have in common), sockets, and how nodes reach each other."""
