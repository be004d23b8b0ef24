"""Where a run's verdict goes besides the report: a history, Prometheus, a URL, the system's log.

arguments has the options; delivery serves all sinks in parallel, with one time limit for all; textfile writes for the
node exporter of Prometheus; post sends the report; log_line writes to syslog. None of them changes a verdict.
"""
