"""The built-in checks, one a file: checks/<family>/<name>.py is the check <family>.<name>."""
