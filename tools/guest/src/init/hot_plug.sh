# A second disk comes while the guest is up, is used, and goes: the host plugs it in and out. Asks `plug`, `unplug`, and
# `gone` when it is.

second=vdb

# Waits until the kernel has a second disk ($1 is "there"), or has none ("gone").
becomes() {
    for _ in $(seq 600); do
        [ -e "/sys/block/$second/size" ] && now=there || now=gone
        [ "$now" = "$1" ] && return 0
        usleep 100000
    done
    echo "after a minute $second is $now"
    return 1
}

plug() {
    becomes gone
    ask plug
    becomes there
    fact second_bytes "$(blockdev --getsize64 "/dev/$second")"
    fact second_queues "$(ls "/sys/block/$second/mq" | wc -l)"
    fact second_serial "$(cat "/sys/block/$second/serial")"
}

# A file system on it gives back what it got, also after it was mounted anew.
use() {
    /tools/mkfs.ext4 -q -F "/dev/$second"
    mount -t ext4 "/dev/$second" /mnt
    cp /pattern /mnt/pattern
    umount /mnt
    mount -t ext4 "/dev/$second" /mnt
    cmp /pattern /mnt/pattern
    umount /mnt
    /tools/e2fsck -f -n "/dev/$second"
}

unplug() {
    ask unplug
    becomes gone
    ask gone
}

# The first disk has seen nothing of it.
first() {
    piece 4194304 0 | dd of="/dev/$disk" bs=1M iflag=fullblock oflag=direct status=none
    piece 4194304 0 > /tmp/chunk
    dd if="/dev/$disk" bs=1M count=4 iflag=direct status=none | cmp - /tmp/chunk
}

step look
step plug
step use
step unplug
step first
