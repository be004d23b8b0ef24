"""Compares runs: `preflight diff`, `preflight history`, `--baseline auto`, and a site's profile.

run_entry is what is kept of a run, and entry makes it of a report and its facts; diff compares two of them (difference
has the records), telling puts that into words. archive is the file or the folder of `--history`, rows is its SQLite,
and machines identifies nodes; questions queries it, lines prints the answers; steps finds where a figure changed.
reference is what figures are compared with, one run or the last sound ones, and compare is the one comparison: of diff,
of `--baseline REPORT` and of `--baseline auto` (expected). profile is what good nodes have, and compares a run's nodes
with it. command and arguments are the three commands; diff_page (with ratios, a picture of the speeds) and history_page
are the `--html` of two.
"""
