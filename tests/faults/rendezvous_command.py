"""What the command `preflight rendezvous` finds."""

from tests.faults.row import Fault

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
