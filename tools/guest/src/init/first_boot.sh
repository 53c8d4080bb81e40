# A new disk: look at it, fill it, leave it clean. Sums are of the source, not of what was read back.

. /scripts/files.sh

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
