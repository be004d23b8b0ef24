"""What runs say beside each other: `preflight diff`, `preflight history`, and `--baseline auto`.

entry makes of a report and its facts what is kept of a run; diff compares two of them, telling puts that into words.
archive is the file or the folder of `--history`, and rows is its SQLite; questions asks it, lines prints the answers;
steps finds where a figure has changed, and expected is the baseline. command and arguments are the two commands;
diff_page (with ratios, a picture of the speeds) and history_page are their `--html`.
"""
