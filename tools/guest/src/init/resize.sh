# The disk becomes larger, is used to its new end, and becomes as small as it was: the guest is told
# and sees it while it is up. Asks `grow`, for twice its size, and `shrink`, for the first.

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

# Chunk $1 of the pattern at byte $2 of the disk: writes it and makes it stable, or fails unless it is there.
put() {
    piece $chunk $(($1 * chunk)) |
        dd of="/dev/$disk" bs=1M iflag=fullblock oflag=direct,seek_bytes seek="$2" conv=notrunc,fsync status=none
}
same() {
    piece $chunk $(($1 * chunk)) > /tmp/chunk
    dd if="/dev/$disk" bs=1M iflag=direct,skip_bytes,count_bytes skip="$2" count=$chunk status=none |
        cmp - /tmp/chunk || { echo "what is at $2 changed"; return 1; }
}

fill() {
    put 0 0
    put 1 $((before * 512 - chunk))
}

grow() {
    ask grow
    becomes $((before * 2))
    fact grown_bytes "$(blockdev --getsize64 "/dev/$disk")"
    head -c $chunk /dev/zero > /tmp/zeroes
    dd if="/dev/$disk" bs=1M iflag=direct,skip_bytes,count_bytes skip=$((before * 512)) count=$chunk status=none |
        cmp - /tmp/zeroes
    # The first also over what is there: a snapshot that the host has made keeps that.
    for at in 0 $((before * 512)) $((before * 1024 - chunk)); do
        put 2 "$at"
        same 2 "$at"
    done
    same 1 $((before * 512 - chunk))
}

# What waits in the page cache for a part that goes would be lost: it is written by direct I/O here.
shrink() {
    ask shrink
    becomes "$before"
    fact shrunk_bytes "$(blockdev --getsize64 "/dev/$disk")"
    same 2 0
    same 1 $((before * 512 - chunk))
    if put 0 $((before * 512)) 2> /tmp/refusal; then
        echo "something was written behind the end"
        return 1
    fi
}

step look
step fill
step grow
step shrink
