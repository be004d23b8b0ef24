"""Ends of logs: of jobs that failed of something that nobody knows, and of jobs that went on or ended as they should.

The lines are of the forms that programs print; what they say, and hosts, are made up.
"""

STEPS = "".join(f"iter {n}0: loss {3 - n / 10:.3f}, time 312.41ms, mfu 41.02%\n" for n in range(1, 7))
BAR = "".join(f"\rEpoch 3:  4{n}%|####      | 42{n}/1000 [01:1{n}<01:37,  5.97it/s]" for n in range(1, 4))

FAILED: dict[str, str] = {
    "srun, plugin": "srun: error: mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: no PMIx library\n"
    "srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed\n",
    "srun, layout": "srun: error: JobId=4711 failed to distribute tasks (bind_type:threads) - it never should\n",
    "srun, option": f"{STEPS}srun: error: the prolog's answer is not understood\n",
    "srun, numbered": "0: step 1 loss 3.1\n1: step 1 loss 3.1\n2: srun: error: the step's socket is of another kind\n",
    "slurmstepd": f"{STEPS}slurmstepd: error: the step's keyring could not be set up: Key was rejected\n",
    "slurmstepd, host": "ready\nnode-b: slurmstepd: error: container_p_join: 4711: Invalid argument\n",
    "sbatch": "sbatch: error: CPU count per node can not be satisfied\n",
    "salloc": "salloc: error: the job's licences ran out while it waited\n",
    "glog, E": f"{STEPS}E0813 13:23:20.000000 32974 worker/pool.py:900] the pool of readers is gone\n",
    "glog, F": f"{STEPS}F0813 13:23:20.123456 32974 ring_buffer.cc:88] Slot 12 has an owner that is not known\n",
    "glog, with a rank": "[rank3]:E0813 13:23:20.000000 32974 trainer/loop.py:90] the schedule has no next phase\n",
    "glog, of torch": "[E813 13:23:20.714781669 Reducer.cpp:99] a bucket has no owner\n",
    "logging": "2026-04-22 19:14:05,120 - trainer - ERROR - the tokenizer does not fit the vocabulary\n",
    "logging, critical": "2026-04-22 19:14:05,120 CRITICAL trainer: no shard is left, giving up after 3 retries\n",
    "logging, basic": f"{STEPS}ERROR:trainer.loop:the learning rate's plan ends before the training\n",
    "logging, brackets": "[2026-04-22 19:14:05,120] [ERROR] [launch.py:325:handler] no line for node-c\n",
    "logging, hydra": "[2026-04-22 19:14:05,120][__main__][ERROR] - Error executing job: ['machine=hpc']\n",
    "logging, rich": "[19:14:05] ERROR    The mixture's weights sum to 0.98                        data.py:112\n",
    "logging, transformers": "[ERROR|trainer.py:412] 2026-04-22 19:14:05,120 >> the adapter has no weights\n",
    "logging, vllm": "ERROR 04-22 19:14:05 engine.py:341] the engine's loop has no heartbeat\n",
    "logging, with a rank": f"{STEPS}[rank2]: 2026-04-22 19:14:05,120 - ERROR - rank 2 reads another data set\n",
    "loguru": "2026-04-22 19:14:05.120 | ERROR    | train:step:41 - the cache is of another version\n",
    "json": '{"time": "2026-04-22T19:14:05Z", "level": "error", "msg": "the store refuses the token"}\n',
    "logfmt": 'time="2026-04-22T19:14:05Z" level=fatal msg="the volume is not attached"\n',
    "of several lines": "2026-04-22 19:14:05,120 ERROR trainer: the sizes do not fit\n  tp 4, pp 2\n  world 12\n",
    "shutting down after it": "2026-04-22 19:14:05,120 ERROR trainer: no plan for 12 ranks\n"
    "2026-04-22 19:14:06,120 INFO trainer: shutting down\n",
    "after a bar": f"{BAR}\nERROR: the writer's queue is closed\n",
    "after a bar, redrawn": f"ERROR trainer: the writer's queue is closed\r{BAR.split(chr(13))[-1]}\n",
    "nvrm": "[   21.091872] NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0\n",
    "nvrm, probe": "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).\n",
    "hsa": f"{STEPS}Memory access fault by GPU node-4 (Agent handle: 0x55fea) on address 0x7fc133800000. Reason: "
    "Page not present or supervisor privilege.\n",
    "hsa, name": "chunked prefill size adjusted\nHSA_STATUS_ERROR_OUT_OF_RESOURCES\n",
    "hsa, ranks go on for a while": "3: Memory access fault by GPU node-2 on address 0x7f89. Reason: Unknown.\n"
    + "".join(f"{n}: 2026-04-22 19:14:05 INFO waiting for the gradients\n" for n in range(8)),
    "hw exception": "HW Exception by GPU node-1 (Agent handle: 0x5d8d620) reason :GPU Hang\n",
    "pmix": "[node-a:06117] PMIX ERROR: NOT-FOUND in file tool/pmix_tool.c at line 250\n",
    "prte": "[node-a:12351] PRTE ERROR: Authentication failed in file prted.c at line 941\n",
    "prte, daemon": "-----------\nPRTE has lost communication with a remote daemon.\n-----------\n",
    "killed": f"{STEPS}/var/spool/slurmd/job4/slurm_script: line 12:  4711 Killed                  python train.py\n",
    "aborted": f"{STEPS}Aborted (core dumped)\n",
    "zsh": "[1]    18956 IOT instruction (core dumped)  python main.py\n",
    "exit code": f"{STEPS}Process finished with exit code 3\n",
    "exit status": f"{STEPS}the trainer exited with status 12\n",
    "logfmt, capitals": f"{STEPS}time=2025-11-02T10:11:12Z level=ERROR source=run.go:5 msg=gone\n",
    "make": "make: *** [train] Error 2\n",
    "double free": f"{STEPS}free(): invalid pointer\nAborted\n",
    "rust": "thread '<unnamed>' panicked at src/lib.rs:3:5:\nno such vocabulary\nnote: run with `RUST_BACKTRACE=1`\n",
    "python, no file": f"{STEPS}python3.12: can't open file '/job/x.py': [Errno 2] No such file or directory\n",
    "docker": "docker: Error response from daemon: the image is not there\n",
    "kubernetes, back-off": "Warning  BackOff  4m  kubelet  Back-off restarting failed container trainer\n",
    "mvapich": f"{STEPS}[node-a:mpi_rank_3][error_sighandler] Caught error: Segmentation fault (signal 11)\n",
    "a job's word": f"{STEPS}Job 4711 failed\n",
    "one letter, tornado": f"{STEPS}[E 260422 19:14:05 app:3] no plan\n",
    "one letter": f"{STEPS}19:14:05.120 E trainer no plan\n",
    "one letter, brackets": f"{STEPS}[19:14:05] [E] no plan\n",
    "argparse": "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --foo\n",
    "an exception's plain name": "Exception: the script is of another version\n",
    "amdgpu": "[51.1] amdgpu 0008:00:00.0: amdgpu: [gfxhub0] retry page fault (src_id:0 ring:0 vmid:3 pasid:32850)\n",
    "panic": "[  789.012345] Kernel panic - not syncing: hung_task: blocked tasks\n",
    "cri": "2026-04-22T19:14:05.123456789Z stderr F ERROR: the plan names no phase\n",
    "torchrun's own after it": "ERROR:trainer:the phase has no data\nW0813 13:23:17.366000 3 torch/run.py:7] *\n",
}  # fmt: skip
"""By name: each is no failure to any signature but ends with an error."""

_AFTER = "".join(f"2026-04-22 19:14:0{n} INFO trainer: stage {n} of 9\n" for n in range(1, 4))
_ERROR = "2026-04-22 19:14:05,120 ERROR loader: shard 12 could not be read\n"
SOUND: dict[str, str] = {
    "an error, and steps": _ERROR + STEPS,
    "an error, and a bar": _ERROR + BAR,
    "an error, and other stages": _ERROR + _AFTER,
    "an error, and the end": _ERROR + "2026-04-22 19:14:05 INFO Training completed in 3:12:01\n",
    "an error after the end": "2026-04-22 19:14:05 INFO Training completed in 3:12:01\n" + _ERROR,
    "glog, and steps": f"E0813 13:23:20.000000 32974 data/reader.py:900] shard 12 is not there\n{STEPS}",
    "srun, and steps": f"srun: error: the step's cgroup was made late\n{STEPS}",
    "slurm's temporary folder": "slurmstepd: error: Unable to create TMPDIR [/tmp/job_4]: No such file\n"
    "slurmstepd: error: Setting TMPDIR to /tmp\nstarting\n",
    "slurm's cgroup at the end": "[2 3]\nnode-a\nslurmstepd: error: _cgroup_procs_check: failed on path (null)\n"
    "slurmstepd: error: Cannot write to cgroup.procs for (null)\n"
    "slurmstepd: error: Unable to move pid 351386 to init root cgroup (null)\n",
    "srun, nodes busy": "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    "srun: Step created for StepId=4711.0\nready\n",
    "srun, queued": "srun: job 4711 queued and waiting for resources\nsrun: job 4711 has been allocated resources\n",
    "srun, warning": "srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1\nworld size 1\n",
    "sbatch": "sbatch: Submitted batch job 4711\n",
    "slurm, completed": _ERROR + "Job ID: 4711\nState: COMPLETED (exit code 0)\n",
    "slurm, sacct": "4711|train|COMPLETED|0:0\n",
    "pbs, exit 0": f"{STEPS}Exit_status=0\nresources_used.walltime=01:02:03\n",
    "exit code 0": f"{STEPS}Process finished with exit code 0\n",
    "torchrun's end": "I0813 13:23:20.000000 41 torch/distributed/elastic/agent/server/api.py:879] [default] worker "
    "group successfully finished. Waiting 300 seconds for other agents to finish.\n",
    "deepspeed's end": "[2026-04-22 19:14:05,120] [INFO] [launch.py:351:main] Process 4711 exits successfully.\n",
    "wandb, offline": f"{STEPS}wandb: You can sync this run by running:\nwandb: wandb sync ./wandb/offline-1\n"
    "wandb: Find logs at: ./wandb/offline-1/logs\n",
    "wandb, error": f"{STEPS}wandb: ERROR Failed to sync artifact: the server answered 502\n",
    "wandb, logger": f"{STEPS}2026-04-22 19:14:05,120 ERROR wandb.sdk: the file stream is closed\n",
    "mlflow": f"{STEPS}2026/04/22 19:14:05 ERROR mlflow.tracking: the metric was not taken\n",
    "pip": "ERROR: pip's dependency resolver does not currently take into account all the packages.\n"
    "torchvision 0.1 requires torch==2.1, but you have torch 2.2 which is incompatible.\n",
    "ld.so": "ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open): ignored.\n",
    "retried": "2026-04-22 19:14:05 ERROR fetch: no answer, retrying in 5 s\n",
    "fell back": "2026-04-22 19:14:05 ERROR attention: no fused kernel for it, falling back to math\n",
    "skipped": "2026-04-22 19:14:05 ERROR loader: sample 12 is no image, skipping it\n",
    "not fatal": "2026-04-22 19:14:05 ERROR probe: no such counter (non-fatal)\n",
    "dropped": "ERROR: 1 sample was dropped\n",
    "retried later": "2026-04-22 19:14:05 ERROR upload: no answer; will be retried at the next save\n",
    "tensorboard": f"{STEPS}tensorboard: error: the port is in use\n",
    "swallowed": "ERROR hook: swallowing an exception in atexit\n",
    "asyncio": "ERROR:asyncio:Unclosed client session\nclient_session: <aiohttp.client.ClientSession object at 0x7f>\n",
    "asyncio, pending": "ERROR:asyncio:Task was destroyed but it is pending!\ntask: <Task pending name='Task-1'>\n",
    "telemetry": "ERROR opentelemetry.exporter: Failed to export metrics to localhost:4317, error code: UNAVAILABLE\n",
    "tensorflow": "E0000 00:00:1713810845.123456 4711 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting "
    "to register factory for plugin cuDNN when one has already been registered\n",
    "sanitizer": "==4711== ERROR SUMMARY: 0 errors\n",
    "no errors": "2026-04-22 19:14:05 INFO scanned 812 shards, 0 errors\n",
    "the word in a loss": "step 1 error 0.31\nstep 2 error 0.29\n",
    "the word in a name": "loaded ERROR_CODES and on_error hooks\nerror_rate=0.01\n",
    "nccl info": "node-a:41:42 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal plugin.\n"
    "node-a:41:42 [0] NCCL INFO comm 0x55 rank 0 nranks 8 - Init COMPLETE\n",
    "deprecation": "/venv/a.py:12: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.\n",
    "warning": "2026-04-22 19:14:05 WARNING trainer: the last batch is short\n",
    "W of torch": "W0813 13:23:20.000000 41 torch/_dynamo/convert_frame.py:844] it hit config.limit (8)\n",
    "drain": "23:04:08 Gracefully exiting... Remaining number of requests 0.\n23:04:11 ERROR: Traceback (most recent "
    "call last):\nSystemExit: 0\nasyncio.exceptions.CancelledError\n",
    "system exit": 'Traceback (most recent call last):\n  File "train.py", line 9, in m\n    exit(0)\nSystemExit: 0\n',
    "cancelled": 'Traceback (most recent call last):\n  File "serve.py", line 9, in main\n    await it\n'
    "asyncio.exceptions.CancelledError\n",
    "early stop": f"{STEPS}Monitored metric val_loss did not improve in the last 3. Signaling Trainer to stop.\n",
    "at the user's wish": f"{STEPS}^CTraceback (most recent call last):\n"
    '  File "train.py", line 9, in main\n    step()\nKeyboardInterrupt\n',
    "the user's wish, told": f"{STEPS}Detected KeyboardInterrupt, attempting graceful shutdown ...\n",
    "uvicorn": "INFO: Shutting down\nINFO:     Application shutdown complete.\nINFO: Finished server process [41]\n",
    "nvrm, loaded": "[   21.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.158.01\nNVRM: GPU 0 is ready\n",
    "mpi, aliases": "[node-a:06117] mca: base: components_open: opened 3 components\nhello from rank 0\n",
    "a bar to its end": f"{BAR}\nsaved\n",
    "a fatal in a sentence": "mode: errors are fatal: no\nthe policy is 'on error: raise'\n",
    "restarts": "W1125 10:00:01.123000 41 torch/distributed/elastic/agent/server/api.py:729] 3/3 attempts left; will "
    f"restart worker group\n{STEPS}",
    "a measured error": f"{STEPS}Error: 0.031 (val)\n",
    "measured errors": f"{STEPS}Validation error: 0.31\nmax error 3.1e-07 over 16 ranks\nTop-1 error 23.1\n",
    "a name with error": "fatal_error_handler installed\nuploading error-analysis.html\nError bars written to x\n",
    "errors by number": "checked 12 shards, failed: 0\ntest FAILED samples: 0\nErrors: none\n",
    "the shell's trace": "+ echo done\ndone\n+ exit 0\n",
    "time": f"{STEPS}real 3m12s\nuser 1m1s\nsys 0m3s\n",
    "the letter E": f"{STEPS}19:14:05 Epoch 3 is over\n[19:14:05] Evaluation: 0.81\n",
    "a job's good word": f"{STEPS}Job finished at Wed Apr 22\nsrun: Job step 4711.0 completed\n",
    "kubernetes": "Normal  Pulled  4m  kubelet  Container image already present\nNormal  Started  4m  kubelet\n",
}  # fmt: skip
