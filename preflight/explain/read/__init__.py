"""Logs as lines: reader makes one pass over each file, prefilter drops lines that cannot matter, copies those that
only repeat others, prefixes and sources find out who wrote a line."""
