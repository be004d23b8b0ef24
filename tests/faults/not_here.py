"""Codes that no row has, because no test can make their fault: what it would take, and where the facts of their
tests come from."""

NOT_HERE: dict[str, str] = {
    # code id: reason, and the recorded machine or log, with its source
    "comm.paths.not_timed": "A part that there was no time for: how much time a run has depends on the machine. Judged "
    "in tests/checks/test_in_part.py.",
    "data.resume.not_compared": "Nothing is wrong: random content cannot be compared. A real loader shows it in "
    "tests/checks/data/test_resume.py.",
    "env.software.two_nccls": "A torch for CPUs, which the tests have, loads no NCCL. Judged in "
    "tests/checks/env/test_software.py.",
    "gpu.compute.below_own": "It takes a GPU, and one that is slow. Judged in tests/checks/gpu/test_own_limits.py with "
    "the figures that an H100 gave (2,973 and 55 GB/s).",
    "node.leftovers.hidden_processes": "Another user than root cannot read the Python of these tests everywhere. "
    "Judged in tests/checks/test_in_part.py.",
    "train.checkpoint.not_made": "Forms that need a shared folder or gloo, asked for where there is none: over several "
    "machines, or on GPUs. Judged in tests/checks/train/test_checkpoint.py.",
    "train.pp.not_run": "The same judge finds it under FSDP.",
    "train.speed.not_timed": "As comm.paths.not_timed.",
    "train.expert.not_exchanged": "An expert's gradient comes from the tokens of all ranks: no rank can step with its "
    "own alone. The same judge finds it under DDP, FSDP and torch.compile.",
    "train.expert.wrong_clip": "No variant clips, and what a rank has clipped by itself cannot be told where no rank "
    "has a gradient of its own. The same judge finds it under DDP, FSDP and torch.compile.",
}
