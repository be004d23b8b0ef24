"""What is run: registry (which checks there are), plan (which of them, in which order), config and policy (what the
user has decided), node_kinds (what each kind of node has), toml_file (how config and node_kinds are read), describe
(what is told of a check without running it)."""
