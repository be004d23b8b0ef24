"""What lines of logs say together: watchdog and timeouts (collectives), exit_codes, tracebacks, exceptions, progress,
membership. Each module yields candidates for the cause."""
