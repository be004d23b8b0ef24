"""The names of all keys, so that a misspelled one is refused. What they mean stands in machines.py."""

import re

MACHINE = """
driver cuda nvml count fields fabric.versions init init.hang init.slow excluded.count
excluded.N.bus|uuid|device_id|subsystem_id
"""

GPU = """
handle calls hang slow lost_after
name uuid serial board_part vbios inforom.image|valid minor module_id architecture capability
pci.bus|device_id|subsystem_id memory.total|reserved|used|bus bar1.total|used
compute_mode persistence virtualization driver_model mig.mode|pending|max
ecc.mode|pending ecc.volatile|aggregate.corrected|uncorrected
sram.volatile|aggregate.parity|secded|corrected sram.bucket.l2|sm|pcie|mcu|other sram.threshold
remapped.corrected|uncorrected|pending|failure retired.single|double|pending
pstate reasons reasons.supported temperature temperature.margin
temperature.threshold.shutdown|slowdown|memory_max|gpu_max|acoustic_min|acoustic_current|acoustic_max|gps
power.usage|enforced|limit|default|min|max
clock.graphics|sm|memory|video clock.max|application|default.graphics|sm|memory|video
processes.compute|graphics|mps
utilization.gpu|memory pcie.generation|width|replay|speed|tx|rx pcie.max.generation|width pcie.gpu_max.generation
links links.capable link.N.state|version link.N.remote.type|bus|device_id
link.N.capability.N link.N.error.replay|recovery|crc_flit|crc_data|ecc_data
fabric.state|status|clique|health|summary|cluster field.N field.N.N
topology.N p2p.N.read|write|nvlink|atomics|prop|unknown affinity.cpus affinity.memory affinity.cpus.socket numa
"""


def _pattern(key: str) -> str:
    """`N` is a number, `a|b` one of the two."""
    return r"\.".join(r"\d+" if part == "N" else f"(?:{part})" for part in key.split("."))


_IN_GPU = "|".join(map(_pattern, GPU.split()))
KNOWN = re.compile("|".join([*map(_pattern, MACHINE.split()), rf"gpu\.\d+\.(?:mig\.\d+\.)?(?:{_IN_GPU})"]))


def check(key: str, value: object) -> None:
    assert KNOWN.fullmatch(key), f"no key of the stand-in: {key}"
    assert value is None or not isinstance(value, bool | float), f"{key}: a number or a text, not {value!r}"
    assert "\n" not in str(value), f"{key}: {value!r} has more than one line"
