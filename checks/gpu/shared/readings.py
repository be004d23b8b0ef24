"""What NVML reports, as typed data. None means that driver, card or permission do not provide it, which is normal."""

from typing import NotRequired, TypedDict


class System(TypedDict):
    driver: str | None
    cuda: int | None
    """The newest CUDA that the driver supports; 12040 is 12.4."""
    count: int
    excluded: list[str]
    """Bus ids of GPUs that an administrator excluded (NVreg_ExcludedGpus)."""


class Handle(TypedDict):
    """What identifies a GPU. Cheap, so read first."""

    uuid: str
    bus: str
    """Bus id as in sysfs: 0000:1b:00.0."""
    name: str
    serial: str | None
    minor: int | None
    """N in /dev/nvidiaN."""


class Mig(TypedDict):
    current: bool
    pending: bool
    devices: list[str]
    """UUIDs of the instances that this process can see."""


class GpuIdentity(TypedDict):
    vbios: str | None
    board: str | None
    inforom: str | None
    module: int | None
    """The number of the slot on the baseboard."""
    subsystem: int
    """PCI device and vendor of the board: 0x16c110de."""
    numa: int | None
    """The kernel's NUMA node that the GPU's memory forms (Grace); the kernel also caches files there."""
    memory_total: int | None
    """Bytes, like free and reserved (by the driver itself)."""
    memory_free: int | None
    memory_reserved: int | None
    compute_mode: int | None
    """0 default, 2 prohibited, 3 one process only."""
    mig: Mig | None


AT_WORK = 50
"""Per cent of a sample in which a kernel ran, from which a GPU counts as at work."""


class GpuProcess(TypedDict):
    pid: int
    memory: int | None
    """Bytes."""
    draws: NotRequired[bool]
    """Whether it is listed for graphics alone (type G of nvidia-smi)."""


class Health(TypedDict):
    ecc: bool | None
    ecc_pending: bool | None
    ecc_errors: dict[str, int | None]
    """volatile_corrected, volatile_uncorrected, aggregate_corrected, aggregate_uncorrected."""
    sram: dict[str, int] | None
    """volatile_uncorrected, aggregate_uncorrected, threshold_exceeded."""
    remapped: dict[str, int] | None
    """corrected, uncorrected (rows), pending, failed (0 or 1)."""
    retired: dict[str, int | None]
    """single_bit, double_bit (pages), pending (0 or 1); all None on cards that remap rows."""
    recovery_action: int | None
    """0 none, 1 reset the GPU, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus,
    7 reboot the system; driver r570 or newer."""
    throttle: int | None
    """Mask of clock event reasons."""
    throttled_ns: NotRequired[dict[str, int | None]]
    """Nanoseconds since the driver was loaded, by the names in gpu_clocks.SLOWED; r575 or newer."""
    temperature: int | None
    """Of the GPU in degrees C, like the limits."""
    temperature_limits: dict[str, int | None]
    """shutdown, slowdown, memory_max, gpu_max; only memory_max for GPUs with a margin."""
    temperature_margin: int | None
    """Degrees left to the slowdown."""
    memory_temperature: int | None
    persistence: bool | None
    pstate: int | None
    """0 is the fastest."""
    power_limit_mw: int | None
    """The enforced limit."""
    power_default_mw: int | None
    clocks: dict[str, int | None]
    """MHz: sm, memory, sm_max, memory_max; and sm_application, sm_application_default, those of graphics and memory."""
    bar1: int | None
    """Bytes."""
    memory_bus_bits: NotRequired[int | None]
    memory_total: int | None
    memory_used: int | None
    """Without the driver's own reserve, if the driver distinguishes them."""
    memory_reserved: int | None
    """None if it is included in `memory_used`, 0.3 to 0.9 GiB."""
    processes: list[GpuProcess] | None
    """Compute, graphics and MPS; None if they cannot be listed. Pids are those of this process's namespace or the
    host's."""
    inforom_valid: bool | None
    utilization: NotRequired[int | None]
    """Per cent of the last sample, of 1/6 to 1 s, in which a kernel ran."""
    pcie_kbs: NotRequired[int | None]
    """KB/s over PCIe, both ways, if it is at work."""


class Pcie(TypedDict):
    """The link between the GPU and its slot. Generations 1 to 6, widths in lanes."""

    width: int | None
    width_max: int | None
    generation: int | None
    generation_max: int | None
    """The maximum of GPU and slot together."""
    generation_gpu_max: int | None
    """The GPU's own maximum."""
    virtual: bool | None
    """Whether a hypervisor passed it through to this machine, with made-up bridges above it."""
    pstate: int | None
    """0 is full speed; in power saving the generation drops to 1."""
    replays: int | None
    errors: dict[str, int]
    """Counters since the driver was loaded: correctable, non_fatal, fatal, lane_error, ...; only those available."""


class NvLinkPort(TypedDict):
    link: int
    active: bool | None
    version: int | None
    speed_mbps: int | None
    """MB/s in one direction: 26562."""
    remote: str | None
    """Bus id of the other end."""
    remote_type: str | None
    """gpu, switch, npu or unknown."""
    errors: dict[str, int]
    """Since the driver was loaded: replay, recovery, crc_flit, crc_data, ecc, or for NVLink 5 rcv_errors,
    link_recovery, ...; only those available."""


class Fabric(TypedDict):
    state: int
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int
    """An NVML code: 0 is success. Only meaningful if the state is 3."""
    health_mask: int | None
    """Two bits per condition, 1 true, 2 false; a healthy mask is not 0."""
    health_summary: int | None
    """0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity."""
    clique: int
    cluster: str
    """UUID in hexadecimal; zeros if only GPUs of one node are linked."""


class NvLink(TypedDict):
    links: list[NvLinkPort] | None
    """Empty if the card has none; None if that cannot be read."""
    fabric: Fabric | None


class Peer(TypedDict):
    """How a GPU reaches another on the node."""

    ancestor: int | None
    """Where their paths meet: 0 board, 10 one PCIe switch, 20 several, 30 host bridge, 40 NUMA node, 50 beyond."""
    read: int | None
    """P2P status: 0 works, 1 chipset, 2 GPU, 3 topology does not support it, 4 disabled by registry, 5 not
    supported, 6 unknown; write, nvlink and atomics too."""
    write: int | None
    nvlink: int | None
    atomics: int | None


class GpuPlace(TypedDict):
    peers: dict[str, Peer]
    """By the other GPU's UUID."""
    cpus: list[int] | None
    """Numbers of the near CPUs."""
    numa: int | None
    """The GPU's own memory node (Grace), else None."""
    memory_nodes: list[int] | None
    """NUMA nodes whose memory is near."""
