"""What runs say beside each other: `preflight diff`, `preflight history`, `--baseline auto`, and a site's
profile.

entry makes of a report and its facts what is kept of a run; diff compares two of them, telling puts that into words.
archive is the file or the folder of `--history`, rows is its SQLite, and machines tells which node is which; questions
asks it, lines prints the answers; steps finds where a figure has changed, and expected is the baseline. profile is what
good nodes have, and a run's nodes beside it. command and arguments are the three commands; diff_page (with ratios, a
picture of the speeds) and history_page are the `--html` of two.
"""
