"""What gpu.inventory finds, and the GPUs that do not answer."""

from tests.faults.gpu_row import GpuFault, on_machines
from tests.faults.row import Fault, elsewhere

_I, _NO_ANSWER = "gpu.inventory", "fail gpu.inventory.no_answer"

ALL: tuple[GpuFault, ...] = (
    *on_machines(("h100_nvswitch", "consumer"), "gpu_hangs", "A GPU hangs when it is looked up.", "it never answers",
                 {"gpu.1.hang": "handle"}, _NO_ANSWER, culprit={"gpu": 1}, says="hangs"),
    *on_machines(("a100_nvswitch",), "gpu_hangs_later", "A GPU hangs when its VBIOS is read.", "it never answers",
                 {"gpu.5.hang": "nvmlDeviceGetVbiosVersion"}, _NO_ANSWER, culprit={"gpu": 5},
                 says="nvmlDeviceGetVbiosVersion: no answer within"),
    *on_machines(("b200_nvswitch", "old_driver"), "gpu_lost", "A GPU has fallen off the bus.", "every call says lost",
                 {"gpu.6.calls": "!15"}, _NO_ANSWER, culprit={"gpu": 6}, says="GPU 6 at 0000:"),
    *on_machines(("h100_nvswitch",), "two_gpus_lost", "Two GPUs have fallen off the bus, one hangs.", "as above",
                 {"gpu.2.calls": "!15", "gpu.6.calls": "!15", "gpu.7.hang": "nvmlDeviceGetUUID"}, _NO_ANSWER,
                 culprit={"gpu": 7}, says="is lost (fallen off the bus)"),
    *on_machines(("v100_cube_mesh",), "gpu_needs_reset", "A GPU needs a reset.", "every call says so",
                 {"gpu.0.calls": "!16"}, _NO_ANSWER, culprit={"gpu": 0}, says="needs a reset"),
    *on_machines(("h100_nvswitch", "consumer"), "driver_not_loaded", "The driver is not loaded.", "nvmlInit says so",
                 {"init": "!9"}, _NO_ANSWER, culprit={}, says="nvmlInit: Driver Not Loaded"),
    *on_machines(("a100_nvswitch",), "driver_mismatch", "The library is of another version than the driver.",
                 "nvmlInit says so", {"init": "!18"}, _NO_ANSWER, culprit={}, says="mismatch"),
    *on_machines(("pcie_two_sockets",), "memory_size", "A GPU has less memory than its siblings.", "40 GiB",
                 {"gpu.2.memory.total": 40 * 2**30}, f"fail {_I}.memory", culprit={"gpu": 2},
                 says="40 GiB of memory, expected"),
    *on_machines(("pcie_two_sockets",), "model", "GPUs of a node are of two models.", "another name",
                 {"gpu.2.name": "NVIDIA L40"}, f"warn {_I}.model", culprit={}, says="NVIDIA L40"),
    *on_machines(("a100_nvswitch",), "vbios", "A GPU has another VBIOS than its siblings.", "another version",
                 {"gpu.2.vbios": "92.00.01.00.01"}, f"warn {_I}.vbios", culprit={"gpu": 2},
                 says="VBIOS 92.00.01.00.01, expected"),
    *on_machines(("pcie_two_sockets",), "free_memory", "A GPU has less free memory than was asked for.",
                 "`--set gpu.inventory.min_memory_gib=500`", {}, f"fail {_I}.free_memory", culprit={"gpu": 2},
                 says="are free, expected at least 500 GiB",
                 arguments=("--set", f"{_I}.min_memory_gib=500")),
    *on_machines(("h100_nvswitch",), "names_none", "CUDA_VISIBLE_DEVICES names a GPU that is not there.",
                 "`CUDA_VISIBLE_DEVICES=0,9`", {}, f"warn {_I}.not_visible",
                 culprit={"rank": 0, "variable": "CUDA_VISIBLE_DEVICES"}, says="9 names none of the 8 GPUs here",
                 environ={"CUDA_VISIBLE_DEVICES": "0,9"}),
    *on_machines(("h100_nvswitch",), "gpu_missing", "The driver does not list a GPU that is on the bus.",
                 "NVML counts 7 of 8", {"count": 7}, f"fail {_I}.missing", culprit={"device": "0000:df:00.0"},
                 says="NVML does not list, expected all 8"),
)  # fmt: skip
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/gpu/test_gpu_faults.py
    elsewhere("gpu_excluded", "An administrator has excluded a GPU (NVreg_ExcludedGpus).", "NVML lists 7 of 8, and it",
              f"info {_I}.excluded", culprit={"device": "0000:df:00.0"}, exit_code=0, world=1,
              says="the GPU at 0000:df:00.0 is excluded"),
    # tests/checks/gpu/test_probing.py
    elsewhere("cuda_count", "CUDA gives torch fewer GPUs than NVML lists.", "a torch that counts 7 of 8",
              f"fail {_I}.torch_count", culprit={"rank": 0}, says="CUDA gives torch 7 GPUs, expected 8"),
    elsewhere("cuda_raises", "CUDA does not start.", "a torch whose `device_count` raises", _NO_ANSWER, culprit={},
              says="CUDA does not start: torch.cuda.device_count"),
)  # fmt: skip
