"""What the check `net.rdma` finds."""

from tests.faults.row import Fault

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
