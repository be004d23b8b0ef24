"""What is told, and where.

judging calls a check's judge, result makes its status, report the report of a run, rejudge judges a saved one again.
progress shows a run, console has the words of the screen, formats are Markdown and JUnit, page is report.html,
destinations the files.
"""
