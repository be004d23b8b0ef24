"""What judging a large job costs: `make bench` prints it, and no test asserts it (machines are noisy)."""

import contextlib
import os
import time
from collections.abc import Iterator

TIMES = "PREFLIGHT_TEST_TIMES"
"""Names the file that `timed` appends to."""


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Notes the seconds of one core that the block takes, where somebody asks for them."""
    start = time.process_time()
    yield
    if path := os.environ.get(TIMES):
        with open(path, "a") as file:
            file.write(f"{what}: {time.process_time() - start:.2f} s\n")
