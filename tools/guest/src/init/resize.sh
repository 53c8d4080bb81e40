# The disk becomes larger, is used to its new end, and becomes as small as it was: the guest is told
# and sees it while it is up.

size=/sys/block/$disk/size
before=$(cat "$size")
chunk=$((4 * 1048576))

# Waits until the kernel has been told that the disk has $1 sectors.
becomes() {
    for _ in $(seq 300); do
        [ "$(cat "$size")" = "$1" ] && return 0
        usleep 100000
    done
    echo "the disk has $(cat "$size") sectors, not $1"
    return 1
}

# A chunk of the pattern at byte $1 of the disk.
put() {
    piece $chunk 0 | dd of="/dev/$disk" bs=1M iflag=fullblock oflag=direct,seek_bytes seek="$1" conv=notrunc status=none
}
same() {
    dd if="/dev/$disk" bs=1M iflag=direct,skip_bytes,count_bytes skip="$1" count=$chunk status=none |
        cmp - /tmp/chunk || { echo "what is at $1 changed"; return 1; }
}

fill() {
    piece $chunk 0 > /tmp/chunk
    put 0
    put $((before * 512 - chunk))
}

grow() {
    ask grow
    becomes $((before * 2))
    fact grown_bytes "$(blockdev --getsize64 "/dev/$disk")"
    head -c $chunk /dev/zero > /tmp/zeroes
    dd if="/dev/$disk" bs=1M iflag=direct,skip_bytes,count_bytes skip=$((before * 512)) count=$chunk status=none |
        cmp - /tmp/zeroes
    for at in $((before * 512)) $((before * 1024 - chunk)); do
        put "$at"
        same "$at"
    done
    same 0
    same $((before * 512 - chunk))
}

# What waits in the page cache for a part that goes would be lost: it is written by direct I/O here.
shrink() {
    ask shrink
    becomes "$before"
    fact shrunk_bytes "$(blockdev --getsize64 "/dev/$disk")"
    same 0
    same $((before * 512 - chunk))
    if put $((before * 512)) 2> /tmp/refusal; then
        echo "something was written behind the end"
        return 1
    fi
}

step look
step fill
step grow
step shrink
