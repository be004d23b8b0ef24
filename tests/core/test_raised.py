"""Whether an exception came out of a collective."""

from preflight.core import exceptions

OF_GLOO = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")


def test_what_was_raised_while_or_because_a_collective_failed_came_out_of_it() -> None:
    because, meanwhile = ValueError("odd"), ValueError("odd")
    because.__cause__, meanwhile.__context__ = OF_GLOO, OF_GLOO
    assert [exceptions.out_of_a_collective(error) for error in (OF_GLOO, because, meanwhile)] == [OF_GLOO] * 3


def test_another_exception_did_not() -> None:
    ring, other = ValueError("odd"), KeyError("another")
    ring.__context__, other.__context__ = other, ring
    assert exceptions.out_of_a_collective(ring) is None
