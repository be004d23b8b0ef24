"""A training script that runs preflight before it trains.

torchrun --standalone --nproc-per-node 2 train.py
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # while there is no group: else DDP imports it, and its defaults hold the group for ever
from torch.nn.parallel import DistributedDataParallel

import preflight

verdict = preflight.run(report="preflight-report")  # on all ranks; all hear the same verdict
if verdict.exit_code == 1:  # a failure was found; 3 is preflight's own trouble, and holds no job
    sys.exit(1)

has_gpu = torch.cuda.is_available()
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if has_gpu else "cpu")
dist.init_process_group("nccl" if has_gpu else "gloo", device_id=device if has_gpu else None)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(10):
    batch = torch.randn(32, 16, generator=generator).to(device)
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}")
# gloo's threads end with the group, the group when nothing refers to it: the model goes first. A thread that is left
# aborts the process if it wants Python's lock while Python ends (https://github.com/pytorch/pytorch/issues/190489).
del model
dist.destroy_process_group()
