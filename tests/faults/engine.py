"""What happens to the engine: workers, collectives, judges, plugins, supervisors, stores, launches."""

from typing import Any

from tests.faults.row import Fault, elsewhere


def _alone(deed: str, story: str, finds: str, **more: Any) -> Fault:
    exit_code = {"fail": 1, "error": 3}[finds.split()[0]]
    return Fault(
        name=f"measure_{deed}", story=story, made=f"a check's measure() does it on rank 1: `deeds.{deed}`",
        finds=(finds,), exit_code=exit_code, settings={"plugin.alone.deed": deed}, **more,
    )  # fmt: skip


def _together(deed: str, story: str, finds: tuple[str, ...], **more: Any) -> Fault:
    details: dict[str, Any] = {"noticed_by": "0,2", "settings": {"plugin.together.deed": deed}, **more}
    return Fault(
        name=f"collective_{deed}", story=story, made=f"between two all-reduces, on rank 1: `deeds.{deed}`",
        finds=finds, plugins=("together", "after"), **details,
    )  # fmt: skip


_TIMED_OUT, _CRASHED = "fail plugin.alone.timed_out", "fail plugin.alone.crashed"
_RAISED, _BAD = "error plugin.alone.raised", "error plugin.alone.bad_facts"

IN_MEASURE = (
    _alone("raise", "A check raises an exception.", _RAISED, says="ValueError: on purpose (deeds.py line"),
    _alone("sys_exit", "A check calls sys.exit().", _RAISED, says="SystemExit"),
    _alone("hang_python", "A check hangs in Python.", _TIMED_OUT, says="at deeds.py line"),
    _alone("hang_gil", "A check hangs in native code that holds the GIL.", _TIMED_OUT, says="at deeds.py line"),
    _alone("hang_subprocess", "A check waits for a subprocess that hangs.", _TIMED_OUT),
    _alone("ignore_sigterm", "A check ignores SIGTERM and hangs.", _TIMED_OUT),
    _alone("stop_itself", "A worker is stopped (SIGSTOP).", _TIMED_OUT, says="the process is stopped"),
    _alone("segfault", "A check crashes in native code.", _CRASHED, says="SIGSEGV"),
    _alone("exit_7", "A check ends its process with os._exit(7).", _CRASHED, says="exit status 7"),
    _alone("kill_itself", "A worker is killed (SIGKILL, as the OOM killer does).", _CRASHED, says="SIGKILL"),
    _alone("nan", "A check returns NaN.", _BAD, says="facts['value'][1] is nan"),
    _alone("object", "A check returns a Python object.", _BAD, says="object of type object"),
    _alone("no_dict", "A check returns a list.", _BAD, says="not a dict"),
    _alone("too_large", "A check returns 5 MB.", _BAD, says="at most 1,048,576"),
    _alone("slow_text", "A check prints what a careless pattern would take minutes over.", _RAISED, says="on purpose"),
    _alone("channel_nonsense", "A check writes nonsense into preflight's own channel.", _RAISED, says="channel"),
    _alone("shared_memory", "A worker dies with tensors in shared memory.", _CRASHED, says="SIGKILL"),
)

SOUND_BUT_RUDE = (
    Fault(
        "measure_flood", "A check prints 20 MB.", "measure() prints on rank 1: `deeds.flood`", (), exit_code=0,
        settings={"plugin.alone.deed": "flood"},
    ),
    Fault(
        "measure_family", "A check leaves threads and children behind, one in a session of its own.",
        "measure() starts them on rank 1: `deeds.family`", (), exit_code=0, settings={"plugin.alone.deed": "family"},
    ),
)  # fmt: skip

IN_COLLECTIVES = (
    _together("raise", "One rank raises between two collectives.", ("error plugin.together.raised",), exit_code=3),
    _together("hang_python", "One rank hangs between two collectives.", ("fail plugin.together.timed_out",)),
    _together("stop_itself", "One worker is stopped between two collectives.", ("fail plugin.together.timed_out",)),
    _together("kill_itself", "One worker is killed between two collectives.", ("fail plugin.together.crashed",)),
    _together("segfault", "One worker crashes between two collectives.", ("fail plugin.together.crashed",)),
    _together("abort", "One worker aborts between two collectives.", ("fail plugin.together.crashed",),
              says="SIGABRT"),
    _together("exit_7", "One worker exits between two collectives.", ("fail plugin.together.crashed",)),
    _together("other_collective", "One rank calls another collective.", ("fail plugin.together.raised",),
              says="was inside barrier #3 while ranks 0,2 waited inside all_reduce 4 elements #3"),
    _together("skip", "One rank stands aside while the others wait for it.", ("error plugin.together.raised",),
              exit_code=3, says="stood aside"),
)  # fmt: skip

IN_JUDGE = (
    Fault(
        "judge_raise", "A check's judge() raises.", "judge() raises: `deeds.raise`", ("error plugin.alone.raised",),
        culprit={"file": "alone"}, exit_code=3, settings={"plugin.alone.judge": "raise"}, says="judge() raised",
    ),
    Fault(
        "judge_loop", "A check's judge() never ends.", "judge() hangs: `deeds.hang_python`",
        ("error plugin.alone.timed_out",), culprit={"file": "alone"}, exit_code=3,
        settings={"plugin.alone.judge": "hang_python"}, says="did not end",
    ),
    Fault(
        "judge_crash", "A check's judge() crashes.", "judge() kills its process: `deeds.kill_itself`",
        ("error plugin.alone.crashed",), culprit={"file": "alone"}, exit_code=3,
        settings={"plugin.alone.judge": "kill_itself"},
    ),
)  # fmt: skip


def _plugin(module: str, story: str, slug: str, says: str) -> Fault:
    return Fault(
        f"plugin_{module}", story, f"`--plugin {module}`", (f"error plugin.{module}.{slug}",),
        culprit={"file": module}, exit_code=3, plugins=(module, "after"), world=2, after=2, says=says,
    )  # fmt: skip


PLUGINS = (
    _plugin("import_error", "A plugin does not import.", "raised", "a_library_that_is_not_there"),
    _plugin("import_hang", "A plugin hangs on import.", "timed_out", "did not end within"),
    _plugin("import_crash", "A plugin ends its process on import.", "crashed", "ended"),
    _plugin("import_group", "A plugin initialises a process group on import.", "raised", "initialises a process group"),
    _plugin("needs_typo", "A plugin needs a check that there is not.", "raised", "names env.lunch, which is no check"),
    _plugin("no_plan", "A plugin is no check.", "raised", "has no PLAN"),
)


def _control(name: str, story: str, deed: str, finds: tuple[str, ...], **more: Any) -> Fault:
    settings = {"plugin.alone.deed": deed, **more.pop("settings", {})}
    return Fault(name, story, f"a check does it from within: `deeds.{deed}`", finds, settings=settings, **more)


LOST = "fail plugin.alone.lost"
CONTROL = (
    _control("supervisor_killed", "A rank's supervisor is killed.", "kill_supervisor", (LOST,), after=2,
             says="has died"),
    _control("supervisor_stopped", "A rank's supervisor is stopped.", "stop_supervisor", (LOST,), after=2,
             says="no sign of life", stopped=(1,)),
    _control("supervisor_paused", "A rank's supervisor is stopped for 5 s.", "stop_supervisor_5s", (), exit_code=0,
             environ={"TEST_CHECK_DEADLINE_S": "30"}),
    _control("rank_0_paused", "Rank 0's supervisor is stopped for 20 s: the others give up on it.",
             "stop_supervisor_20s", ("error preflight.run.stood_still",), culprit={"rank": 0}, exit_code=3, after=None,
             settings={"plugin.alone.by": "0"}, environ={"TEST_CHECK_DEADLINE_S": "30"}, says="stood still"),
    _control("rank_terminated", "One rank is sent SIGTERM.", "term_supervisor", (LOST,), after=2, says="SIGTERM"),
    _control("supervisor_killed_torchrun", "A rank's supervisor is killed under torchrun, which ends the others.",
             "kill_supervisor", (f"fail preflight.run.lost or {LOST}",), after=None, launcher="torchrun",
             says="has died"),
    _control("interrupted", "Ctrl-C on rank 0.", "interrupt_supervisor", ("error preflight.run.interrupted",),
             culprit={}, settings={"plugin.alone.by": "0"}, after=None, exit_code=3, says="SIGINT"),
    _control("interrupted_twice", "Ctrl-C on rank 0, and again 1.5 s later.", "interrupt_supervisor_twice",
             ("error preflight.run.interrupted",), culprit={}, settings={"plugin.alone.by": "0"}, after=None,
             exit_code=3, says="SIGINT"),
    _control("terminated", "Rank 0 is sent SIGTERM.", "term_supervisor", ("error preflight.run.interrupted",),
             culprit={}, settings={"plugin.alone.by": "0"}, after=None, exit_code=3, says="SIGTERM"),
    _control("store_frozen_midway", "The store freezes in mid-run.", "freeze_store",
             ("error preflight.run.store_lost",), culprit={}, launcher="agent", after=None, exit_code=3,
             says="did not answer within", deadline_s=30),
    _control("store_killed_midway", "The store dies in mid-run.", "kill_store",
             ("error preflight.run.store_lost",), culprit={}, launcher="agent", after=None, exit_code=3,
             deadline_s=30),
    Fault("store_frozen_at_the_end", "The store freezes just before the verdict.",
          "judge() does it: `deeds.freeze_store`", ("error preflight.run.store_lost",), culprit={}, launcher="agent",
          plugins=("alone",), after=None, exit_code=3, settings={"plugin.alone.judge": "freeze_store"}, deadline_s=30),
)  # fmt: skip


RUN_LOST, STORE_LOST = "fail preflight.run.lost", "error preflight.run.store_lost"
RENDEZVOUS = "fail preflight.run.rendezvous"
ELSEWHERE = (
    # tests/test_launch_faults.py
    elsewhere("rank_never_starts", "A rank never starts.", "two of three ranks are started", RUN_LOST,
              culprit={"rank": 2}),
    elsewhere("rank_0_never_starts", "Rank 0 never starts.", "only rank 1 starts, on another's store", RUN_LOST,
              culprit={"rank": 0}),
    elsewhere("duplicate_rank", "Two processes have one rank.", "RANK=1 twice, and all others",
              "fail env.launch.duplicate_rank"),
    elsewhere("duplicate_rank_0", "Two processes have rank 0.", "RANK=0 twice, and all others",
              "fail env.launch.duplicate_rank", culprit={"rank": 0}),
    elsewhere("duplicate_instead", "A rank is given twice, and so one is missing.", "RANK=1 twice, and no 2",
              "fail env.launch.duplicate_rank", RUN_LOST, culprit={"rank": 2}),
    elsewhere("rank_outside", "A rank is beyond the world size.", "RANK=7, WORLD_SIZE=3",
              "fail env.launch.rank_outside", culprit={"rank": 7}, also=(RUN_LOST,)),
    elsewhere("no_number", "A launch variable is no number, or missing.", "RANK=one, LOCAL_RANK=x, ...",
              "fail env.launch.invalid", culprit={}, also=(RUN_LOST, "fail env.launch.unlike")),
    elsewhere("world_size_differs", "WORLD_SIZE differs on one rank.", "WORLD_SIZE=8 on rank 2",
              "fail env.launch.unlike", culprit={"rank": 2, "variable": "WORLD_SIZE"}),
    elsewhere("local_rank_taken", "Two ranks of a node have one LOCAL_RANK.", "LOCAL_RANK=1 on rank 2, too",
              "fail env.launch.local_rank_taken", culprit={"rank": 2}),
    elsewhere("local_world_size", "LOCAL_WORLD_SIZE is wrong.", "LOCAL_WORLD_SIZE=8 on rank 1 of 3",
              "fail env.launch.local_world_size"),
    elsewhere("torch_broken", "torch cannot be imported on a rank.", "TORCH_DISTRIBUTED_DEBUG=FULL on rank 1",
              "fail preflight.run.torch"),
    elsewhere("port_taken", "MASTER_PORT is taken.", "another socket listens there", RENDEZVOUS,
              culprit={"variable": "MASTER_PORT"}),
    elsewhere("store_frozen_at_the_start", "The store is frozen from the start.", "SIGSTOP to its process",
              STORE_LOST, culprit={}, exit_code=3),
    # tests/test_hosts.py
    elsewhere("host_cut_off", "A host's link is cut in mid-run.", "`ip link set eth0 down` on it",
              "fail plugin.alone.lost", culprit={"node": "host-b"}, also=(RUN_LOST,)),
    elsewhere("launcher_dies", "A host's torchrun is killed.", "`deeds.kill_launcher` on rank 2",
              "fail plugin.alone.lost", culprit={"node": "host-b"}, also=(RUN_LOST,)),
    elsewhere("supervisor_dies_elsewhere", "A supervisor is killed on another host, and torchrun ends it.",
              "`deeds.kill_supervisor` on rank 3", "fail plugin.alone.lost",
              culprit={"rank": 3, "node": "host-b"}),
    elsewhere("rank_0_dies", "Rank 0's supervisor is killed.", "`deeds.kill_supervisor` on rank 0", RUN_LOST,
              culprit={"rank": 0}),
    elsewhere("slow_link", "A link is slow (200 Mbit/s).", "`tc tbf` on one host", exit_code=0, culprit={}),
    # tests/test_surroundings.py
    elsewhere("no_time", "A check does not fit the run's deadline.", "its estimate is a day",
              "error preflight.run.deadline", culprit={}, exit_code=3),
    elsewhere("unresolvable", "MASTER_ADDR does not resolve.", "MASTER_ADDR=no-such-host.invalid", RENDEZVOUS,
              culprit={"variable": "MASTER_ADDR"}),
    elsewhere("interrupted_torchrun", "Ctrl-C for torchrun and all its ranks.", "SIGINT to the process group",
              "error preflight.run.interrupted", culprit={}, exit_code=3),
)  # fmt: skip

ALL = (*IN_MEASURE, *SOUND_BUT_RUDE, *IN_COLLECTIVES, *IN_JUDGE, *PLUGINS, *CONTROL)
