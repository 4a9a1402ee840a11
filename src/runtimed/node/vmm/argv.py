"""Says how QEMU is called: command lines as pure functions of what is wanted, option and value together.

In a jail the paths are `/m` for the machine's own folder (the only one it may write), `/t` for its template's and `/i`
for the image's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from runtimed.core.specs import Shape

Accel = Literal["kvm", "tcg"]

KERNEL, INITRD, ROOTFS, AGENT_DISK = "vmlinux", "initrd.cpio", "rootfs.img", "agent.img"
MEMORY, DEVICE_STATE, DISK = "memory", "state", "disk.qcow2"
QMP_SOCKET, AGENT_SOCKET = "qmp.sock", "agent.sock"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where QEMU finds its files; the defaults are those of the jail."""

    machine: str = "/m"
    template: str = "/t"
    state: str = f"/t/{DEVICE_STATE}"
    """Device state to load: the template's, or what was kept of a clone."""
    kernel: str = f"/i/{KERNEL}"
    initrd: str = f"/i/{INITRD}"
    rootfs: str = f"/i/{ROOTFS}"
    agent_disk: str = f"/i/{AGENT_DISK}"
    layers: tuple[str, ...] = ()
    """Frozen disks between the template's and the machine's own, oldest first."""


CONSOLE_RING_BYTES = 64 * 1024
"""The guest's console is kept in QEMU and overwrites itself, so that a guest cannot fill the host's disk with it."""

TCG_CODE_CACHE_MIB = 128
"""Unbounded it grows to 800 MiB after `import pandas`; with this, the same speed at half of the memory."""


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """What is the same for every machine of this host."""

    command: tuple[str, ...]
    """How to start qemu-system-x86_64 inside the jail."""
    accel: Accel
    tsc_khz: int


def kernel_line(emulator: Emulator) -> str:
    """The guest's kernel command line.

    `tsc_early_khz`: without it, boots hang in the calibration of the clock under emulation (6 to 8 of 30).
    `panic=-1 reboot=t`: a guest that panics ends its machine instead of hanging.
    `nowatchdog`: a machine that was paused for a day has no soft lockup. That, pressure figures, audit and the path
    checks of two security modules without rules are also code that every clone translates anew under emulation.
    """
    parts = [
        "console=ttyS0",
        "loglevel=6",
        "reboot=t",
        "panic=-1",
        "no_timer_check",
        "mitigations=off",
        "random.trust_cpu=on",
        "cgroup_no_v1=all",
        "psi=0",
        "audit=0",
        "nowatchdog",
        "lsm=landlock,yama",
    ]
    if emulator.accel == "tcg":
        parts += ["tsc=reliable", f"tsc_early_khz={emulator.tsc_khz}"]
    return " ".join(parts)


def _accel(emulator: Emulator) -> list[str]:
    if emulator.accel == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", f"tcg,thread=multi,tb-size={TCG_CODE_CACHE_MIB}", "-cpu", "max,la57=off"]


def _memory(shape: Shape, places: Places, *, private: bool) -> list[str]:
    if private:  # a clone: copy on write over the template's file, which is opened read-only (QEMU 8.2 and later)
        where = f"mem-path={places.template}/{MEMORY},share=off,readonly=on,rom=off"
    else:
        where = f"mem-path={places.machine}/{MEMORY},share=on"
    return ["-m", f"{shape.memory_mib}M", "-object", f"memory-backend-file,id=mem,size={shape.memory_mib}M,{where}"]


class Start(StrEnum):
    """How a machine begins, which decides what lies under its memory and its disk."""

    NEW = "new"
    """A cold boot of the image: memory in a file of its own, disk over the image."""
    CLONE = "clone"
    """Memory and device state of a template, disk over the template's."""
    WOKEN = "woken"
    """As a clone, with pages and device state that were kept of another one."""
    FROM_DISK = "from_disk"
    """A cold boot of a disk that has a template below it, with memory that can be kept like a clone's."""


def _disks(places: Places, *, private: bool) -> list[str]:
    # Base files are shared by every machine and never written, hence no locking.
    shared = "read-only=on,file.driver=file,file.locking=off"
    argv = ["-blockdev", f"driver=raw,node-name=rootfs,{shared},file.filename={places.rootfs}"]
    backing = "rootfs"
    if private:
        argv += [
            "-blockdev",
            f"driver=qcow2,node-name=saved,{shared},file.filename={places.template}/{DISK},backing=rootfs",
        ]
        backing = "saved"
        for number, layer in enumerate(places.layers):
            frozen = f"driver=qcow2,node-name=layer{number},{shared},file.filename={layer},backing={backing}"
            argv += ["-blockdev", frozen]
            backing = f"layer{number}"
    # cache.no-flush: a guest's flush reaches the host's page cache, so that data survives the machine but not
    # a power cut of the host, which a sandbox does not promise.
    argv += [
        "-blockdev",
        f"driver=qcow2,node-name=disk0,file.driver=file,file.filename={places.machine}/{DISK},backing={backing},"
        "discard=unmap,cache.no-flush=on",
        "-device",
        "virtio-blk-device,drive=disk0,serial=rootfs",
        "-blockdev",
        f"driver=raw,node-name=agent,{shared},file.filename={places.agent_disk}",
        "-device",
        "virtio-blk-device,drive=agent,serial=agent",
    ]
    return argv


def qemu_argv(emulator: Emulator, shape: Shape, places: Places, start: Start) -> list[str]:
    """One microVM."""
    argv = [
        *emulator.command,
        "-machine",
        "microvm,pit=off,pic=off,suppress-vmdesc=on,memory-backend=mem",
        *_accel(emulator),
        "-smp",
        str(shape.vcpu),
        *_memory(shape, places, private=start is not Start.NEW),
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-kernel",
        places.kernel,
        "-initrd",
        places.initrd,
        "-append",
        kernel_line(emulator),
        *_disks(places, private=start is not Start.NEW),
        "-chardev",
        f"ringbuf,id=console,size={CONSOLE_RING_BYTES}",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-device",
        "-chardev",
        f"socket,id=agent,path={places.machine}/{AGENT_SOCKET},server=on,wait=off",
        "-device",
        "virtserialport,chardev=agent,name=agent",
        "-qmp",
        f"unix:{places.machine}/{QMP_SOCKET},server=on,wait=off",
    ]
    if start in (Start.CLONE, Start.WOKEN):
        argv += ["-incoming", "defer"]  # then `load` over the monitor; the vCPUs run as soon as it is done
    if start is Start.WOKEN:
        # What was kept is device state alone, without the header that says which machine it is of.
        argv += ["-global", "migration.send-configuration=off"]
    return argv


IGNORE_SHARED = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}
"""Device state without memory: what is in the template's file is not in the stream. Only QMP can say so."""
