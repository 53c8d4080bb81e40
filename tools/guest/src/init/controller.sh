# A SCSI controller: units on two targets that are there from the start, one that comes and goes, and one that becomes larger.
# Asks `add`, `delete` and `grow` for that.

# The disk of host:channel:target:lun 0:0:$1:$2.
unit() {
    for path in /sys/block/sd*; do
        case $(readlink -f "$path/device") in
            */[0-9]*:0:$1:$2) basename "$path"; return 0 ;;
        esac
    done
    return 1
}

# Waits until the unit is there.
comes() {
    for _ in $(seq 600); do
        unit "$1" "$2" > /dev/null && return 0
        usleep 100000
    done
    echo "after a minute there is no unit $1:$2"
    return 1
}

goes() {
    for _ in $(seq 600); do
        unit "$1" "$2" > /dev/null || return 0
        usleep 100000
    done
    echo "after a minute unit $1:$2 is still there"
    return 1
}

find_units() {
    comes 0 0
    comes 0 1
    comes 2 5
    fact units "$(ls -d /sys/block/sd* | wc -l)"
    sys=/sys/block/$(unit 0 0)
    fact queues "$(ls "$sys/mq" | wc -l)"
    fact vendor "$(cat "$sys/device/vendor" | tr -d ' ')"
    fact write_cache "$(cat "$sys/queue/write_cache" | tr ' ' _)"
    fact discard_max_bytes "$(cat "$sys/queue/discard_max_bytes")"
    fact size_bytes "$(blockdev --getsize64 "/dev/$(unit 0 0)")"
    fact third_bytes "$(blockdev --getsize64 "/dev/$(unit 2 5)")"
}

# A file system on a unit gives back what it got, also after it was mounted anew.
use() {
    device=/dev/$(unit "$1" "$2")
    /tools/mkfs.ext4 -q -F "$device"
    mount -t ext4 "$device" /mnt
    piece 4194304 0 > /tmp/chunk
    cp /tmp/chunk /mnt/pattern
    umount /mnt
    mount -t ext4 "$device" /mnt
    cmp /tmp/chunk /mnt/pattern
    rm /mnt/pattern
    fstrim /mnt
    umount /mnt
    /tools/e2fsck -f -n "$device"
}

use_all() {
    use 0 0
    use 2 5
}

# All processors at once, each at a place of its own: all queues.
use_queues() {
    device=/dev/$(unit 0 0)
    piece 4194304 0 > /tmp/chunk
    for part in 0 1 2 3; do
        dd if=/tmp/chunk of="$device" bs=64k oflag=direct,seek_bytes seek=$((part * 4194304)) conv=notrunc status=none &
    done
    wait
    for part in 0 1 2 3; do
        dd if="$device" bs=64k iflag=direct,skip_bytes,count_bytes skip=$((part * 4194304)) count=4194304 status=none |
            cmp - /tmp/chunk
    done
}

come_and_go() {
    ask add
    comes 1 7
    use 1 7
    ask delete
    goes 1 7
}

grow() {
    size=/sys/block/$(unit 2 5)/size
    before=$(cat "$size")
    ask grow
    for _ in $(seq 300); do
        [ "$(cat "$size")" = $((before * 2)) ] && break
        usleep 100000
    done
    fact grown_bytes "$(($(cat "$size") * 512))"
    piece 4194304 0 > /tmp/chunk
    dd if=/tmp/chunk of="/dev/$(unit 2 5)" bs=1M oflag=direct,seek_bytes seek=$((before * 1024 - 4194304)) conv=notrunc status=none
}

step find_units
step use_all
step use_queues
step come_and_go
step grow
