"""What healthy jobs print: kinds of output, made up from the formats of their programs."""

from collections.abc import Callable

STEPS = range(1, 7)
LOG = "2026-04-22 19:14:0{n},120"
BAR = "####      "


def _each(line: str, end: str = "") -> str:
    """`line` for a few steps: {n} is the step, {loss} a number that falls."""
    return "".join(line.format(n=n, loss=f"{3 - n / 10:.3f}", bar=BAR) + "\n" for n in STEPS) + end


def _nccl(ranks: int) -> str:
    """The start of a few ranks of a communicator of that size."""
    lines = []
    for rank in range(0, ranks, max(1, ranks // 8)):
        at = f"node-{rank // 8}:{4100 + rank % 8}:{4177 + rank % 8} [{rank % 8}] NCCL INFO"
        about = (
            f"comm 0x55{rank:04x} rank {rank} nranks {ranks} cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank % 8}a000"
        )
        lines += [
            f"{at} Bootstrap : Using eth0:10.0.0.{rank // 8 % 250 + 1}<0>",
            f"{at} NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
            f"{at} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.{rank // 8 % 250 + 1}<0>",
            f"{at} Using network IB",
            f"{at} {about} commId 0x7c - Init START",
            f"{at} Channel 00/0 : {rank}[{rank % 8}] -> {(rank + 1) % ranks}[{(rank + 1) % 8}] via P2P/CUMEM/read",
            f"{at} Connected all rings, use ring PXN 0 GDR 1",
            f"{at} 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer",
            f"{at} {about} commId 0x7c - Init COMPLETE",
        ]
    return "\n".join(lines) + "\n"


def _carriage(line: str) -> str:
    return "\r".join(line.format(n=n, bar=BAR) for n in STEPS) + "\n"


_TRAINING: dict[str, Callable[[], str]] = {
    "transformers": lambda: _each("{{'loss': {loss}, 'grad_norm': 0.51, 'learning_rate': 2e-05, 'epoch': 0.{n}}}"),
    "transformers, to its end": lambda: _each(
        "{{'loss': {loss}, 'learning_rate': 2e-05, 'epoch': 0.{n}}}",
        "{'train_runtime': 812.1, 'train_samples_per_second': 31.2, 'train_loss': 2.2, 'epoch': 1.0}\n"
        "Training completed. Do not forget to share your model on huggingface.co/models =)\n",
    ),
    "lightning": lambda: (
        _carriage("Epoch {n}:  42%|{bar}| 42{n}/1000 [01:1{n}<01:37,  5.97it/s, v_num=3, train_loss=0.231]")
        + "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    ),
    "deepspeed": lambda: _each(
        "[2026-04-22 19:14:0{n},120] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}0, skipped=0, lr=[0.0001]"
    ),
    "megatron": lambda: _each(
        " [2026-04-22 19:14:0{n}] iteration     471{n}/  500000 | consumed samples:      4824064 | elapsed time per "
        "iteration (ms): 5120.3 | lm loss: {loss}E+00 | number of skipped iterations:   0 | nan iterations:   0 |"
    ),
    "nemo": lambda: _each("Training epoch 0, iteration {n}/999 | lr: 1e-05 | reduced_train_loss: {loss} | step: {n}"),
    "torchtitan": lambda: _each(
        "[titan] 2026-04-22 19:14:0{n},120 - root - INFO - step: {n}0  loss:  {loss}  memory: 41.20GiB  tps: 6,021"
    ),
    "mlperf": lambda: _each(
        ':::MLLOG {{"namespace": "", "time_ms": 174534924512{n}, "event_type": "POINT_IN_TIME", "key": "train_loss", '
        '"value": {loss}, "metadata": {{"file": "train.py", "lineno": 41, "step_num": {n}}}}}'
    ),
    "accelerate": lambda: _carriage("Steps:  1{n}%|{bar}| 1{n}/100 [00:1{n}<02:01,  1.4s/it, lr=1e-4, step_loss=0.1]"),
    "fairseq": lambda: _each(
        "2026-04-22 19:14:0{n} | INFO | train_inner | epoch 001:    {n}00 / 5005 loss={loss}, ppl=312.1, wps=41223"
    ),
    "nanoGPT": lambda: _each("iter {n}0: loss {loss}, time 312.41ms, mfu 41.02%"),
    "imagenet": lambda: _each("Epoch: [3][ {n}0/5005]  Time  0.312 ( 0.330)  Data  0.001 ( 0.004)  Loss {loss}e+00"),
    "detectron": lambda: _each(
        "[04/22 19:14:0{n} d2.utils.events]:  eta: 1:46:55  iter: 49{n}9  total_loss: {loss}  time: 0.2815"
    ),
    "mmengine": lambda: _each(
        "04/22 19:14:0{n} - mmengine - INFO - Epoch(train)  [1][ {n}0/7330]  lr: 2.0e-05  eta: 2:12:31  loss: {loss}"
    ),
    "ultralytics": lambda: _carriage(
        "      {n}/100      11.4G      1.231:  4{n}%|{bar}| 4{n}/100 [00:1{n}<00:14,  4.1it/s]"
    ),
    "keras-like": lambda: _each("Epoch {n}/10 - 12s - loss: {loss} - accuracy: 0.8123"),
    "torchrun, tee": lambda: _each("[default0]:step {n} | loss {loss} | lr 1.5e-4 | error 0.0"),
    "ray": lambda: _each("(RayTrainWorker pid=417, ip=10.0.0.2) epoch {n} loss {loss}"),
    "loguru": lambda: _each("2026-04-22 19:14:0{n}.120 | INFO     | train:step:41 - epoch: {n}/100 loss: {loss}"),
    "json": lambda: _each('{{"time": "2026-04-22T19:14:0{n}Z", "level": "info", "msg": "step {n} loss {loss}"}}'),
    "docker": lambda: _each(
        '{{"log":"step {n} loss {loss}\\n","stream":"stdout","time":"2026-04-22T19:14:0{n}.123456789Z"}}'
    ),
}
TRAINS = frozenset(_TRAINING)
LOST = (
    'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/torchft/a.py", line 3, in f\n'
    "RuntimeError: NCCL communicator was aborted on rank 1.\n"
)
"""What torchft logs of a peer that went away, and does without."""
KINDS: dict[str, str] = {name: make() for name, make in _TRAINING.items()} | {
    "vllm": _each("INFO 04-22 19:14:0{n} metrics.py:341] Avg prompt throughput: 81{n}.3 tokens/s, Running: 4 reqs"),
    "vllm, its start on several GPUs": "(VllmWorkerProcess pid=4102) INFO 04-22 19:14:05 "
    "multiproc_worker_utils.py:229] Worker ready; awaiting tasks\n(VllmWorkerProcess pid=4102) INFO 04-22 19:14:06 "
    "pynccl.py:69] vLLM is using nccl==2.21.5\nINFO 04-22 19:14:06 custom_all_reduce_utils.py:242] reading GPU P2P "
    "access cache from /tmp/vllm/gpu_p2p_access_cache.json\n"
    "INFO 04-22 19:14:20 model_runner.py:1115] Loading model weights took 14.9 GB\n",
    "ray, its start": "2026-04-22 19:14:05,120 INFO worker.py:1841 -- Connected to Ray cluster.\n"
    "(autoscaler +5s) Tip: use `ray status` to view detailed cluster status.\n(RayTrainWorker pid=417) Setting up "
    "process group for: env:// [rank=0, world_size=8]\n(RayTrainWorker pid=417) Moving model to device: cuda:0\n",
    "torchft, a step that was not committed": "INFO:torchft.manager:[ddp_0:6f1c/0 - step 12] should_commit=True a\n"
    f"ERROR:torchft.manager:[ddp_0:6f1c/0 - step 13] got exception in all reduce -- skipping remaining: aborted\n{LOST}"
    "INFO:torchft.manager:[ddp_0:6f1c/0 - step 13] should_commit=False enough_replicas=True, errored=aborted\n"
    "INFO:torchft.manager:[ddp_0:6f1c/0 - step 13] reconfiguring for quorum_id=4\n"
    + _each("INFO:torchft.manager:[ddp_0:6f1c/0 - step 1{n}] should_commit=True enough_replicas=True, errored=None"),
    "nvrx, a restart that ended well": "[2026-04-22 19:14:05,120] [WARNING] [RankMonServer4711@node-a:3] Did not get "
    "subsequent heartbeat. Waited 1800.00 seconds.\n[2026-04-22 19:14:05,121] [WARNING] [RankMonServer4711@node-a:3] "
    "FT timeout elapsed.\n" + _each("step {n} loss {loss}"),
    "slurm, to its end": _each("step {n} loss {loss}")
    + "Job ID: 4711\nCluster: alps\nState: COMPLETED (exit code 0)\nCores: 64\nCPU Efficiency: 41.02%\n",
    "pbs, to its end": _each("step {n} loss {loss}") + "Exit_status=0\nresources_used.walltime=01:02:03\n",
    "lsf, to its end": _each("step {n} loss {loss}") + "Successfully completed.\n\nResource usage summary:\n",
    "kubernetes events": "Normal  Scheduled  4m  default-scheduler  Successfully assigned ml/worker-0 to node-a\n"
    "Normal  Pulled     4m  kubelet  Container image already present on machine\nNormal  Started    4m  kubelet\n",
    "downloads": "Downloading shards: 100%|##########| 4/4 [00:10<00:00,  2.61s/it]\n"
    "wandb: Network error (ConnectionError), entering retry loop.\nwandb: Network error resolved after 0:00:12.1\n"
    "step 1 loss 3.1\nstep 2 loss 3.0\n",
    "nccl, 8 ranks": _nccl(8),
    "nccl, 64 ranks": _nccl(64),
    "nccl, 256 ranks": _nccl(256),
    "nccl, 1024 ranks": _nccl(1024),
    "a restart that ended well": "W1125 10:00:01.123000 41 torch/distributed/elastic/agent/server/api.py:729] 3/3 "
    "attempts left; will restart worker group\n[rank0]: step 1 loss 3.1\n[rank0]: step 2 loss 3.0\n",
    "torchft, a step that was skipped": (
        _each("INFO:torchft.manager:[ddp_0:6f1c/0 - step {n}] should_commit=True enough_replicas=True, errored=None")
        + "ERROR:torchft.manager:[ddp_0:6f1c/0 - step 7] got exception in all reduce -- skipping remaining: "
        "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711\n"
        + "".join(
            f"INFO:torchft.manager:[ddp_0:6f1c/0 - step {n}] should_commit=True enough_replicas=True, errored=None\n"
            for n in (8, 9, 10)
        )
    ),
    "vLLM on Ray, after a wait for GPUs": (
        "WARNING 11-26 08:00:03 [ray_utils.py:345] Tensor parallel size (16) exceeds available GPUs (8). This may "
        "result in Ray placement group allocation failures.\n"
        "INFO 11-26 08:02:33 [ray_utils.py:233] Waiting for creating a placement group of specs for 150 seconds. "
        "specs=[{'GPU': 1.0}]. Check `ray status` to see if you have enough resources.\n"
        "(RayWorkerWrapper pid=812, ip=10.0.0.2) INFO 11-26 08:03:03 [pynccl.py:70] vLLM is using nccl==2.27.3\n"
        "INFO:     Application startup complete.\n"
    ),
}
