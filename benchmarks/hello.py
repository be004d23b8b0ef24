"""The least a distributed script does: gloo comes up and reduces once."""

import torch
from torch import distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
dist.destroy_process_group()
