"""What is reported, and where.

judging calls a check's judge; result derives its status; building makes the report of a run, whose records are in
report; rejudge judges a saved one again. report_files writes and reads it: fields, record_fields and plot_fields name
the place of what does not fit. progress shows a run; console has the texts of the screen; formats are Markdown and
JUnit; page is report.html; destinations are the files.
"""
