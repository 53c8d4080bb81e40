#!/bin/sh
# The guest's first process: loads the drivers, runs one scenario, switches off.
# Kernel command line: bp.scenario=NAME and what /scripts/lib.sh expects.

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
while read -r module; do
    insmod "/modules/$module" || fail load "insmod $module"
done < /modules/order
disk=$(find_disk) || fail find "no disk appeared"
export disk

. "/scripts/$(parameter scenario).sh"

say "BP-END"
poweroff -f
