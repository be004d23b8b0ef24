"""Matrix products: one with known elements, repeats of one with random numbers, and their speed.

The known one: a[i,k] = x[i] + y[k] and b[k,j] = z[k] + w[j], whole numbers. y and z repeat every 8 places; y, z and y*z
each sum to zero over these, so only rows*x[i]*w[j] is left of sum_k a[i,k]*b[k,j]. With at most 2^13 rows all partial
sums are whole numbers below 2^24, which float32 adds without rounding, in any order; and the results are whole numbers
below 2^7 times a power of two, which bfloat16 can represent. So a sound device is right in every bit.
"""

import math
import statistics

import torch

from preflight.checks.gpu.compute.timing import seconds_of
from preflight.checks.gpu.compute.workload_facts import Facts, Repeats, WrongResult
from preflight.sdk.tensor_bits import digest

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
"""The integer type to compare a type's bits in: there NaN equals NaN, and 0 differs from -0."""
Y = (7, -1, 3, -5, 5, -3, 1, -7)
Z = (7, -3, -7, 3, 1, -5, -1, 5)
LARGEST = 8
"""The largest value of x and w."""


def exercise(facts: Facts, name: str, rows: int, device: torch.device, repeats: int, budget_s: float) -> None:
    """Computes, compares and times products of `rows` rows; the speed is 2 * rows^3 / the repeats' median seconds."""
    dtype = DTYPES[name]
    out = torch.empty((rows, rows), dtype=dtype, device=device)
    torch.mm(*known_factors(rows, dtype, device), out=out)
    if found := first_wrong(f"{name} GEMM", out, known_product(rows, dtype, device)):
        facts["wrong"].append(found)
    left, right = (made_up(rows, dtype, device, seed) for seed in (1, 2))
    facts["repeats"][name] = _repeat(left, right, out, repeats)
    seconds = statistics.median(seconds_of(lambda: torch.mm(left, right, out=out), device, budget_s))
    facts["speeds"][f"{name} GEMM"] = 2 * rows**3 / seconds / 1e12


def known_factors(rows: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = _x_and_w(rows, device)
    y, z = (torch.tensor(values, dtype=torch.float32, device=device).repeat(rows // 8) for values in (Y, Z))
    return (x[:, None] + y).to(dtype), (z[:, None] + w).to(dtype)


def known_product(rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The known product, from its formula, without a matrix product."""
    x, w = _x_and_w(rows, device)
    return (x[:, None] * (w * rows)).to(dtype)


def _x_and_w(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """x and w: whole numbers from -8 to 8 in two orders."""
    places = torch.arange(rows, dtype=torch.float32, device=device)
    return (places * 5) % (2 * LARGEST + 1) - LARGEST, (places * 3 + 1) % (2 * LARGEST + 1) - LARGEST


def made_up(rows: int, dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Numbers of 24 random bits in -1..1, the same on all machines: drawn on the host, as integers."""
    generator = torch.Generator().manual_seed(seed)
    by_row, by_column = torch.randint(2**24, (2, rows), generator=generator, dtype=torch.int32).to(device)
    whole: torch.Tensor = (by_row[:, None] ^ by_column) - 2**23
    return whole.to(dtype) / 2**23


def first_wrong(what: str, got: torch.Tensor, expected: torch.Tensor, peer: str | None = None) -> WrongResult | None:
    """How `got` differs from `expected`, of the same shape, type and device; None if it does not."""
    differ = (got != expected).flatten()
    elements = int(differ.sum())
    if not elements:
        return None
    index = int(differ.to(torch.uint8).argmax())
    values = [float(values.flatten()[index]) for values in (got, expected)]
    first, right = (value if math.isfinite(value) else str(value) for value in values)
    return {
        "what": what,
        "peer": peer,
        "elements": elements,
        "of": differ.numel(),
        "index": index,
        "got": first,
        "expected": right,
    }


def _repeat(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, repeats: int) -> Repeats:
    bits = BITS[out.dtype]
    first = torch.mm(left, right)
    differing = []
    for _ in range(repeats):
        torch.mm(left, right, out=out)
        differing.append(int((out.view(bits) != first.view(bits)).sum()))
    unlike = sum(elements > 0 for elements in differing)
    return {
        "digest": digest([first]),
        "repeats": repeats,
        "unlike": unlike,
        "elements": max(differing, default=0),
        "of": first.numel(),
    }
