"""Why a GPU's clocks are lower than they could be: bits of NVML's clock event reasons that no healthy GPU has."""

SW_THERMAL, HW_SLOWDOWN, HW_THERMAL, BRAKE = 0x20, 0x8, 0x40, 0x80
SLOWED = {
    HW_THERMAL: "HW Thermal Slowdown",
    BRAKE: "HW Power Brake",
    SW_THERMAL: "SW Thermal Slowdown",
    HW_SLOWDOWN: "HW Slowdown",
}
"""In the words of nvidia-smi. Others are healthy: idle 0x1, application clocks 0x2, the power cap 0x4, sync boost
0x10, the display's 0x100."""
