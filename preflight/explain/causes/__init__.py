"""Causes: each file asks the timeline for one kind, and yields the candidates that it finds. `rows` has the causes that
a single line names; `superseded` in a file says which of these rows it explains better."""
