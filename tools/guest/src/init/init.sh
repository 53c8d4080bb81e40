#!/bin/sh
# The guest's first process: loads the drivers, runs scenarios, switches off.
# Kernel command line: bp.scenarios=NAME,NAME and what /scripts/lib.sh expects.

/bin/busybox mkdir -p /bin /proc /sys /dev /tmp /mnt
/bin/busybox --install -s /bin
# What is in /tools is called by its path: this shell prefers its own poorer applets.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

# Standard input and output are the serial console: 3 and 4 keep it while steps are redirected.
exec 3>&1 4<&0
. /scripts/lib.sh

# What the boot loader printed last may lack a line feed.
say
for module in /modules/*; do
    insmod "$module" || fail load "insmod $module"
done
disk=$(find_disk) || fail find "no disk appeared"
export disk

# A guest that booted from its disk finds there what others find in memory.
[ -e /pattern ] || read_pattern || fail find "no pattern"

# Each in a shell of its own. No condition around it: in one, `set -e` has no effect.
for scenario in $(parameter scenarios | tr , ' '); do
    [ -e "/scripts/$scenario.sh" ] || fail "$scenario" "there is no such scenario"
    ( . "/scripts/$scenario.sh" )
done

say "BP-END"
poweroff -f
