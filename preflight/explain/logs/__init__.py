"""What several lines of a log are together: tracebacks, and the ends of attempts."""
