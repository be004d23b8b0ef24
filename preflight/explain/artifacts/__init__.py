"""Files that are not logs: flight-recorder dumps (dumps, flight_recorder, desync_messages), torchrun's
error_files, preflight's own reports, and the records of `preflight debug` (processes, first_failure, hang_stacks)."""
