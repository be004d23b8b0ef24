"""What is run: registry (which checks there are), plan (which of them, in which order), config and policy (what the
user has decided), describe (what is told of a check without running it)."""
