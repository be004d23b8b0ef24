"""`preflight explain`: why did this job fail?

inputs finds the files; read/ turns logs into lines (failure_book.line.Line); evidence keeps those that fit a signature
(book.Match); candidates, logs/ and artifacts/ draw candidate causes from them and from other files
(candidates.Candidate); diagnosis picks the most probable one; console, pages and output write the report.
"""
