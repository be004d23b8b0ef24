"""How often a PCIe link may repeat a packet."""

from preflight.checks.gpu.shared.readings import Pcie

GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""A second and lane, by generation (PCI Express Base Specification 6.0)."""
ERROR_RATE = 1e-12
"""Of bits: the most that the specification allows a lane. NVIDIA's DCGM has the same limits: 0.48 a minute and lane at
generation 3, 0.96 at 4, 1.92 at 5, 3.84 at 6."""


def most_a_minute(link: Pcie) -> float | None:
    """Where every wrong bit costs a replay. At the generation that the link may run at, since it counts at all."""
    width, generation = link["width"], link["generation_max"] or link["generation"]
    if not width or generation not in GIGATRANSFERS:
        return None
    return width * GIGATRANSFERS[generation] * 1e9 * 60 * ERROR_RATE
