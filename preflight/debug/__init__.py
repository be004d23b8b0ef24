"""`preflight debug`: runs a command with the right logging on, and explains how it failed.

job starts and ends it, injected/ records in each rank where it stands, stall sees that nothing moves, stack_sample
asks all ranks where they are.
"""
