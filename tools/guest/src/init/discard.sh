# Space goes back to the host, and only the space that was named. At each question the host
# looks at what the image occupies: `raw_written`, `raw_discarded`, `file_written`, `file_trimmed`.

# The raw partition's first three chunks hold the same bytes; the middle one is discarded.
chunk=$((4 * 1048576))
raw() { echo "/dev/${disk}2"; }
fill() {
    piece $chunk 0 | dd of="$(raw)" bs=1M iflag=fullblock oflag=direct,seek_bytes seek=$(($1 * chunk)) conv=notrunc status=none
}

# Reads chunk $1, past the guest's cache.
take() {
    dd if="$(raw)" bs=1M iflag=direct,skip_bytes,count_bytes skip=$(($1 * chunk)) count=$chunk status=none
}

same() {
    take "$1" | cmp - /tmp/chunk || { echo "chunk $1 changed"; return 1; }
}

fill_raw() {
    piece $chunk 0 > /tmp/chunk
    for number in 0 1 2; do fill $number; done
    for number in 0 1 2; do same $number; done
    sync
    ask raw_written
}

discard_raw() {
    [ "$(cat "/sys/block/$disk/queue/discard_max_bytes")" -gt 0 ] || { echo "the disk offers no discard"; return 1; }
    /tools/blkdiscard -o $chunk -l $chunk "$(raw)"
    ask raw_discarded
    same 0
    same 2
    # The specification does not promise zeroes after a discard; it is worth knowing.
    head -c $chunk /dev/zero > /tmp/zeroes
    if take 1 | cmp -s - /tmp/zeroes; then zero=yes; else zero=no; fi
    fact discarded_reads_zero $zero
}

# Not aligned to 4 KiB, so that the edges are seen.
write_zeroes() {
    [ "$(cat "/sys/block/$disk/queue/write_zeroes_max_bytes")" -gt 0 ] ||
        { echo "the disk offers no write zeroes"; return 1; }
    fill 1
    start=$((1048576 + 4096 + 512))
    len=$((1048576 + 512))
    end=$((start + len))
    /tools/blkdiscard -z -o $((chunk + start)) -l $len "$(raw)"
    take 1 > /tmp/after
    { piece $start 0; head -c $len /dev/zero; piece $((chunk - end)) $end; } > /tmp/wanted
    cmp /tmp/after /tmp/wanted
    same 0
    same 2
}

trim_filesystem() {
    mount_rw
    cp /pattern /mnt/deleted
    cp /tmp/chunk /mnt/kept
    sync
    ask file_written
    rm /mnt/deleted
    sync
    /tools/fstrim -v /mnt
    ask file_trimmed
    echo 3 > /proc/sys/vm/drop_caches
    cmp /mnt/kept /tmp/chunk
    umount /mnt
}

step look
step partition
step fill_raw
step discard_raw
step write_zeroes
step format
step trim_filesystem
