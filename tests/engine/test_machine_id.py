"""The id of the machine: it is systemd's own for this application, and none where many machines may have it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from preflight.engine import identity, machine_id

OWN, ASKED = "00112233445566778899aabbccddeeff\n", "96ad312fc54f4840a1096bd2968c05e1"
"""What `systemd-id128 --app-specific=` the application's id says on a machine of this id."""
DISK = "27 1 254:0 / / rw - ext4 /dev/vda rw\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the id of a machine on a disk, and its mounts."""
    (tmp_path / "machine-id").write_text(OWN)
    (tmp_path / "mounts").write_text(DISK)
    monkeypatch.setattr(machine_id, "FILE", str(tmp_path / "machine-id"))
    monkeypatch.setattr(machine_id, "MOUNTS", str(tmp_path / "mounts"))
    return tmp_path


def test_it_is_what_systemd_says_and_does_not_tell_the_machines_own(made: Path) -> None:
    assert machine_id.machine_id() == ASKED
    assert identity.from_environ({}).to_json()["machine"] == ASKED


@pytest.mark.skipif(not shutil.which("systemd-id128"), reason="needs systemd-id128")
@pytest.mark.process
def test_on_this_machine_it_is_systemds() -> None:
    asked = ["systemd-id128", f"--app-specific={machine_id.APPLICATION.hex()}", "machine-id"]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode or not machine_id.machine_id():
        pytest.skip("this machine has no id of its own")
    assert done.stdout.strip() == machine_id.machine_id()


@pytest.mark.parametrize("text", ["", "uninitialized\n", "0" * 32, OWN.upper(), OWN[:20], f"{OWN}{OWN}"])
def test_what_is_no_id_is_none(text: str, made: Path) -> None:
    (made / "machine-id").write_text(text)
    assert machine_id.machine_id() == ""


def test_a_file_that_is_not_there_is_no_id(made: Path) -> None:
    (made / "machine-id").unlink()
    assert machine_id.machine_id() == ""


@pytest.mark.parametrize("type_", ["overlay", "nfs4", "squashfs", "tmpfs", "tomorrowfs"])
def test_an_images_id_and_one_in_memory_are_none(type_: str, made: Path) -> None:
    (made / "mounts").write_text(DISK.replace("ext4", type_))
    assert machine_id.machine_id() == ""


def test_a_container_may_have_its_hosts_and_a_later_mount_counts(made: Path) -> None:
    host = DISK.replace("/ / rw", f"/etc/machine-id {made}/machine-id rw")
    (made / "mounts").write_text(DISK.replace("ext4", "overlay") + host)
    assert machine_id.machine_id() == ASKED
    with (made / "mounts").open("a") as file:
        file.write(host.replace("ext4", "tmpfs"))  # systemd's own, of this boot only
    assert machine_id.machine_id() == ""
