# Run inside every image by its own /bin/sh, after its packages are there and before the recipe's files and commands.
# Writes the user by hand: an essential system has no useradd.
set -eu
if grep -q '^[^:]*:[^:]*:1000:' /etc/passwd /etc/group; then
    echo "runtime-problem: the image already has a user or a group with id 1000"
    exit 1
fi
shell=/bin/sh
[ ! -x /bin/bash ] || shell=/bin/bash
password='*' # nobody logs in with one; "x" would refer to a shadow file, which an essential system does not have
if [ -f /etc/shadow ]; then
    password=x
    echo "runtime:*:19000:0:99999:7:::" >> /etc/shadow
fi
[ ! -f /etc/gshadow ] || echo "runtime:*::" >> /etc/gshadow
echo "runtime:x:1000:" >> /etc/group
echo "runtime:$password:1000:1000::/workspace:$shell" >> /etc/passwd
mkdir /workspace
chown 1000:1000 /workspace
if [ -d /etc/sudoers.d ]; then
    echo "runtime ALL=(ALL:ALL) NOPASSWD: ALL" > /etc/sudoers.d/runtime
    chmod 440 /etc/sudoers.d/runtime
fi
