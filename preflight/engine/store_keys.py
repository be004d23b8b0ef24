"""Every key of the store that a run writes: the table in docs/design.md, as code.

`run` is the run's id. A log is one key with a counter and one key per entry (event_loop.StoreLog).
"""

SERVED_BY = "preflight/served-by"
"""Whose store it is: its world size and its job (job_owner.py). Set by the rank that serves the store itself, before
any client can write; elsewhere by the first rank 0."""


def arrivals(call: str = "") -> str:
    """The log of all processes that came to this store for this run. `call`: which of several runs in one job."""
    return f"preflight/arrivals{call and f'-{call}'}"


def last_verdict(call: str = "") -> str:
    """The last verdict, for a restart of the job."""
    return f"preflight/last{call and f'-{call}'}"


def welcome(nonce: str) -> str:
    """Rank 0's answer to a process that said hello."""
    return f"preflight/welcome/{nonce}"


def here(run: str) -> str:
    """The log of greeted processes that have answered."""
    return f"{run}/here"


def job(run: str) -> str:
    return f"{run}/job"


def processes(run: str, node_rank: int) -> str:
    """The processes of a node's ranks."""
    return f"{run}/processes/{node_rank}"


def now(run: str) -> str:
    """The one thing to do: a step, an abort, the verdict."""
    return f"{run}/now"


def news(run: str) -> str:
    """A log with an entry for each change of `now`: who awaits the next entry need not poll."""
    return f"{run}/news"


def done(run: str, step: int) -> str:
    """The log of outcomes."""
    return f"{run}/done/{step}"


def collectives(run: str, step: int) -> str:
    """The log of the recorded collectives of ranks that have measured."""
    return f"{run}/collectives/{step}"


def facts(run: str, hash_: str) -> str:
    return f"{run}/facts/{hash_}"


def beat(run: str, rank: int) -> str:
    """A rank's last sign of life."""
    return f"{run}/beat/{rank}"


def left(run: str) -> str:
    """The log of ranks that were told to end."""
    return f"{run}/left"


def group(run: str, generation: int) -> str:
    """The prefix of torch's own keys of a process group."""
    return f"{run}/group/{generation}"


def farewells(run: str, attempt: str, node_rank: int | None = None) -> str:
    """The log of farewells: of all, or of one node's ranks."""
    return f"{run}/bye/{attempt}" if node_rank is None else f"{run}/bye-of-node/{node_rank}/{attempt}"
