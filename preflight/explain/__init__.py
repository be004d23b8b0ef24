"""`preflight explain`: why did this job fail?

One line, in the order to read: inputs finds the files; read/ turns logs into lines (failure_book.line.Line); a line
that fits a row of the failure book is an observation (book.Match, kept by observations; culprits says whom it is
about); timeline and logs/ have them in order; causes/ and artifacts/ draw candidates from it and from other files
(candidates.Candidate); diagnosis picks the most probable one, and attempts does so for each attempt; console, pages and
output write the report.
"""
