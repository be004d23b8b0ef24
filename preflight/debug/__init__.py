"""`preflight debug`: runs a command with the right logging on, and explains how it failed.

job starts and ends it, injected/ records in each rank what it raised, ranks watches them, stall notices that nothing
moves, and stack_sample asks all ranks where they are.
"""
