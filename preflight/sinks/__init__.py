"""Where a run's verdict goes beside the report: a history, Prometheus, a URL, the system's log.

arguments has the options; delivery serves all of them side by side, with one bound for all; textfile writes for the
node exporter of Prometheus, post sends the report, log_line writes to syslog. None of them changes a verdict.
"""
