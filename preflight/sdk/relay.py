"""Passes on what a watched command prints into a pipe. A command that cannot be killed keeps what it has open: whoever
reads the pipe would wait with it for ever. (A terminal or a file has no reader that waits for its end.)"""

import os
import select
import stat
import threading

PIECE, LOOK_MS = 1 << 16, 50


def pipes() -> list["Relay"]:
    """One for stdout and one for stderr where these are pipes; one for both where they are the same."""
    found: dict[tuple[int, int], Relay] = {}
    for number in (1, 2):
        about = os.fstat(number)
        if stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode):
            found.setdefault((about.st_dev, about.st_ino), Relay()).numbers.append(number)
    return [*found.values()]


class Relay:
    """One pipe between the command and this process."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """The descriptors that it stands for."""
        self._source, self._end = os.pipe()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def take(self) -> None:
        """In the child: prints into the pipe from now on."""
        os.close(self._source)  # with a reader of its own it would never hear that the reader is gone
        for number in self.numbers:
            os.dup2(self._end, number)
        os.close(self._end)

    def start(self) -> None:
        """In the parent. Raises RuntimeError where no thread can be started."""
        os.close(self._end)
        self._thread.start()

    def finish(self) -> None:
        """After the child's end: waits until all is passed on, as the child would have."""
        self._ended.set()
        self._thread.join()

    def _pass_on(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        try:
            while True:
                is_last = self._ended.is_set()
                if poll.poll(LOOK_MS):
                    data = os.read(self._source, PIECE)
                    if not data:
                        return
                    while data:
                        data = data[os.write(self.numbers[0], data) :]
                elif is_last:  # another process holds the other end
                    return
        except OSError:  # its reader is gone: the command is to hear of it
            os.close(self._source)
