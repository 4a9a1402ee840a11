#!/bin/busybox sh
# The first program in a machine: inserts the few modules, mounts the root filesystem and the agent's disk, and hands over to the agent.
# Disks are found by the serial number that the host gave them, because device names follow the order of probing.
export PATH=/bin

fail() {
    echo "runtime-init: $*" > /dev/console
    reboot -f
}

disk_with_serial() {
    for block in /sys/block/vd*; do
        if [ "$(cat "$block/serial" 2>/dev/null)" = "$1" ]; then
            echo "/dev/${block##*/}"
            return 0
        fi
    done
    return 1
}

wait_for_disk() {
    tries=0
    until disk_with_serial "$1"; do
        tries=$((tries + 1))
        [ "$tries" -gt 200 ] && return 1
        sleep 0.05
    done
}

mount -t proc proc /proc || fail "cannot mount /proc"
mount -t sysfs sysfs /sys || fail "cannot mount /sys"
mount -t devtmpfs devtmpfs /dev || fail "cannot mount /dev"

while read -r module; do
    insmod "/modules/$module.ko" || fail "cannot insert the kernel module $module"
done < /modules/order

rootfs=$(wait_for_disk rootfs) || fail "no disk has the serial number 'rootfs'"
agent=$(wait_for_disk agent) || fail "no disk has the serial number 'agent'"

mount -t ext4 -o noatime,noinit_itable "$rootfs" /newroot || fail "cannot mount the root filesystem on $rootfs"
[ -d /newroot/run ] || mkdir /newroot/run || fail "cannot make /run in the image"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /newroot/run || fail "cannot mount /run"
mkdir -p /newroot/run/runtime/guest /newroot/dev /newroot/proc /newroot/sys || fail "cannot make the mount points in the image"
mount -t ext4 -o ro,noatime "$agent" /newroot/run/runtime/guest || fail "cannot mount the agent's disk on $agent"
[ -x /newroot/run/runtime/guest/bin/init ] || fail "the agent's disk has no /bin/init"

for folder in dev proc sys; do
    mount --move "/$folder" "/newroot/$folder" || fail "cannot move /$folder into the image"
done
exec switch_root /newroot /run/runtime/guest/bin/init
