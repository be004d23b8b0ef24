"""A job of tests/real_gpu/jobs/collectives.py under torchrun, whose ranks share one GPU: each is a node to NCCL."""

import os
import sys

os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"

from tests.real_gpu.jobs import collectives

if __name__ == "__main__":
    getattr(collectives, sys.argv[1])()
