# Run inside every image at the end: removes what belongs to the build and to the host that built it.
set -eu
rm -f /etc/apt/apt.conf.d/99mmdebstrap /etc/resolv.conf /etc/machine-id /var/lib/dbus/machine-id
: > /etc/resolv.conf
: > /etc/machine-id
echo runtime > /etc/hostname
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/cache/debconf/*-old /var/lib/dpkg/*-old
rm -rf /var/cache/ldconfig/* /var/cache/man/* /usr/share/doc-base/* /root/.cache
for log in /var/log/*.log /var/log/apt/*.log; do
    [ ! -f "$log" ] || rm -f "$log"
done
mkdir -p /proc /sys /dev /run /tmp
rm -rf /dev/* /run/* /tmp/* /tmp/.[!.]*
