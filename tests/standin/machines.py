"""Machines that are not here: a stand-in `libnvidia-ml.so.1`, and the /sys and /proc that go with it.

    machine = machines.load("h100_nvswitch", tmp_path, {"gpu.3.ecc.volatile.uncorrected": 1})
    subprocess.run(machine.command([sys.executable, ...]), env=os.environ | machine.environ())

`load` expands `machines/NAME.toml` into flat keys (`machine.keys`), lays `changes` over them and writes them where the
library reads them at every nvmlInit. A key whose value is None is taken away. An unknown key is refused, so that no
fault is a typing error.

A value is a number, a text, or `!N`: the function returns the NVML error N (`!2` invalid argument, `!3` not supported,
`!4` no permission, `!14` corrupted InfoROM, `!15` lost, `!16` reset required, `!999` unknown). A key that is missing is
`!3`. Units: bytes, MHz, mW, MB/s, degrees C.

The whole machine
    driver=535.161.08  cuda=12020  nvml=12.535.161.08  count=8 (GPUs that NVML lists)
    fields=197 (a field from this number on is `!2`)
    fabric.versions=2 (the newest struct that the fabric call knows; missing: 3)
    init=!9 (driver not loaded), !18 (library and driver differ)   init.hang=1   init.slow=SECONDS
    excluded.count=0   excluded.N.bus|uuid|device_id|subsystem_id

A GPU: each key begins with `gpu.I.`, I is NVML's index
    behaviour   handle=!N (the look-up fails)   calls=!N (every call on the handle fails)
                hang=FUNCTION[,FUNCTION]   blocks for ever. A name may end with `*`; `*` alone is every call on the
                    handle, but not the look-up, which is called `handle`
                slow=FUNCTION:SECONDS[,..]   the same names
                lost_after=N   the N-th call on the handle and all later ones are `!15`, in later processes too
    identity    name uuid serial board_part vbios inforom.image minor module_id architecture capability=9.0
                pci.bus=00000000:1B:00.0 pci.device_id=0x233010DE pci.subsystem_id
    memory      memory.total|reserved|used (free is the rest; version 1 counts `reserved` as used)   bar1.total|used
    modes       compute_mode persistence virtualization mig.mode|pending|max
    errors      ecc.mode ecc.pending ecc.volatile|aggregate.corrected|uncorrected
                sram.volatile|aggregate.parity|secded|corrected   sram.bucket.l2|sm|pcie|mcu|other   sram.threshold
                remapped.corrected|uncorrected|pending|failure
                retired.single|double (how many pages; their addresses are made up)   retired.pending
                inforom.valid=1, !14
    state       pstate reasons reasons.supported   temperature temperature.margin
                temperature.threshold.shutdown|slowdown|memory_max|gpu_max|acoustic_min|acoustic_current|acoustic_max|gps
                power.usage|enforced|limit|default|min|max
                clock.graphics|sm|memory|video   clock.max.*  clock.application.*  clock.default.*  (the same four)
    processes   processes.compute|graphics|mps=PID:BYTES[,PID:BYTES]   BYTES may be `-` (not available); empty: none
    work        utilization.gpu|memory (per cent)   pcie.tx|rx (KB/s)
    pcie        pcie.generation|width|replay|speed   pcie.max.generation|width   pcie.gpu_max.generation
    nvlink      links=18 (a higher link is `!2`; missing: `!3`)   links.capable=36 (so far answers the capability call)
                link.L.state|version   link.L.remote.type (0 GPU, 2 switch)   link.L.remote.bus|device_id
                    (the remote end of a link whose state is 0 is `!3`)
                link.L.capability.0..5   link.L.error.replay|recovery|crc_flit|crc_data|ecc_data
    fabric      fabric.state|status|clique|health|summary   fabric.cluster=32 hex digits
    fields      field.ID.SCOPE, else field.ID (any scope): a number (unsigned int), or one after its type: `int -6`,
                `ull 7`, `double 0.5`, `ll`, `ulong`, `ushort`.   `!N` is the field's own nvmlReturn
    topology    topology.J: from this GPU to GPU J 10 one switch, 20 several, 30 host bridge, 40 NUMA node, 50 system
                p2p.J.read|write|nvlink|atomics|prop|unknown: 0 fine, 1 chipset, 2 GPU, 3 topology, 4 registry,
                    5 not supported, 6 unknown (to the GPU itself: missing is `!2`)
                affinity.cpus=0-47,96-143   affinity.memory=0   affinity.cpus.socket (if unlike the node's)
                numa (Grace only)
    MIG         mig.M.KEY: the same keys for the handle of instance M: mig.M.uuid, mig.M.name, mig.M.memory.total

A key in `late` holds only from the nvmlInit after the file `$PREFLIGHT_STANDIN.late` was made (`machine.make_late()`,
or a plugin in mid-run): counters that rise, memory that stays taken.

`absent` names C functions that this library does not have, beside those that a driver of its age lacks. No setter
exists at all.

/sys is the machine's (PCI devices, infiniband, NUMA nodes), but it keeps the cgroups, CPUs and network interfaces of
this machine; of /proc, /proc/driver is. The PCIe links in sysfs follow `pcie.*` of the GPU, also at the port above it.
`files` are further files, by absolute path: a text, or None to take away a file or folder of the machine's own /sys and
/proc/driver, and of what the driver has in /dev. Elsewhere (/dev/kmsg, /proc/cmdline) the text comes over the file that
is there. A machine's own `[files]`, by path, are laid below those of a test.

`services` are names of processes that run beside the command, until it ends. All processes of this machine see them,
but where the machine has `own_processes`: then these, those of the command and a `kthreadd` with number 2 are all that
there are, as on a host.

/dev is this machine's, with the `nvidiactl` that the driver makes: a run of level quick chooses nccl by it.
"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.standin import expand, keys, library, sysfs
from tests.standin.tree import Tree

NAMES = tuple(sorted(path.stem for path in expand.FOLDER.glob("*.toml")))
needs_gcc = pytest.mark.skipif(not library.can_build, reason="the stand-in library is built by gcc")
can_mount = os.geteuid() == 0 and shutil.which("unshare") is not None
needs_mounts = pytest.mark.skipif(not can_mount, reason="a /sys of its own needs root and unshare")


@dataclass(frozen=True)
class Machine:
    """A machine in a folder of its own."""

    name: str
    folder: Path
    keys: Mapping[str, object]
    """The flat keys, with the changes."""
    mounts: tuple[tuple[str, str], ...]
    """(what, over which path), in order."""
    services: tuple[Path, ...]
    library: Path
    """The folder of `libnvidia-ml.so.1`."""
    own_processes: bool = False

    def environ(self) -> dict[str, str]:
        """What makes pynvml see the machine; /sys and /proc are for `command`."""
        return {"LD_LIBRARY_PATH": str(self.library), "PREFLIGHT_STANDIN": str(self.folder / "keys")}

    def command(self, words: Sequence[str] = ()) -> list[str]:
        """The words, run with the /sys and the /proc/driver of the machine; without words a prefix. Needs root."""
        services = [f"{shlex.quote(str(service))} $$" for service in self.services]
        script = "\n".join([self.before(), *services, 'exec "$@"'])
        own = ["--pid", "--fork", "--kill-child"] if self.own_processes else []
        return ["unshare", "--mount", *own, "sh", "-ec", script, "sh", *words]

    def before(self) -> str:
        """Lines of a shell that give a mount namespace the machine's /sys and /proc/driver."""
        root = shlex.quote(str(self.folder))
        lines = [f"{root}/kthreadd infinity &", "mount -t proc none /proc"] if self.own_processes else []
        lines += [f"mount -t tmpfs none {root}/own", f"tar -xf {root}/own.tar -C {root}/own"]
        lines += [f"mkdir {root}/own/work", f"mount --rbind /dev {root}/dev"]
        lines += [f"mount -t overlay none -o lowerdir=/dev,upperdir={root}/own/dev,workdir={root}/own/work /dev"]
        lines += [
            f"mount --rbind {root}/dev/{folder} /dev/{folder}"
            for folder in ("shm", "pts")
            if os.path.ismount(f"/dev/{folder}")
        ]
        lines += [f"mount --rbind {shlex.quote(what)} {shlex.quote(over)}" for what, over in self.mounts]
        return "\n".join(lines)

    def make_late(self) -> None:
        """From the next nvmlInit on the late keys hold."""
        (self.folder / "keys.late").touch()


def load(
    name: str,
    folder: Path,
    changes: Mapping[str, object] | None = None,
    late: Mapping[str, object] | None = None,
    absent: Sequence[str] = (),
    files: Mapping[str, str | None] | None = None,
    services: Sequence[str] = (),
    own_processes: bool = False,
) -> Machine:
    """The machine `name` in a new folder inside `folder`. The arguments are told above."""
    spec = expand.spec(name)
    gpus = expand.gpus(spec)
    changed = {**expand.keys(spec, gpus), **(changes or {})}
    for key, value in [*changed.items(), *(late or {}).items()]:
        keys.check(key, value)
    root = _new_folder(folder, name)
    lines = [f"{key}={value}" for key, value in changed.items() if value is not None]
    lines += [f"late {key}={value}" for key, value in (late or {}).items()]
    (root / "keys").write_text("\n".join(lines) + "\n")
    visible = list(spec.get("visible", range(len(gpus))))
    tree = sysfs.tree(spec, _with_changes(gpus, changed, visible), visible)
    mounts = [*_mounts(root), *_extra(root, tree, {**spec.get("files", {}), **(files or {})})]
    tree.save(root / "own.tar")
    built = library.build({*spec.get("absent", ()), *absent})
    kept = {key: value for key, value in changed.items() if value is not None}
    return Machine(name, root, kept, tuple(mounts), _services(root, built, services), built, own_processes)


def _services(root: Path, built: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """A process is called as its file, here a link."""
    (root / "services").mkdir()
    (root / "kthreadd").symlink_to(shutil.which("sleep") or "sleep")
    for name in names:
        (root / "services" / name).symlink_to(built / library.SERVICE)
    return tuple(root / "services" / name for name in names)


def _new_folder(folder: Path, name: str) -> Path:
    """Two machines of one test may have one name."""
    taken = sum(1 for path in folder.glob(f"{name}-*"))
    root = folder / f"{name}-{taken}"
    for empty in ("real", "own", "dev"):
        (root / empty).mkdir(parents=True)
    return root


def _with_changes(
    gpus: Sequence[expand.Gpu], changed: Mapping[str, object], visible: Sequence[int]
) -> list[expand.Gpu]:
    """The GPUs for sysfs, which shows the changed width, but counts them as the host does."""
    found = list(gpus)
    for index, number in enumerate(visible):
        prefix = f"gpu.{index}."
        told = {key.removeprefix(prefix): value for key, value in changed.items() if key.startswith(prefix)}
        found[number] = replace(gpus[number], keys=told)
    return found


def _mounts(root: Path) -> list[tuple[str, str]]:
    """The machine's folders over the real ones; but cgroups, CPUs and network interfaces stay those of this machine."""
    kept = [
        "fs/cgroup",
        "devices/system/cpu",
        *(f"class/net/{interface.name}" for interface in Path("/sys/class/net").iterdir()),
    ]
    back = [(f"{root}/real/{path}", f"/sys/{path}") for path in kept]
    return [("/sys", f"{root}/real"), (f"{root}/own/sys", "/sys"), *back, (f"{root}/own/proc/driver", "/proc/driver")]


def _extra(root: Path, tree: Tree, files: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Files of the machine's own folders change there; others are mounted over what is there."""
    mounts = []
    for number, (path, text) in enumerate(files.items()):
        own = path.startswith(("/sys/", "/proc/driver/", "/dev/nvidia"))
        if text is None:
            assert own, f"{path} is not the machine's own"
            tree.take_away(path)
        elif own:
            tree.files[tree.resolved(path)] = text
        else:
            (root / f"file-{number}").write_text(text)
            mounts.append((f"{root}/file-{number}", path))
    return mounts
