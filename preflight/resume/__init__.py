"""`preflight resume`: stops the user's training as a scheduler would, resumes it, and compares it with one that never
stopped.

training starts the command, and ends it where its ranks wait (debug/injected/preflight_resume_rank.py records them);
steps reads what they recorded; control says whether the training repeats itself; point finds where it went on; compare
and data say what departs (departure); course holds all three trainings; judge makes the findings, codes has their
codes; console and command show them.
"""
