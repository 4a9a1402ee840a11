"""The command line of QEMU: what must be on it whatever else changes."""

from runtimed.core.specs import Shape
from runtimed.node.vmm.argv import Emulator, Places, Start, kernel_line, qemu_argv

TCG = Emulator(command=("/usr/bin/qemu-system-x86_64",), accel="tcg", tsc_khz=2_596_150)
KVM = Emulator(command=("/usr/bin/qemu-system-x86_64",), accel="kvm", tsc_khz=2_596_150)
SHAPE = Shape(vcpu=2, memory_mib=4096, disk_mib=4096)


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_a_clone_opens_its_templates_memory_read_only_and_privately() -> None:
    backend = value(qemu_argv(TCG, SHAPE, Places(), Start.CLONE), "-object")

    assert "mem-path=/t/memory" in backend
    assert {"share=off", "readonly=on", "rom=off"} <= set(backend.split(","))


def test_no_machine_has_a_network_card() -> None:
    for start in Start:
        line = " ".join(qemu_argv(KVM, SHAPE, Places(), start))

        assert "-netdev" not in line and "-nic" not in line and "virtio-net" not in line
        assert "-nodefaults" in line


def test_seccomp_denies_spawning_and_privileges() -> None:
    sandbox = value(qemu_argv(TCG, SHAPE, Places(), Start.CLONE), "-sandbox").split(",")

    assert sandbox == ["on", "obsolete=deny", "elevateprivileges=deny", "spawn=deny", "resourcecontrol=deny"]


def test_only_the_machines_own_disk_can_be_written() -> None:
    argv = qemu_argv(TCG, SHAPE, Places(), Start.CLONE)
    disks = [argv[i + 1] for i, option in enumerate(argv) if option == "-blockdev"]

    writable = [d for d in disks if "read-only=on" not in d]
    assert len(writable) == 1
    assert "file.filename=/m/disk.qcow2" in writable[0]


def test_under_emulation_the_guest_is_told_the_clock_rate_and_under_kvm_it_is_not() -> None:
    assert "tsc_early_khz=2596150" in kernel_line(TCG)
    assert "tsc_early_khz" not in kernel_line(KVM)


def test_the_console_is_a_ring_so_that_a_guest_cannot_fill_the_hosts_disk() -> None:
    argv = qemu_argv(TCG, SHAPE, Places(), Start.NEW)

    assert value(argv, "-serial") == "chardev:console"
    assert any(part.startswith("ringbuf,id=console,size=") for part in argv)


def test_frozen_layers_lie_in_order_between_the_templates_disk_and_the_machines_own() -> None:
    argv = qemu_argv(TCG, SHAPE, Places(layers=("/l/0", "/l/1")), Start.WOKEN)
    disks = [
        dict(part.split("=", 1) for part in argv[i + 1].split(",")) for i, o in enumerate(argv) if o == "-blockdev"
    ]
    backing = {disk["node-name"]: disk.get("backing") for disk in disks}

    assert backing["disk0"] == "layer1"
    assert backing["layer1"] == "layer0"
    assert backing["layer0"] == "saved"
    assert backing["saved"] == "rootfs"
