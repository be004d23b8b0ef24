"""Cgroups as they look on other machines: trees of files."""

from pathlib import Path

import pytest

from preflight.sdk import cgroups

GIB = 2**30
V2 = "30 24 0:26 {mounted} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "{number} 25 0:{number} {mounted} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"


def tree(root: Path, cgroup: str, mounts: list[str], files: dict[str, str]) -> str:
    """A /proc and a /sys; `files` lie below /sys/fs/cgroup."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text("\n".join(["22 1 0:21 / /proc rw - proc proc rw", *mounts]) + "\n")
    for name, text in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def version_1(*names: str, mounted: str = "/") -> list[str]:
    return [V1.format(number=number, mounted=mounted, name=name) for number, name in enumerate(names, 40)]


def test_without_cgroups_nothing_is_limited(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert [cgroups.memory(root), cgroups.tasks(root), cgroups.cpus(root)] == [None, None, None]


def test_the_container_of_version_2(tmp_path: Path) -> None:
    """With a namespace of its own: its cgroup is the top."""
    files = {
        "memory.max": str(4 * GIB), "memory.high": "max", "memory.current": str(3 * GIB),
        "memory.stat": f"anon {GIB}\nfile {2 * GIB}\ninactive_file {GIB}\nactive_file {GIB}",
        "cpu.max": "150000 100000", "pids.max": "100", "pids.current": "40", "cpuset.cpus.effective": "0-3,8",
    }  # fmt: skip
    root = tree(tmp_path, "0::/\n", [V2.format(mounted="/")], files)
    assert cgroups.memory(root) == (4 * GIB, 2 * GIB)
    assert cgroups.tasks(root) == (100, 60)
    assert (cgroups.cpus(root), cgroups.cpu_quota(root)) == (1.5, 1.5)


def test_the_job_of_version_2_is_limited_by_a_cgroup_above(tmp_path: Path) -> None:
    """As Slurm's: the step has no limit, the job has."""
    files = {
        "slurm/job_1/memory.max": str(8 * GIB), "slurm/job_1/memory.current": str(GIB),
        "slurm/job_1/step_0/memory.max": "max", "slurm/job_1/step_0/memory.current": str(GIB),
        "slurm/job_1/step_0/cpu.max": "max 100000", "slurm/job_1/step_0/cpuset.cpus.effective": "4-7",
        "slurm/job_1/cpuset.cpus.effective": "0-7", "slurm/pids.max": "max", "memory.stat": "",
    }  # fmt: skip
    root = tree(tmp_path, "0::/slurm/job_1/step_0\n", [V2.format(mounted="/")], files)
    assert cgroups.memory(root) == (8 * GIB, 7 * GIB)
    ((place, room),) = cgroups.memory_by_place(root)
    assert room == (8 * GIB, 7 * GIB) and place.endswith(f":{(tmp_path / 'sys/fs/cgroup/slurm/job_1').stat().st_ino}")
    assert cgroups.tasks(root) is None
    assert (cgroups.cpus(root), cgroups.cpu_quota(root)) == (4, None)


def test_a_cpuset_of_version_2_counts_where_the_cgroups_below_have_no_such_controller(tmp_path: Path) -> None:
    """As systemd's AllowedCPUs= on a slice, or Slurm's on a job, above a service or a step of its own."""
    files = {
        "a/cpuset.cpus.effective": "0-1", "a/b/c/cgroup.procs": "1", "cpuset.cpus.effective": "0-63",
        "cpuset.cpus": "",
    }  # fmt: skip
    root = tree(tmp_path, "0::/a/b/c\n", [V2.format(mounted="/")], files)
    assert cgroups.cpus(root) == 2


def test_the_tightest_of_several_counts(tmp_path: Path) -> None:
    files = {
        "a/memory.max": str(4 * GIB), "a/memory.current": str(4 * GIB),
        "a/b/memory.high": str(2 * GIB), "a/b/memory.max": "max", "a/b/memory.current": str(GIB),
    }  # fmt: skip
    root = tree(tmp_path, "0::/a/b\n", [V2.format(mounted="/")], files)
    assert cgroups.memory(root) == (4 * GIB, 0)
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text("0")
    assert cgroups.memory(root) == (2 * GIB, GIB)


@pytest.mark.parametrize("mounted", ["/docker/abc", "/"], ids=["seen from the host", "in a namespace"])
def test_the_container_of_version_1(mounted: str, tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": str(2 * GIB), "memory/memory.usage_in_bytes": str(GIB),
        "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}",
        "cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000", "pids/pids.max": "7",
        "pids/pids.current": "9", "cpuset/cpuset.cpus": "0-63",
    }  # fmt: skip
    path = mounted if mounted == "/docker/abc" else "/"
    lines = "".join(f"{n}:{name}:{path}\n" for n, name in enumerate(("memory", "cpu,cpuacct", "pids", "cpuset"), 1))
    mounts = version_1("memory", "cpu", "pids", "cpuset", mounted=mounted)
    root = tree(tmp_path, lines, mounts, files)
    assert cgroups.memory(root) == (2 * GIB, 3 * GIB // 2)
    assert cgroups.tasks(root) == (7, 0)
    assert cgroups.cpus(root) == 4


def test_without_limits_version_1_says_so_by_large_numbers(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5",
        "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "pids/pids.max": "max",
    }  # fmt: skip
    root = tree(tmp_path, "1:memory:/\n2:cpu:/\n3:pids:/\n", version_1("memory", "cpu", "pids"), files)
    assert [cgroups.memory(root), cgroups.tasks(root), cgroups.cpus(root)] == [None, None, None]


@pytest.mark.parametrize(("path", "mounted"), [("/../../other", "/"), ("/host/only", "/"), ("/pod/other", "/pod/own")])
def test_a_path_that_is_not_here_leaves_the_top(path: str, mounted: str, tmp_path: Path) -> None:
    """As in a container that sees the host's paths and its own mount."""
    files = {"pids.max": "50", "pids.current": "20", "../pids.max": "1"}
    root = tree(tmp_path, f"0::{path}\n", [V2.format(mounted=mounted)], files)
    assert cgroups.tasks(root) == (50, 30)


def test_both_versions_beside_each_other(tmp_path: Path) -> None:
    mounts = [*version_1("memory"), V2.format(mounted="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")]
    files = {"memory/a/memory.limit_in_bytes": str(GIB), "unified/b/memory.max": "max", "unified/cgroup.procs": "1"}
    root = tree(tmp_path, "4:memory:/a\n0::/b\n", mounts, files)
    assert cgroups.memory(root) == (GIB, GIB)


def test_a_controller_that_is_mounted_nowhere_or_says_nothing_limits_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, "4:pids:/job\n5:cpuset:/\n", version_1("cpuset"), {"cpuset/tasks": "1"})
    assert (cgroups.tasks(root), cgroups.cpus(root)) == (None, None)


def test_how_often_a_cpu_quota_was_used_up(tmp_path: Path) -> None:
    stat = "nr_periods {}\nnr_throttled {}\nthrottled_usec 77"
    files = {"job/cpu.stat": stat.format(100, 40), "job/step/cpu.stat": "usage_usec 5", "cpu.stat": stat.format(9, 9)}
    before = cgroups.cpu_periods(tree(tmp_path / "a", "0::/job/step\n", [V2.format(mounted="/")], files))
    assert sorted(before.values()) == [(9, 9), (100, 40)]
    before, after = {"job": (100, 40), "": (9, 9), "gone": (1, 1)}, {"job": (110, 48), "": (9, 9)}
    assert cgroups.throttled(before, after) == 0.8 and cgroups.throttled({}, after) == 0.0
