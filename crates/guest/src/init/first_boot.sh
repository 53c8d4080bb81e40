# A new disk: look at it, fill it, leave it clean. Sums are of the source, not of what was read back.

# Around each limit of blocks and pages, and some large ones.
sizes="0 1 511 512 513 4095 4096 4097 65537 1048579 8388608 16777216"
small_files=24

# Writes $3 bytes of the pattern from offset $2 to the file $1.
write_one() {
    piece "$3" "$2" > "/mnt/$1"
    hash=$(piece "$3" "$2" | sum)
    echo "$hash  $1" >> /tmp/sums
    fact "sum.$1" "$hash"
}

write_files() {
    : > /tmp/sums
    for size in $sizes; do
        # Large files cannot start late in the pattern; the odd step gives each its own bytes.
        offset=$(((size * 31 + 65521) % (16777216 - size + 1)))
        write_one "file-$size" "$offset" "$size"
    done
    mkdir /mnt/small
    for number in $(seq "$small_files"); do
        write_one "small/$number" $((number * 65521)) $((number * 131))
    done
    piece 4194304 1048576 > /tmp/direct
    dd if=/tmp/direct of=/mnt/direct bs=32k oflag=direct status=none
    hash=$(sum < /tmp/direct)
    echo "$hash  direct" >> /tmp/sums
    fact sum.direct "$hash"
    cp /tmp/sums /mnt/SHA256SUMS
    sync
    echo "$(wc -l < /tmp/sums) files"
    df -h /mnt
}

write_region() {
    piece $((region_mib * 1048576)) $(($1 * 1048576 + 77)) > "/tmp/region-$1"
    # Blocks of another size in each region: 4 KiB, 8 KiB, 16 KiB, ...
    block=$((4096 << $1))
    taskset -c "$1" dd if="/tmp/region-$1" of="/dev/${disk}2" bs=$block oflag=direct,seek_bytes \
        conv=notrunc seek=$(($1 * region_stride_mib * 1048576)) status=none
}

write_raw() {
    writers=
    for cpu in $(seq 0 $(($(nproc) - 1))); do
        write_region "$cpu" &
        writers="$writers $!"
    done
    for writer in $writers; do wait "$writer"; done
    for cpu in $(seq 0 $(($(nproc) - 1))); do
        hash=$(sum < "/tmp/region-$cpu")
        fact "sum.raw-$cpu" "$hash"
        [ "$(read_region "$cpu" 65536)" = "$hash" ] || { echo "region $cpu reads back differently"; return 1; }
    done
    blockdev --flushbufs "/dev/$disk"
}

step look
step partition
step format
step mount_rw
step write_files
step write_raw
step unmount
step interrupts
