"""What is reported, and where.

judging calls a check's judge; result derives its status; report builds the report of a run; rejudge judges a saved one
again. progress shows a run; console has the texts of the screen; formats are Markdown and JUnit; page is report.html;
destinations are the files.
"""
