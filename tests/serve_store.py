"""Serves a store as a launcher's agent does, in a process of its own. Prints its port, and ends when nobody can read
that any more."""

import select
import sys
from datetime import timedelta


def serve() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    print(store.port, flush=True)
    reader = select.poll()
    reader.register(sys.stdout, 0)
    reader.poll()  # POLLERR: the test has closed the pipe, or died


if __name__ == "__main__":
    serve()
