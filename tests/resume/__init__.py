"""`preflight resume`: trainings recorded in this process, and a few by the command itself."""
