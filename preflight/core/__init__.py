"""Plain records and small functions that every package uses. Imports the standard library only.

job, outcome and facts describe a run; vote compares ranks and rank_ranges names them; words formats numbers and lists;
exceptions reads what was raised; own_code says which files are the user's; secrets removes secrets from all output.
answer is the result of work in another process; finding has the finding as the report holds it, and the engine's own
codes.
"""
