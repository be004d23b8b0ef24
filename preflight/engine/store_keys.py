"""Every key of the store that a run writes: the table in docs/design.md, as code.

`run` is the run's id. A log is a key of its own and one for each entry (event_loop.StoreLog).
"""

SERVED_BY = "preflight/served-by"
"""What a rank 0 that serves the store itself says before anybody else can: the size of its world."""


def arrivals(call: str = "") -> str:
    """The log of all that came to this store for this run. `call`: which of several runs in one job."""
    return f"preflight/arrivals{call and f'-{call}'}"


def last_verdict(call: str = "") -> str:
    """What a restart of the job finds."""
    return f"preflight/last{call and f'-{call}'}"


def welcome(nonce: str) -> str:
    """Where rank 0 answers a process."""
    return f"preflight/welcome/{nonce}"


def here(run: str) -> str:
    """The log of greeted processes that live."""
    return f"{run}/here"


def job(run: str) -> str:
    return f"{run}/job"


def now(run: str) -> str:
    """The one thing to do: a step, an abort, the verdict."""
    return f"{run}/now"


def done(run: str, step: int) -> str:
    """The log of outcomes."""
    return f"{run}/done/{step}"


def collectives(run: str, step: int) -> str:
    """The log of what ranks that have measured had recorded of their collectives."""
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
    """Torch's own keys of a process group begin with it."""
    return f"{run}/group/{generation}"


def farewells(run: str, attempt: int, node_rank: int | None = None) -> str:
    """The log of farewells: of all, or of one node's ranks."""
    return f"{run}/bye/{attempt}" if node_rank is None else f"{run}/bye-of-node/{node_rank}/{attempt}"
