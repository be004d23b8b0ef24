"""What is run: registry (the checks that exist), plan (which of them run, in which order), config and policy (the
user's decisions), node_kinds (what each kind of node has), toml_file (reads files for config and node_kinds), describe
(shows a check without running it)."""
