"""What lines of logs say together: watchdog and timeouts (collectives), exit_codes, tracebacks and exceptions,
membership. They yield candidates for the cause."""
