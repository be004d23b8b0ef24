"""`preflight explain`: why did this job fail? Logs, dumps and reports in, a cause with its culprit out."""
