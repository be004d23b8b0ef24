"""What is known about failures: signatures/*.toml are causes and the lines that show them; book reads and matches them;
line is a line of a log; signals says what a signal means."""
