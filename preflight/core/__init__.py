"""Plain records and small functions that every room uses. Imports the standard library only.

job, outcome and facts are what a run is about; vote and rank_ranges compare ranks and name them; words writes numbers
and lists; exceptions reads what was raised; own_code says which files are the user's; secrets removes secrets from
what is told. answer is what comes of work in another process, finding a finding as the report holds it, and the
engine's own codes.
"""
