"""What gpu.released finds. It needs a machine that gets worse in mid-run: tests/checks/gpu/test_released.py."""

from typing import Any

from tests.faults.gpu_row import GpuFault
from tests.faults.row import Fault, elsewhere

_R = "gpu.released"


def _late(name: str, story: str, made: str, *finds: str, gpu: int | None, **more: Any) -> Fault:
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    culprit = {} if gpu is None else {"gpu": gpu}
    return elsewhere(f"released_{name}", story, made, *finds, culprit=culprit, exit_code=exit_code, world=1, **more)


ALL: tuple[GpuFault, ...] = ()
ELSEWHERE = (
    _late("ecc", "A GPU has uncorrectable memory errors during the run.", "the driver counts 2 more",
          f"fail {_R}.uncorrected", gpu=3,
          says="uncorrectable memory errors rose during the run: volatile 0 to 2; expected none"),
    _late("nvlink", "An NVLink recovers during the run.", "the driver counts 3 more", f"warn {_R}.nvlink_errors",
          gpu=5, says="NVLink got worse during the run: link 7: recovery 0 to 3; expected no errors"),
    _late("pcie", "A GPU's PCIe link repeats many packets during the run.", "the driver counts 5,000 more",
          f"warn {_R}.pcie_errors", gpu=1, says="5,000 PCIe replays in "),
    _late("row", "A row of a GPU's memory is taken out of use during the run.", "the driver says that it waits",
          f"warn {_R}.corrected", gpu=0,
          says="memory was taken out of use during the run: pending remappings 0 to 1; expected none"),
    _late("recovery", "The driver asks for a GPU's reset during the run.", "recovery action 1", f"fail {_R}.recovery",
          gpu=4, says="the driver asks for recovery action 1 after the run, expected 0"),
    _late("throttled", "A GPU gets too hot only when it is at work.", "the driver counts 9 s more of lowered clocks",
          f"warn {_R}.throttled", gpu=6, says="9.0 s by HW Thermal Slowdown; expected less than 0.5 s"),
    _late("process", "A process holds a GPU after the run.", "the driver lists a process that began in mid-run",
          f"warn {_R}.process", gpu=2, says="the GPU is held by a process that cannot be seen from here (pid 4194300"),
    _late("memory", "Memory of a GPU is in use after the run, nobody knows by whom.", "the driver counts 2 GiB more",
          f"warn {_R}.memory", gpu=7,
          says="2,048 MiB of memory are in use 0.3 s after the run, expected 0 as before it; no listed process"),
    _late("shm", "A file is left in /dev/shm.", "a process leaves it and ends", f"warn {_R}.shm", gpu=None,
          says="1 file of 0.0 MiB, created during the run, are left in /dev/shm (torch_"),
    _late("driver", "The driver stops working during the run.", "nvmlInit says that it is not loaded",
          f"fail {_R}.no_answer", gpu=None, says="NVML does not work: Driver Not Loaded, expected it to work as at"),
    _late("lost", "A GPU falls off the bus during the run.", "every call says lost", f"fail {_R}.no_answer", gpu=6,
          says="GPU 6 at 0000:"),
)  # fmt: skip
