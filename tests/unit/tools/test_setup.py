"""tools/setup on a machine of stand-ins: what it asks of apt, sudo and pip, and what it says when it cannot go on."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REAL = ("bash", "env", "dirname", "basename", "cat", "grep", "awk", "sha256sum", "cut", "touch", "rm", "mkdir", "cp")
NEEDED = ("bwrap", "mmdebstrap", "newuidmap", "mkfs.ext4")

PYTHON = """\
case "$*" in
    *version_info*) exit {old} ;;
    *ensurepip*) exit 0 ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    -V) echo "Python 3.9.2" ;;
esac
echo "python $*" >> "{log}"
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A checkout with tools/setup, and a folder that holds every program there is."""

    checkout: Path
    programs: Path
    log: Path

    def has(self, name: str, script: str = "") -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!{self.programs}/bash\necho "{name} $*" >> "{self.log}"\n{script}\n')
        path.chmod(0o755)

    def has_python(self, *, old: bool = False) -> None:
        path = self.programs / "python3"
        path.write_text(f"#!{self.programs}/bash\n" + PYTHON.format(old=int(old), log=self.log))
        path.chmod(0o755)

    def setup(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.programs / "bash"), str(self.checkout / "tools" / "setup")],
            env={"PATH": str(self.programs)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, name: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Root, a new Python, and everything but what a test takes away."""
    programs, checkout = tmp_path / "bin", tmp_path / "checkout"
    programs.mkdir()
    (checkout / "tools").mkdir(parents=True)
    # Without the folders of the administrator, which would show this host's own programs.
    script = (ROOT / "tools" / "setup").read_text().replace('PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"', "")
    (checkout / "tools" / "setup").write_text(script)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    for name in REAL:
        found = shutil.which(name)
        assert found is not None, f"this host has no {name}"
        (programs / name).symlink_to(found)
    made = Machine(checkout=checkout, programs=programs, log=tmp_path / "log")
    for name in (*NEEDED, "apt-get", "sleep"):
        made.has(name)
    made.has("id", 'case "$1" in -u) echo 0 ;; -un) echo root ;; esac')
    made.has_python()
    return made


def test_a_machine_that_has_everything_is_not_touched(machine: Machine) -> None:
    done = machine.setup()

    assert done.returncode == 0, done.stderr
    assert machine.calls("apt-get") == []
    assert any("pip install" in call for call in machine.calls("python"))


def test_only_what_is_missing_is_installed_and_its_name_is_printed(machine: Machine) -> None:
    (machine.programs / "bwrap").unlink()
    (machine.programs / "newuidmap").unlink()
    done = machine.setup()

    assert done.returncode == 0, done.stderr
    assert "==> installing system packages: bubblewrap uidmap\n" in done.stdout
    assert machine.calls("apt-get")[-1].endswith("install -y --no-install-recommends bubblewrap uidmap")


def test_the_second_run_makes_nothing(machine: Machine) -> None:
    machine.setup()
    before = machine.calls("python")
    done = machine.setup()

    assert (done.returncode, done.stdout) == (0, "")
    assert not any("pip install" in call for call in machine.calls("python")[len(before) :])


def test_a_new_dependency_is_installed(machine: Machine) -> None:
    machine.setup()
    before = machine.calls("python")
    with (machine.checkout / "pyproject.toml").open("a") as project:
        project.write("# another dependency\n")
    machine.setup()

    assert any("pip install" in call for call in machine.calls("python")[len(before) :])


def test_a_source_that_cannot_be_read_does_not_stop_an_install_that_can(machine: Machine) -> None:
    (machine.programs / "bwrap").unlink()
    machine.has("apt-get", 'case "$*" in *update*) exit 100 ;; esac')

    assert machine.setup().returncode == 0


def test_an_install_that_fails_is_tried_again_and_then_told(machine: Machine) -> None:
    (machine.programs / "bwrap").unlink()
    machine.has("apt-get", 'case "$*" in *install*) exit 100 ;; esac')
    done = machine.setup()

    assert done.returncode == 1
    assert sum("install" in call for call in machine.calls("apt-get")) == 5
    assert done.stderr.endswith("By hand, as root: apt-get update && apt-get install -y bubblewrap\n")


def test_who_is_not_root_uses_sudo_where_it_asks_nothing(machine: Machine) -> None:
    (machine.programs / "mmdebstrap").unlink()
    machine.has("id", 'case "$1" in -u) echo 1000 ;; -un) echo root ;; esac')
    machine.has("sudo", 'shift; [ "$1" = true ] || exec "$@"')
    machine.has("true")
    machine.has("usermod")

    assert machine.setup().returncode == 0
    assert machine.calls("apt-get")[-1].endswith("mmdebstrap")


def test_without_root_and_without_sudo_the_command_is_named(machine: Machine) -> None:
    (machine.programs / "mmdebstrap").unlink()
    machine.has("id", 'case "$1" in -u) echo 1000 ;; -un) echo somebody ;; esac')
    done = machine.setup()

    assert done.returncode == 1
    assert "As root: apt-get update && apt-get install -y mmdebstrap\n" in done.stderr
    assert machine.calls("apt-get") == []


def test_an_old_python_is_one_sentence(machine: Machine) -> None:
    machine.has_python(old=True)
    done = machine.setup()

    assert done.returncode == 1
    assert done.stderr == "setup: Python 3.11 or newer is needed, and Python 3.9.2 is what is here.\n"
