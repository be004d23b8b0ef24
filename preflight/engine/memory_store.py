"""A store for a world of one process: a dictionary, so that `--level quick` needs no torch."""

from typing import Any

from preflight.engine.child import Child


class MemoryStore:
    """Answers like the store client, immediately."""

    child: Child | None = None

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def request(self, do: str, **arguments: Any) -> Any:
        """See store_client.py for the operations."""
        key = arguments.get("key", "")
        if do in ("put", "put_once"):
            self._values.setdefault(key, arguments["value"])
            if do == "put":
                self._values[key] = arguments["value"]
            return None
        if do == "append":
            self._counts[key] = self._counts.get(key, 0) + 1
            self._values[f"{key}/{self._counts[key]}"] = arguments["value"]
            return self._counts[key]
        if do == "await_key":
            return key in self._values
        if do == "count":
            return self._counts.get(key, 0)
        if do == "delete":
            return [self._values.pop(name, None) for name in arguments["keys"]]
        return [self._values.get(name) for name in arguments["keys"]]

    def tell(self, do: str, **arguments: Any) -> None:
        """Like `request`, without an answer; a ward needs nothing where there is no store client."""
        if do != "ward":
            self.request(do, **arguments)

    def end(self) -> None:
        """Nothing to end."""
