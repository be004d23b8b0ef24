"""What happens to the engine: workers, collectives, judges, plugins, supervisors, stores, launches."""

from typing import Any

from tests.faults.row import Fault, elsewhere


def _alone(deed: str, rank: int, kind: str, story: str, find: str = "", **more: Any) -> Fault:
    """Of one rank of five, in the check of its kind; the first rank does nothing. `find`: severity and slug."""
    module, (severity, _, slug) = f"alone_{kind}", find.partition(" ")
    return Fault(
        name=f"measure_{deed}", story=story, made=f"a check's measure() does it on rank {rank}: `deeds.{deed}`",
        finds=(f"{severity} plugin.{module}.{slug}",) if find else (), culprit={"rank": rank},
        exit_code={"fail": 1, "error": 3, "": 0}[severity], world=5, after=5, plugins=(module, *more.pop("then", ())),
        environ_of={rank: {f"TEST_DEED_{kind.upper()}": deed}}, shares="alone", **more,
    )  # fmt: skip


def _in_turn(deed: str, story: str, severity: str, slug: str, *then: str, **more: Any) -> Fault:
    """One of the checks of a run, each of which finds the workers as the last one has left them."""
    module = f"together_{deed}"
    return Fault(
        name=f"collective_{deed}", story=story, made=f"between two all-reduces, on rank 1: `deeds.{deed}`",
        finds=(f"{severity} plugin.{module}.{slug}",), plugins=(module, *then), noticed_by="0,2",
        exit_code={"fail": 1, "error": 3}[severity], shares="collectives", **more,
    )  # fmt: skip


_TIMED_OUT, _CRASHED, _RAISED, _BAD = "fail timed_out", "fail crashed", "error raised", "error bad_facts"

IN_MEASURE = (
    _alone("raise", 1, "raised", "A check raises an exception.", _RAISED, says="ValueError: on purpose (deeds.py line"),
    _alone("sys_exit", 2, "raised", "A check calls sys.exit().", _RAISED, says="SystemExit"),
    _alone("slow_text", 3, "raised", "A check prints what a careless pattern would take minutes over.", _RAISED,
           says="on purpose"),
    _alone("channel_nonsense", 4, "raised", "A check writes nonsense into preflight's own channel.", _RAISED,
           says="channel"),
    _alone("hang_python", 1, "hung", "A check hangs in Python.", _TIMED_OUT, says="at deeds.py line"),
    _alone("hang_gil", 2, "hung", "A check hangs in native code that holds the GIL.", _TIMED_OUT,
           says="at deeds.py line"),
    _alone("hang_subprocess", 3, "hung", "A check waits for a subprocess that hangs.", _TIMED_OUT),
    _alone("ignore_sigterm", 4, "hung", "A check ignores SIGTERM and hangs.", _TIMED_OUT),
    _alone("stop_itself", 1, "died", "A worker is stopped (SIGSTOP).", _TIMED_OUT, says="the process is stopped"),
    _alone("segfault", 2, "died", "A check crashes in native code.", _CRASHED, says="SIGSEGV"),
    _alone("exit_7", 3, "died", "A check ends its process with os._exit(7).", _CRASHED, says="exit status 7"),
    _alone("kill_itself", 4, "died", "A worker is killed (SIGKILL, as the OOM killer does).", _CRASHED, says="SIGKILL"),
    _alone("nan", 1, "bad_facts", "A check returns NaN.", _BAD, says="facts['value'][1] is nan"),
    _alone("object", 2, "bad_facts", "A check returns a Python object.", _BAD, says="object of type object"),
    _alone("no_dict", 3, "bad_facts", "A check returns a list.", _BAD, says="not a dict"),
    _alone("too_large", 4, "bad_facts", "A check returns 5 MB.", _BAD, says="limit per rank and check is 1,048,576"),
    _alone("shared_memory", 1, "rude", "A worker dies with tensors in shared memory.", _CRASHED, says="SIGKILL"),
    _alone("flood", 2, "rude", "A check prints 20 MB."),
    _alone("family", 3, "rude", "A check leaves threads and children behind, one in a session of its own.",
           then=("after",)),
)  # fmt: skip

IN_COLLECTIVES = (
    _in_turn("raise", "One rank raises between two collectives.", "error", "raised"),
    _in_turn("hang_python", "One rank hangs between two collectives.", "fail", "timed_out"),
    _in_turn("other_collective", "One rank calls another collective.", "fail", "desync",
             says="was inside barrier #2 while ranks 0,2 waited inside all_reduce of 4 float32 #2"),
    _in_turn("stop_itself", "One worker is stopped between two collectives.", "fail", "timed_out"),
    _in_turn("skip", "One rank skips a check while the others wait for it.", "error", "raised", says="was skipped"),
    _in_turn("kill_itself", "One worker is killed between two collectives.", "fail", "crashed", says="SIGKILL"),
    _in_turn("segfault", "One worker crashes between two collectives.", "fail", "crashed", says="SIGSEGV"),
    _in_turn("abort", "One worker aborts between two collectives.", "fail", "crashed", says="SIGABRT"),
    _in_turn("exit_7", "One worker exits between two collectives.", "fail", "crashed", "after", says="exit status 7"),
)  # fmt: skip


def _in_judge(deed: str, story: str, slug: str, *then: str, says: str = "") -> Fault:
    """One of the checks of a run, each of which is judged by a worker of its own."""
    module = f"judge_{deed}"
    return Fault(
        name=module, story=story, made=f"judge() does it: `deeds.{deed}`", finds=(f"error plugin.{module}.{slug}",),
        culprit={"file": module}, exit_code=3, plugins=(module, *then), world=2, after=2, says=says, shares="judges",
    )  # fmt: skip


IN_JUDGE = (
    _in_judge("raise", "A check's judge() raises.", "raised", says="judge() raised"),
    _in_judge("hang_python", "A check's judge() never ends.", "timed_out", says="did not end"),
    _in_judge("kill_itself", "A check's judge() crashes.", "crashed", "after"),
)


def _plugin(module: str, story: str, slug: str, says: str) -> Fault:
    return Fault(
        f"plugin_{module}", story, f"`--plugin {module}`", (f"error plugin.{module}.{slug}",),
        culprit={"file": module}, exit_code=3, plugins=(module, "after"), world=2, after=2, says=says, shares="plugins",
    )  # fmt: skip


PLUGINS = (
    _plugin("import_error", "A plugin does not import.", "raised", "a_library_that_is_not_there"),
    _plugin("import_hang", "A plugin hangs on import.", "timed_out", "did not end within"),
    _plugin("import_crash", "A plugin ends its process on import.", "crashed", "ended"),
    _plugin("import_group", "A plugin initializes a process group on import.", "raised", "initializes a process group"),
    _plugin(
        "needs_typo",
        "A plugin needs a check that there is not.",
        "raised",
        "PLAN.after names env.lunch, which is not a check",
    ),
    _plugin(
        "scope_typo",
        "A plugin's plan has a scope that there is not.",
        "raised",
        "PLAN.scope is 'nod', expected node, rank or world (scope_typo.py line 7)",
    ),
    _plugin("no_plan", "A plugin is no check.", "raised", "has no PLAN"),
)


def _control(name: str, story: str, deed: str, finds: tuple[str, ...], **more: Any) -> Fault:
    settings = {"plugin.alone.deed": deed, **more.pop("settings", {})}
    return Fault(name, story, f"a check does it from within: `deeds.{deed}`", finds, settings=settings, **more)


LOST = "fail plugin.alone.lost"


def _lost(name: str, rank: int, story: str, deed: str, says: str, **more: Any) -> Fault:
    """One of the ranks that a run of five loses."""
    environ = {"TEST_DEED": deed, **more.pop("environ", {})}
    return Fault(
        name, story, f"a check does it from within: `deeds.{deed}`", (LOST,), culprit={"rank": rank}, world=5, after=2,
        environ_of={rank: environ}, shares="lost", says=says, **more,
    )  # fmt: skip


CONTROL = (
    _lost("supervisor_killed", 1, "A rank's supervisor is killed.", "kill_supervisor", "has died"),
    _lost("supervisor_stopped", 2, "A rank's supervisor is stopped.", "stop_supervisor", "no sign of life",
          stopped=(2,)),
    # On a node of its own: one that is terminated beside a dead one went with its node.
    _lost("rank_terminated", 3, "One rank is sent SIGTERM.", "term_supervisor", "SIGTERM", environ={"NODE_RANK": "1"}),
    _control("supervisor_paused", "A rank's supervisor is stopped for 5 s.", "stop_supervisor_5s", (), exit_code=0,
             environ={"TEST_CHECK_DEADLINE_S": "30"}),
    _control("rank_0_paused", "Rank 0's supervisor is stopped for 20 s: the others give up on it.",
             "stop_supervisor_20s", ("error preflight.run.stalled",), culprit={"rank": 0}, exit_code=3, world=2,
             after=None, settings={"plugin.alone.by": "0"}, environ={"TEST_CHECK_DEADLINE_S": "30"},
             says="stood still"),
    _control("supervisor_killed_torchrun", "A rank's supervisor is killed under torchrun, which ends the others.",
             "kill_supervisor", (f"fail preflight.run.lost or {LOST}",), after=None, launcher="torchrun",
             says="has died", more=True),
    _control("interrupted", "Ctrl-C on rank 0.", "interrupt_supervisor", ("error preflight.run.interrupted",),
             culprit={}, settings={"plugin.alone.by": "0"}, world=2, after=None, exit_code=3, says="SIGINT"),
    _control("interrupted_twice", "Ctrl-C on rank 0, and again 1.5 s later.", "interrupt_supervisor_twice",
             ("error preflight.run.interrupted",), culprit={}, settings={"plugin.alone.by": "0"}, world=2, after=None,
             exit_code=3, says="SIGINT"),
    _control("terminated", "Rank 0 is sent SIGTERM.", "term_supervisor", ("error preflight.run.interrupted",),
             culprit={}, settings={"plugin.alone.by": "0"}, world=2, after=None, exit_code=3, says="SIGTERM"),
    _control("store_frozen_midway", "The store freezes in mid-run.", "freeze_store",
             ("error preflight.run.store_lost",), culprit={}, launcher="agent", world=2, after=None, exit_code=3,
             says="did not answer within", deadline_s=30, more=True),
    _control("store_killed_midway", "The store dies in mid-run.", "kill_store",
             ("error preflight.run.store_lost",), culprit={}, launcher="agent", world=2, after=None, exit_code=3,
             deadline_s=30),
    Fault("store_frozen_at_the_end", "The store freezes just before the verdict.",
          "judge() does it: `deeds.freeze_store`", ("error preflight.run.store_lost",), culprit={}, launcher="agent",
          plugins=("alone",), world=2, after=None, exit_code=3, settings={"plugin.alone.judge": "freeze_store"},
          deadline_s=30, more=True),
)  # fmt: skip


STRANGERS = {
    "order_a_file": "A stranger orders its own file as a check.",
    "order_a_module": "A stranger orders a module that lies in the ranks' folder.",
    "settings": "A stranger puts its own function into the job.",
    "verdict": "A stranger says that all is well.",
    "damaged": "An order in the store is cut off.",
    "foreign": "Another program writes where orders are.",
    "stale_order": "A stranger writes an old order again.",
    "facts": "A stranger answers for a rank.",
    "other_rank": "A stranger answers for a rank that was not asked.",
    "arrival": "A stranger arrives, and is no rank.",
    "left": "A stranger writes where ranks take their leave.",
    "beat": "A stranger writes over a rank's signs of life.",
    "counter": "A stranger sets a log's counter to a billion.",
    "gone": "A stranger says that a rank leaves; ranks share a secret.",
}
"""Processes that reach the store of a job (tests/strangers.py)."""
RUN_LOST, STORE_LOST = "fail preflight.run.lost", "error preflight.run.store_lost"
RENDEZVOUS = "fail preflight.run.rendezvous"
ELSEWHERE = (
    # tests/history/test_expected.py
    elsewhere("slower_than_history", "A speed is far below that of the last sound runs.", "a plugin measures less",
              "warn preflight.run.slower_than_history", culprit={}, exit_code=0),
    elsewhere("no_history", "The file of --history is another program's.", "a text",
              "warn preflight.run.baseline", culprit={}, exit_code=0),
    # tests/history/test_profile.py
    elsewhere("profile_gpu_fewer", "A node alone has a GPU fewer than the site's profile says.", "NVML counts 7 of 8",
              "fail preflight.run.profile_gpus", culprit={}, says="7 GPUs on the node, expected 8"),
    elsewhere("profile_nic_missing", "A node alone lacks a network card of the site's profile.", "a host without it",
              "fail preflight.run.profile_missing", culprit={}, says="nic0 and nic1 are not on the node"),
    elsewhere("profile_limit_lower", "A limit of a node alone is below the site's profile.", "`ulimit -n 500`",
              "warn preflight.run.profile_differs", culprit={}, exit_code=0, says="open files 500, expected at least"),
    # tests/test_launch_faults.py
    elsewhere("rank_never_starts", "A rank never starts.", "two of four ranks are started in time", RUN_LOST,
              culprit={"rank": 3}),
    elsewhere("task_never_starts", "Tasks of srun never start.",
              "of six tasks the fourth and the sixth are not started", RUN_LOST, culprit={"rank": 5, "node": "node-2"}),
    elsewhere("rank_0_never_starts", "Rank 0 never starts.", "only rank 1 starts, on another's store", RUN_LOST,
              culprit={"rank": 0}, more=True),
    elsewhere("duplicate_rank", "Two processes have one rank.", "RANK=1 twice, and all others",
              "fail env.launch.duplicate_rank"),
    elsewhere("duplicate_rank_0", "Two processes have rank 0.", "RANK=0 twice, and all others",
              "fail env.launch.duplicate_rank", culprit={"rank": 0}),
    elsewhere("rank_0_twice", "Two processes have rank 0, each would serve the store, and rank 1 is missing.",
              "RANK=0 twice, without a launcher", "fail env.launch.duplicate_rank", RUN_LOST, culprit={"rank": 0},
              more=True),
    elsewhere("rank_0_twice_and_silent", "Two processes have rank 0, and the first one has the port, but no store.",
              "RANK=0 twice; one only listens", "fail preflight.run.launch", culprit={"rank": 0, "variable": "RANK"}),
    elsewhere("duplicate_instead", "A rank is given twice, and so one is missing.", "RANK=1 twice, and no 2",
              "fail env.launch.duplicate_rank", RUN_LOST, culprit={"rank": 2}),
    elsewhere("rank_outside", "A rank is beyond the world size.", "RANK=3, WORLD_SIZE=3",
              "fail env.launch.rank_out_of_range", culprit={"rank": 3}, also=(RUN_LOST,)),
    elsewhere("no_number", "A launch variable is no number, or missing.", "RANK=one, LOCAL_RANK=x, ...",
              "fail env.launch.invalid", culprit={}, also=(RUN_LOST, "fail env.launch.differs")),
    elsewhere("world_size_differs", "WORLD_SIZE differs on one rank.", "WORLD_SIZE=8 on rank 2",
              "fail env.launch.differs", culprit={"rank": 2, "variable": "WORLD_SIZE"}),
    elsewhere("local_rank_taken", "Two ranks of a node have one LOCAL_RANK.", "LOCAL_RANK=0 on rank 3, too",
              "fail env.launch.local_rank_taken", culprit={"rank": 3}),
    elsewhere("local_world_size", "LOCAL_WORLD_SIZE is wrong.", "LOCAL_WORLD_SIZE=8 on rank 1 of 4",
              "fail env.launch.local_world_size"),
    elsewhere("torch_broken", "torch cannot be imported on a rank.", "TORCH_DISTRIBUTED_DEBUG=FULL on rank 1",
              "fail preflight.run.torch"),
    # tests/test_strangers.py
    *(
        elsewhere(f"stranger_{name}", story, f"tests/strangers.py: {name}", "fail preflight.run.foreign_writer",
                  culprit={}, world=2)
        for name, story in STRANGERS.items()
    ),
    elsewhere("port_taken", "MASTER_PORT is taken.", "another socket listens there", RENDEZVOUS,
              culprit={"variable": "MASTER_PORT"}),
    elsewhere("store_frozen_at_the_start", "The store is frozen from the start.", "SIGSTOP to its process",
              STORE_LOST, culprit={}, exit_code=3, more=True),
    # tests/test_endpoint.py
    elsewhere("master_elsewhere", "MASTER_ADDR names another node than rank 0's.", "MASTER_ADDR=host-b", RENDEZVOUS,
              culprit={"variable": "MASTER_ADDR"}, says="is not an address of host-a, where rank 0 is"),
    elsewhere("master_is_nobody", "MASTER_ADDR is an address of no host.", "MASTER_ADDR=10.77.0.99", RENDEZVOUS,
              culprit={"variable": "MASTER_ADDR"}, more=True),
    elsewhere("master_is_loopback", "MASTER_ADDR is each node itself.", "MASTER_ADDR=localhost", RENDEZVOUS,
              culprit={"variable": "MASTER_ADDR"}, more=True),
    elsewhere("master_malformed", "MASTER_ADDR cannot be a host.", "MASTER_ADDR=a..b", "fail preflight.run.launch",
              culprit={"variable": "MASTER_ADDR"}),
    elsewhere("port_shared", "Two jobs have one MASTER_PORT.", "ranks of SLURM_JOB_ID 77 and 78", RENDEZVOUS,
              culprit={"variable": "MASTER_PORT"}),
    # tests/test_process_limits.py
    elsewhere("pids_max", "A node can start no process: preflight cannot join.", "pids.max 2 of a cgroup",
              "fail preflight.run.no_process", culprit={"node": "node-1"}, says="pids.max"),
    elsewhere("pids_max_in_a_check", "A node can start hardly a process.", "pids.max 4 of a cgroup",
              "fail gpu.inventory.no_process", culprit={"node": "node-1", "rank": 1}, says="pids.max"),
    elsewhere("ulimit_u", "A user may have few processes on a node.", "`ulimit -u 4`",
              "fail gpu.inventory.no_process", culprit={"node": "node-1", "rank": 1}, says="ulimit -u"),
    # tests/engine/test_torch_import.py
    elsewhere("torch_dead_disk", "The environment's file system does not answer.", "a FUSE that never answers a read",
              "fail preflight.run.torch", culprit={"rank": 0}),
    elsewhere("torch_slow_disk", "The environment's file system is too slow for the run's deadline.",
              "a FUSE that answers a read in 40 s", "error preflight.run.deadline", culprit={"rank": 0}),
    # tests/test_hosts.py
    elsewhere("host_cut_off", "A host's link is cut in mid-run.", "`ip link set eth0 down` on it",
              "fail plugin.alone.lost", culprit={"node": "host-b"}, also=(RUN_LOST,)),
    elsewhere("launcher_dies", "A host's torchrun is killed.", "`deeds.kill_launcher` on rank 2",
              "fail plugin.alone.lost", culprit={"node": "host-b"}, also=(RUN_LOST,), more=True),
    elsewhere("supervisor_dies_elsewhere", "A supervisor is killed on another host, and torchrun ends it.",
              "`deeds.kill_supervisor` on rank 3", "fail plugin.alone.lost",
              culprit={"rank": 3, "node": "host-b"}),
    elsewhere("rank_0_dies", "Rank 0's supervisor is killed.", "`deeds.kill_supervisor` on rank 0", RUN_LOST,
              culprit={"rank": 0}, more=True),
    elsewhere("slow_link", "A link is slow (200 Mbit/s).", "`tc tbf` on one host", exit_code=0, culprit={}),
    # tests/test_surroundings.py
    elsewhere("no_time", "A check does not fit the run's deadline.", "its estimate is a day",
              "error preflight.run.deadline", culprit={}, exit_code=3),
    elsewhere("unresolvable", "MASTER_ADDR does not resolve.", "MASTER_ADDR=no-such-host.invalid", RENDEZVOUS,
              culprit={"variable": "MASTER_ADDR"}),
    elsewhere("interrupted_torchrun", "Ctrl-C for torchrun and all its ranks.", "SIGINT to the process group",
              "error preflight.run.interrupted", culprit={}, exit_code=3),
)  # fmt: skip

ALL = (*IN_MEASURE, *IN_COLLECTIVES, *IN_JUDGE, *PLUGINS, *CONTROL)
