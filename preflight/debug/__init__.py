"""`preflight debug`: runs a job with the right logging on, and explains it when it fails."""
