"""Copies of known bits: between host and device, on the device, and between GPUs."""

import statistics
from functools import partial

import torch

from preflight.checks.gpu.compute.gemm import first_wrong
from preflight.checks.gpu.compute.timing import seconds_of
from preflight.checks.gpu.compute.workload_facts import Facts


def uuid_of(device: torch.device) -> str | None:
    """A device's UUID as NVML writes it: torch omits the prefix."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None) if device.type == "cuda" else None
    if uuid is None or str(uuid).startswith(("GPU-", "MIG-")):
        return uuid and str(uuid)
    return f"{'MIG' if ' MIG ' in torch.cuda.get_device_properties(device).name else 'GPU'}-{uuid}"


def pattern(size: int, device: torch.device) -> torch.Tensor:
    """`size` bytes, at most 2^26: distinct 32-bit integers."""
    places = torch.arange(size // 4, dtype=torch.int32, device=device)
    return places ^ (places << 7)


def with_host(facts: Facts, device: torch.device, size: int, budget_s: float) -> None:
    """Copies from and to pinned memory; the fastest repeat counts, since ranks share the host's memory."""
    host, pinned = torch.device("cpu"), device.type == "cuda"
    sent = pattern(size, host).pin_memory() if pinned else pattern(size, host)
    back = torch.zeros(sent.shape, dtype=sent.dtype, pin_memory=pinned)
    copied = torch.zeros(sent.shape, dtype=sent.dtype, device=device)
    copied.copy_(sent)
    _note_wrong(facts, "H2D copy", copied, pattern(size, device))
    back.copy_(pattern(size, device))
    _note_wrong(facts, "D2H copy", back, pattern(size, host))
    for name, target, source in (("H2D copy", copied, sent), ("D2H copy", back, copied)):
        seconds = seconds_of(partial(target.copy_, source, non_blocking=True), device, budget_s)
        facts["speeds"][name] = size / min(seconds) / 1e9


def on_device(facts: Facts, device: torch.device, size: int, budget_s: float) -> None:
    """Copies on the device. The speed counts each byte twice: it is read and written."""
    sent = pattern(min(size, 2**26), device).repeat(max(1, size // 2**26))
    copied = torch.zeros_like(sent)
    copied.copy_(sent)
    _note_wrong(facts, "device copy", copied, sent)
    seconds = seconds_of(partial(copied.copy_, sent), device, budget_s)
    facts["speeds"]["device copy"] = 2 * size / statistics.median(seconds) / 1e9


def with_peer(facts: Facts, device: torch.device, peer: torch.device, size: int, budget_s: float) -> None:
    """Copies to the peer and back. If memory cannot be allocated on the peer, this GPU is not at fault: the peer's own
    rank checks that."""
    uuid = uuid_of(peer)
    try:
        remote = torch.zeros(size // 4, dtype=torch.int32, device=peer)
    except RuntimeError as error:
        facts.setdefault("no_memory", []).append(f"P2P copies with {uuid}: {str(error).partition(chr(10))[0]}")
        return
    local = torch.zeros(size // 4, dtype=torch.int32, device=device)
    for of, to, target in ((device, peer, remote), (peer, device, local)):
        name, sent = f"P2P copy {of.index} to {to.index}", pattern(size, of)
        target.copy_(sent)
        _note_wrong(facts, name, target, pattern(size, to), uuid)
        seconds = seconds_of(partial(target.copy_, sent, non_blocking=True), of, budget_s)  # on the sender's stream
        facts["speeds"][name] = size / statistics.median(seconds) / 1e9


def _note_wrong(facts: Facts, what: str, got: torch.Tensor, expected: torch.Tensor, peer: str | None = None) -> None:
    if found := first_wrong(what, got, expected, peer):
        facts["wrong"].append(found)
