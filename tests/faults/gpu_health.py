"""What gpu.health finds."""

from tests.faults.gpu_row import GpuFault, on_machines
from tests.faults.row import Fault

_H = "gpu.health"
_FAILED = f"fail {_H}.uncorrected"
_PROCESS = f"warn {_H}.process"
_NO_SUCH_PID = 2**22 + 1
"""Beyond the kernel's highest: as a host's process looks in a container."""

MEMORY = (
    *on_machines(("h100_nvswitch", "v100_cube_mesh"), "ecc_volatile", "A GPU had uncorrectable memory errors.",
                 "the driver says 2", {"gpu.3.ecc.volatile.uncorrected": 2}, _FAILED, culprit={"gpu": 3},
                 says="2 uncorrectable memory errors since the driver was loaded, expected none"),
    *on_machines(("b200_nvswitch",), "ecc_sram", "A GPU had an uncorrectable error on its chip.", "1 in SRAM",
                 {"gpu.3.sram.volatile.secded": 1, "gpu.3.ecc.volatile.uncorrected": 1, "gpu.3.field.230": 1}, _FAILED,
                 culprit={"gpu": 3}, says="1 uncorrectable memory error since"),
    *on_machines(("h100_nvswitch",), "ecc_event", "A GPU had an uncorrectable error, whose row waits for a reset.",
                 "all that the driver then says", {
                     "gpu.5.ecc.volatile.uncorrected": 1, "gpu.5.ecc.aggregate.uncorrected": 1, "gpu.5.field.230": 4,
                     "gpu.5.remapped.uncorrected": 1, "gpu.5.remapped.pending": 1,
                 }, _FAILED, culprit={"gpu": 5}, says="memory rows wait to be remapped at the next reset"),
    *on_machines(("h100_nvswitch",), "sram_threshold", "A GPU's SRAM has failed too often.", "the flag, and 5 errors",
                 {"gpu.0.sram.threshold": 1, "gpu.0.sram.aggregate.parity": 5}, f"fail {_H}.sram", culprit={"gpu": 0},
                 says="the SRAM has exceeded the threshold of its errors (5 uncorrectable errors)"),
    *on_machines(("a100_nvswitch",), "row_failed", "A row of a GPU's memory could not be remapped.", "the flag",
                 {"gpu.7.remapped.failure": 1}, f"fail {_H}.remapped", culprit={"gpu": 7},
                 says="a memory row could not be remapped, expected spare rows"),
    *on_machines(("b200_nvswitch", "old_driver"), "row_pending", "A row of a GPU's memory waits.", "the flag",
                 {"gpu.2.remapped.pending": 1}, f"warn {_H}.remapped", culprit={"gpu": 2}, says="wait to be remapped"),
    *on_machines(("a100_nvswitch",), "rows_many", "A GPU has used up its spare rows.", "512 remapped rows",
                 {"gpu.2.remapped.uncorrected": 512}, f"warn {_H}.remapped", culprit={"gpu": 2},
                 says="512 memory rows are remapped, expected fewer than 512"),
    *on_machines(("v100_cube_mesh",), "page_pending", "A page of a GPU's memory waits to be retired.", "the flag",
                 {"gpu.1.retired.pending": 1}, f"warn {_H}.retired", culprit={"gpu": 1}, says="wait to be retired"),
    *on_machines(("v100_cube_mesh",), "pages_many", "A GPU has retired almost all the pages that it can.",
                 "60 and 3 retired pages", {"gpu.1.retired.single": 60, "gpu.1.retired.double": 3},
                 f"warn {_H}.retired", culprit={"gpu": 1}, says="63 memory pages are retired, 3 after double-bit"),
    *on_machines(("a100_nvswitch",), "ecc_flood", "A GPU corrects a flood of errors.", "the driver says 30 million",
                 {"gpu.4.ecc.volatile.corrected": 30_000_000}, f"warn {_H}.corrected", culprit={"gpu": 4},
                 says="30,000,000 corrected memory errors"),
    *on_machines(("h100_nvswitch",), "recovery_reboot", "The driver asks for a reboot.", "recovery action 2",
                 {"gpu.6.field.230": 2}, f"fail {_H}.recovery", culprit={"gpu": 6}, says="a reboot of the node"),
    *on_machines(("h100_nvswitch",), "recovery_drain", "The driver asks to reset a GPU when its work has ended.",
                 "recovery action 4, and a row that waits", {"gpu.6.field.230": 4, "gpu.6.remapped.pending": 1},
                 f"fail {_H}.recovery", culprit={"gpu": 6}, says="expected none: memory rows wait to be remapped"),
    *on_machines(("a100_nvswitch", "consumer"), "inforom", "A GPU's InfoROM is corrupt.", "the driver says so",
                 {"gpu.1.inforom.valid": "!14"}, f"warn {_H}.inforom", culprit={"gpu": 1}, says="is corrupt"),
)  # fmt: skip

HEAT = (
    *on_machines(("h100_nvswitch",), "hot", "A GPU is at its limit of temperature.", "no degree is left",
                 {"gpu.2.temperature": 87, "gpu.2.temperature.margin": 0, "gpu.2.reasons": 0x20}, f"warn {_H}.hot",
                 culprit={"gpu": 2}, says="the GPU is at 87 °C with 0 degrees left to its limit"),
    *on_machines(("a100_nvswitch",), "hot", "A GPU is beyond its limit of temperature.", "90 °C, and slowed down by it",
                 {"gpu.2.temperature": 90, "gpu.2.reasons": 0x48}, f"warn {_H}.hot", culprit={"gpu": 2},
                 says="the GPU is at 90 °C, expected less than its limit of 85 °C"),
    *on_machines(("v100_cube_mesh",), "hot_memory", "A GPU's memory is beyond its limit of temperature.", "90 °C",
                 {"gpu.6.field.82": 90}, f"warn {_H}.hot", culprit={"gpu": 6}, says="the memory is at 90 °C"),
    *on_machines(("h100_nvswitch", "old_driver", "consumer"), "power_brake", "A GPU is slowed down by a power brake.",
                 "the reasons say so", {"gpu.0.reasons": 0x88}, f"warn {_H}.throttled", culprit={"gpu": 0},
                 says="the clocks are throttled: HW Power Brake (SM clock"),
    *on_machines(("b200_nvswitch",), "slowdown", "A GPU is slowed down by the hardware.", "the reasons say so",
                 {"gpu.0.reasons": 0x9}, f"warn {_H}.throttled", culprit={"gpu": 0}, says="throttled: HW Slowdown"),
)  # fmt: skip

SETTINGS = (
    *on_machines(("h100_nvswitch",), "persistence", "Persistence mode is off on one GPU.", "the mode",
                 {"gpu.3.persistence": 0}, f"warn {_H}.persistence", culprit={"gpu": 3},
                 says="persistence mode is off, expected on as on 7 of 8 GPUs of the node"),
    *on_machines(("pcie_two_sockets",), "ecc_off", "ECC is off on one GPU.", "the mode",
                 {"gpu.1.ecc.mode": 0, "gpu.1.ecc.pending": 0}, f"warn {_H}.ecc_mode", culprit={"gpu": 1},
                 says="the ECC mode is off, expected on as on 3 of 4"),
    *on_machines(("a100_nvswitch",), "ecc_pending", "ECC will be off on one GPU.", "the pending mode",
                 {"gpu.1.ecc.pending": 0}, f"warn {_H}.ecc_mode", culprit={"gpu": 1},
                 says="the ECC mode is on (off after the next reset), expected on"),
    *on_machines(("a100_nvswitch", "v100_cube_mesh"), "clock_application", "A GPU's clocks were set low.",
                 "the application clock", {"gpu.4.clock.application.sm": 600}, f"warn {_H}.clock", culprit={"gpu": 4},
                 says="the SM application clock is 600 MHz, expected 1,2"),
    *on_machines(("h100_nvswitch", "pcie_two_sockets"), "clock_application_graphics", "A GPU's clocks were set low.",
                 "the application clock of graphics, by which drivers tell that of the SMs, too",
                 {"gpu.2.clock.application.graphics": 1000}, f"warn {_H}.clock", culprit={"gpu": 2},
                 says="the SM application clock is 1,000 MHz, expected "),
    *on_machines(("a100_nvswitch",), "clock_application_memory", "A GPU's memory clock was set low.",
                 "the application clock", {"gpu.6.clock.application.memory": 810}, f"warn {_H}.clock",
                 culprit={"gpu": 6}, says="the memory application clock is 810 MHz, expected 1,593 MHz as on 7 of 8"),
    *on_machines(("v100_cube_mesh",), "clock_default", "A GPU's clocks are lower than its siblings', though nobody has "
                 "set them.", "the application clock and its default",
                 {"gpu.7.clock.application.sm": 900, "gpu.7.clock.default.sm": 900}, f"warn {_H}.clock",
                 culprit={"gpu": 7}, says="the SM application clock is 900 MHz, expected"),
    *on_machines(("b200_nvswitch",), "clock_max", "A GPU has a lower top clock than its siblings.", "the top clock",
                 {"gpu.4.clock.max.sm": 1500}, f"warn {_H}.clock", culprit={"gpu": 4},
                 says="the highest SM clock is 1,500 MHz, expected "),
    *on_machines(("h100_nvswitch",), "clock_memory", "A GPU's memory is clocked low.", "its clock in P0",
                 {"gpu.4.clock.memory": 1593}, f"warn {_H}.clock", culprit={"gpu": 4},
                 says="the memory clock in P0 is 1,593 MHz, expected 2,619 MHz as on 7 of 8"),
    *on_machines(("pcie_two_sockets", "h100_nvswitch"), "power_limit", "A GPU's power limit was set low.", "200 W",
                 {"gpu.2.power.enforced": 200_000}, f"warn {_H}.power_limit", culprit={"gpu": 2},
                 says="the power limit is 200 W, expected"),
    *on_machines(("consumer",), "power_limit", "One of two GPUs has a low power limit.", "200 W",
                 {"gpu.1.power.enforced": 200_000}, f"warn {_H}.power_limit", culprit={},
                 says="the power limit differs: 450 W on GPU 0, 200 W on GPU 1 of "),
    *on_machines(("a100_nvswitch",), "bar1", "A GPU has a smaller BAR1 than its siblings.", "256 MiB",
                 {"gpu.2.bar1.total": 2**28}, f"warn {_H}.bar1", culprit={"gpu": 2},
                 says="the size of BAR1 is 256 MiB, expected"),
)  # fmt: skip

IN_USE = (
    *on_machines(("h100_nvswitch", "old_driver"), "process", "A process of somebody else uses a GPU.",
                 "the driver lists it",
                 {"gpu.5.processes.compute": f"{_NO_SUCH_PID}:{20 * 2**30}", "gpu.5.memory.used": 20 * 2**30},
                 _PROCESS, culprit={"gpu": 5}, says=f"(pid {_NO_SUCH_PID}, 20 GiB); expected no process"),
    *on_machines(("container", "old_driver"), "memory_used", "Memory is in use, and nobody has it.", "3 GiB",
                 {"gpu.1.memory.used": 3 * 2**30}, f"warn {_H}.memory_used", culprit={"gpu": 1},
                 says=" are in use, and no process is listed that holds it; expected at most "),
    *on_machines(("h100_nvl",), "memory_used_unlisted", "Memory is in use, and processes cannot be listed.", "3 GiB",
                 {"gpu.0.memory.used": 3 * 2**30, "gpu.0.processes.compute": "!4"}, f"warn {_H}.memory_used",
                 culprit={"gpu": 0}, says="processes cannot be listed here"),
)  # fmt: skip

_BUSY = {"gpu.1.utilization.gpu": 100, "gpu.1.memory.used": 624 * 2**20, "gpu.1.clock.sm": 2520, "gpu.1.pstate": 0}
SPINNING = (
    *on_machines(("consumer",), "spins", "A GPU works for nobody: what hung has left it at 100 %.",
                 "utilization and 624 MiB without a process", _BUSY, f"warn {_H}.spins", culprit={"gpu": 1},
                 says="at work in two looks, 100 and 100 %, and no process is listed; 624 MiB of its memory are in "
                 "use, its SM clock is 2,520 of 3,120 MHz, nothing goes over PCIe"),
    *on_machines(("h100_nvswitch",), "spins", "A GPU works, and processes cannot be listed.", "its utilization",
                 {"gpu.4.utilization.gpu": 97, "gpu.4.processes.compute": "!4"}, f"warn {_H}.spins", culprit={"gpu": 4},
                 says="97 and 97 %, and processes cannot be listed here"),
    *on_machines(("consumer",), "browser", "A browser draws on the card that has the screen.", "700 MiB, type G",
                 {"gpu.0.processes.graphics": f"{_NO_SUCH_PID}:{700 * 2**20}", "gpu.0.memory.used": 700 * 2**20,
                  "gpu.0.utilization.gpu": 60}, culprit={}),
    *on_machines(("consumer",), "drawing", "A program that draws holds much of the card.", "3 GiB, type G",
                 {"gpu.0.processes.graphics": f"{_NO_SUCH_PID}:{3 * 2**30}", "gpu.0.memory.used": 3 * 2**30},
                 _PROCESS, culprit={"gpu": 0}, says="3 GiB); expected no process"),
)  # fmt: skip

TWO = (
    *on_machines(("h100_nvswitch",), "ecc_and_hot", "A GPU had uncorrectable errors, and another is hot.", "as above",
                 {"gpu.1.ecc.volatile.uncorrected": 1, "gpu.6.temperature.margin": -1}, _FAILED, f"warn {_H}.hot",
                 culprit={"gpu": 6}, says="-1 degrees left"),
    *on_machines(("a100_nvswitch",), "brake_and_process", "A GPU is in use and slowed down by a power brake.",
                 "as above", {"gpu.2.reasons": 0x80, "gpu.2.processes.mps": f"{_NO_SUCH_PID}:-"},
                 f"warn {_H}.throttled", _PROCESS, variant=True, culprit={"gpu": 2}, says="HW Power Brake"),
    *on_machines(("b200_nvswitch",), "hang_and_ecc", "A GPU hangs, and another had uncorrectable errors.",
                 "the counters are never told", {
                     "gpu.1.hang": "nvmlDeviceGetTotalEccErrors", "gpu.5.ecc.volatile.uncorrected": 1,
                 }, _FAILED, f"fail {_H}.no_answer", variant=True, culprit={"gpu": 5},
                 says="nvmlDeviceGetTotalEccErrors: no answer"),
)  # fmt: skip

ANSWERS = (
    *on_machines(("h100_nvswitch",), "all_ones", "A counter reads as all ones: nobody answers for it.", "2^64 - 1",
                 {"gpu.3.ecc.volatile.corrected": 2**64 - 1}, culprit={}),
    *on_machines(("h100_nvswitch",), "odd_answers", "A GPU answers with errors (ERR! in nvidia-smi).", "unknown errors",
                 {"gpu.3.temperature": "!999", "gpu.3.ecc.volatile.uncorrected": "!999"}, f"warn {_H}.no_answer",
                 culprit={"gpu": 3}, says="GPU 3 answers with errors: nvmlDeviceGetTotalEccErrors: Unknown Error"),
)  # fmt: skip

ALL: tuple[GpuFault, ...] = (*ANSWERS, *MEMORY, *HEAT, *SETTINGS, *IN_USE, *SPINNING, *TWO)
ELSEWHERE: tuple[Fault, ...] = ()
