"""torch's launcher for ranks of this machine only: its store listens on loopback. Imported by the launcher's process
only, since it imports torch.

torch's own rendezvous listen on all addresses, and the usual one (c10d) on two ports.
"""

from torch import distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from preflight.engine.store_client import SERVE_S, connect

NAME = "preflight_loopback"
ADDRESS = "127.0.0.1"


class OneNode(RendezvousHandler):
    """A rendezvous that is complete at once: the job is this node."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store = connect(ADDRESS, 0, SERVE_S, is_master=True, if_loopback=True)

    @property
    def use_agent_store(self) -> bool:
        """The ranks use this store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        for_the_launcher = dist.PrefixStore(f"launcher-{self._run_id}", self._store)  # type: ignore[attr-defined]
        return RendezvousInfo(for_the_launcher, 0, 1, RendezvousStoreInfo(ADDRESS, self._store.port))

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """There is nobody to keep out."""

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


def register() -> str:
    """Makes torch's launcher know it, and returns its name."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return OneNode(parameters.run_id)

    rendezvous_handler_registry.register(NAME, create)
    return NAME
