"""Codes that no row has, because no test can make their fault: what it would take, and where the facts of their
tests come from."""

NOT_HERE: dict[str, str] = {
    # code id: reason, and the recorded machine or log, with its source
}
