"""`--rdzv-backend etcd-v2` and `etcd`: whether this node could use the etcd at the endpoint, as torchrun will.

torch's client is python-etcd, which speaks version 2 of etcd's API. Here the same requests are made over plain HTTP, so
that each cause can be named, even if the client is missing.
"""

import http.client
import importlib.util
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from preflight.check import Finding
from preflight.core.finding import Reported
from preflight.rendezvous import codes
from preflight.rendezvous.node import LOOK_S, RendezvousNode
from preflight.rendezvous.server import reported
from preflight.sdk import reachability, tcp

KEYS = {"etcd-v2": "/torch/elastic/rendezvous/{id}", "etcd": "/torchelastic/p2p/run_{id}"}
"""The key under which torch keeps a job there (its modules etcd_rendezvous_backend and etcd_rendezvous); for the second
backend --rdzv-conf etcd_prefix=PREFIX replaces the first two parts."""
ANSWER_S = 5.0
LONGEST = 1 << 20
"""The most bytes read of an answer."""


class EtcdNode(RendezvousNode):
    def run(self) -> list[Reported]:
        """The findings that keep this node from the rendezvous. No other node is asked: they meet in etcd later."""
        request = self.request
        self.say(f"preflight rendezvous: {self.name} to etcd at {request.endpoint}, at most {request.timeout_s:.0f} s")
        return [reported(finding) for finding in self._findings()]

    def _findings(self) -> Iterator[Finding]:
        request = self.request
        found = self.loop.ask(lambda: {"client": importlib.util.find_spec("etcd") is not None}, LOOK_S).value_or({})
        if found.get("client") is False:
            text = f"python-etcd is not installed here, expected it for --rdzv-backend {request.backend}"
            yield self.failure(codes.ETCD_CLIENT, text)
        reach = self.reach(request.host, request.port)
        if tcp.used(reach["connections"]):
            yield from self._judged(self.loop.ask(self._look, 3 * ANSWER_S).value_or({"error": "no answer in time"}))
            return
        first = reach["connections"][:1]
        code = codes.BY_KIND[first[0]["kind"]] if first else codes.UNRESOLVED
        text = f"{reachability.why(reach, request.host, request.port)}, expected etcd at {request.endpoint}"
        yield self.failure(code, text, address=first[0]["address"] if first else "")

    def _look(self) -> dict[str, object]:
        """In a child."""
        try:
            asked = {"version": "/version", "keys": "/v2/keys/"}
            if self.request.run_id:
                asked["job"] = f"/v2/keys{quote(self._job_key())}"
            return {name: self._get(path) for name, path in asked.items()}
        except (OSError, http.client.HTTPException) as error:  # ssl.SSLError is an OSError
            secure = isinstance(error, ssl.SSLError) or self._speaks_tls()
            return {"error": str(error) or type(error).__name__, "secure": secure}

    def _speaks_tls(self) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is asked of it
        try:
            with socket.create_connection((self.request.host, self.request.port), ANSWER_S) as plain:
                context.wrap_socket(plain).close()
        except OSError:
            return False
        return True

    def _get(self, path: str) -> dict[str, object]:
        """Raises OSError and HTTPException."""
        request = self.request
        if request.conf.get("protocol") == "https":
            context = ssl.create_default_context(cafile=request.conf.get("cacert"))
            if request.conf.get("cert"):
                context.load_cert_chain(request.conf["cert"], request.conf.get("key"))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                request.host, request.port, timeout=ANSWER_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(request.host, request.port, timeout=ANSWER_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        return {"status": answer.status, "text": answer.read(LONGEST).decode(errors="replace")}

    def _job_key(self) -> str:
        key = KEYS[self.request.backend].replace("{id}", self.request.run_id)
        prefix = self.request.conf.get("etcd_prefix")
        return f"{prefix.rstrip('/')}/run_{self.request.run_id}" if prefix and self.request.backend == "etcd" else key

    def _judged(self, seen: dict[str, Any]) -> Iterator[Finding]:
        request, secure = self.request, self.request.conf.get("protocol") == "https"
        if "error" in seen and not seen.get("secure"):
            text = f"what listens at {request.endpoint} does not answer over HTTP: {seen['error']}; expected etcd"
            yield self.failure(codes.NOT_ETCD, text)
        elif "error" in seen and secure:
            text = f"no TLS connection to {request.endpoint}: {seen['error']}; expected one, as protocol=https says"
            yield self.failure(codes.ETCD_SECURE, text)
        elif "error" in seen:
            text = f"{request.endpoint} wants TLS, expected plain HTTP as --rdzv-conf does not say protocol=https"
            yield self.failure(codes.ETCD_SECURE, text)
        elif (version := _version(seen["version"])) is None:
            text = f"what listens at {request.endpoint} answers /version with status {seen['version']['status']}"
            yield self.failure(codes.NOT_ETCD, f"{text}, expected etcd's own version")
        elif seen["keys"]["status"] == http.client.NOT_FOUND:
            text = f"etcd {version} at {request.endpoint} does not serve version 2 of its API, which torch needs"
            yield self.failure(codes.ETCD_V2, f"{text}; expected /v2/keys to answer")
        elif seen.get("job", {}).get("status") == http.client.OK:
            yield self._stale(_node(seen["job"]))

    def _stale(self, entry: dict[str, Any]) -> Finding:
        ttl = entry.get("ttl")
        until = f", for {ttl:,} s more" if isinstance(ttl, int) else ""
        text = (
            f"etcd holds a rendezvous of --rdzv-id {self.request.run_id} already{until}; expected none before a start"
        )
        return codes.ETCD_STALE.warn(text, node=self.name, evidence={**self.evidence, "key": self._job_key()})


def _version(answer: dict[str, Any]) -> str | None:
    """etcd's version; None if the answer is not etcd's."""
    try:
        return str(json.loads(answer["text"])["etcdserver"])[:32]
    except (ValueError, KeyError, TypeError):
        return None


def _node(answer: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(answer["text"])["node"])
    except (ValueError, KeyError, TypeError):
        return {}
