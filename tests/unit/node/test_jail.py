"""The jail's command line: what a machine's process may see."""

from pathlib import Path

from runtimed.node.vmm.jail import JAIL_UID_FIRST, Jail, jail_argv, jail_uid


def jail(tmp_path: Path, *, uid: int | None) -> Jail:
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "etc").mkdir()
    return Jail(
        root=root,
        read_only=[(Path("/x/kernel"), "/i/vmlinux")],
        writable=[(Path("/x/machine"), "/m")],
        devices=(),
        uid=uid,
    )


def test_the_jail_has_no_network_and_sees_no_other_process(tmp_path: Path) -> None:
    argv = jail_argv(jail(tmp_path, uid=None), info_fd=3, command=["qemu"])

    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-user", "--clearenv"} <= set(argv)


def test_only_the_machines_folder_is_bound_for_writing(tmp_path: Path) -> None:
    argv = jail_argv(jail(tmp_path, uid=None), info_fd=3, command=["qemu"])

    writable = [argv[i + 1 : i + 3] for i, option in enumerate(argv) if option == "--bind"]
    assert writable == [["/x/machine", "/m"]]


def test_as_root_the_command_runs_as_a_user_of_its_own_without_capabilities(tmp_path: Path) -> None:
    argv = jail_argv(jail(tmp_path, uid=1_900_000_001), info_fd=3, command=["qemu", "-x"])

    inside = argv[argv.index("--") + 1 :]
    assert inside[0] == "/usr/bin/setpriv"
    assert inside[inside.index("--reuid") + 1] == "1900000001"
    assert "--bounding-set=-all" in inside and "--no-new-privs" in inside
    assert inside[-2:] == ["qemu", "-x"]


def test_two_machines_have_two_user_ids() -> None:
    first = jail_uid("0a0b0c0d-0000-4000-8000-000000000000")
    second = jail_uid("0a0b0d0d-0000-4000-8000-000000000000")

    assert first != second
    assert first >= JAIL_UID_FIRST
