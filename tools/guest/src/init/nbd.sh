# The disk is also an export of an NBD server: what one client writes, the other reads, past the guest's cache.

nbd=/dev/nbd0
chunk=1048576

connect() {
    ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
    # Over two connections.
    /tools/nbd-client -N d -C 2 10.0.2.2 "$(parameter nbd_port)" $nbd
    queue=/sys/block/nbd0/queue
    fact nbd_bytes "$(blockdev --getsize64 $nbd)"
    fact nbd_write_cache "$(cat $queue/write_cache | tr ' ' _)"
    fact nbd_discard_max_bytes "$(cat $queue/discard_max_bytes)"
    fact nbd_read_only "$(blockdev --getro $nbd)"
    expect size "$(blockdev --getsize64 $nbd)"
    # The kernel reads and writes ahead as it likes; what it has in its cache is not what is asked about.
    expect size "$(blockdev --getsize64 "/dev/$disk")"
}

# Writes chunk $2 of the disk $1, with another piece of the pattern for each.
write_chunk() {
    piece $chunk $(($2 * 1048576)) |
        dd of="$1" bs=256k iflag=fullblock oflag=direct,seek_bytes seek=$(($2 * chunk)) conv=notrunc status=none
}

# Whether chunk $2 of the disk $1 is what was written.
check_chunk() {
    piece $chunk $(($2 * 1048576)) > "/tmp/wanted-$2"
    dd if="$1" bs=256k iflag=direct,skip_bytes,count_bytes skip=$(($2 * chunk)) count=$chunk status=none |
        cmp - "/tmp/wanted-$2"
}

# On all processors at once, by each client, and read by the other one.
write_and_read() {
    for number in 0 1 2 3; do write_chunk $nbd $number & done
    for number in 4 5 6 7; do write_chunk "/dev/$disk" $number & done
    wait
    for number in 0 1 2 3; do check_chunk "/dev/$disk" $number; done
    for number in 4 5 6 7; do check_chunk $nbd $number; done
}

flush() {
    piece 512 0 | dd of=$nbd bs=512 conv=notrunc,fsync status=none
}

discard() {
    /tools/blkdiscard -o $chunk -l $chunk $nbd
    head -c $chunk /dev/zero > /tmp/zeroes
    dd if="/dev/$disk" bs=256k iflag=direct,skip_bytes,count_bytes skip=$chunk count=$chunk status=none | cmp - /tmp/zeroes
    check_chunk "/dev/$disk" 2
}

write_zeroes() {
    /tools/blkdiscard -z -o $((3 * chunk)) -l $chunk $nbd
    dd if="/dev/$disk" bs=256k iflag=direct,skip_bytes,count_bytes skip=$((3 * chunk)) count=$chunk status=none |
        cmp - /tmp/zeroes
    check_chunk "/dev/$disk" 2
    check_chunk "/dev/$disk" 4
}

# A file system that is written by NBD, and read from the virtio disk after it was unmounted.
files() {
    /tools/mkfs.ext4 -q -F $nbd
    mount -t ext4 $nbd /mnt
    piece $((4 * chunk)) 0 > /mnt/pattern
    /tools/fstrim /mnt
    umount /mnt
    echo 3 > /proc/sys/vm/drop_caches
    /tools/e2fsck -f -n "/dev/$disk"
    mount -t ext4 "/dev/$disk" /mnt
    piece $((4 * chunk)) 0 | cmp - /mnt/pattern
    umount /mnt
}

disconnect() { /tools/nbd-client -d $nbd; }

step connect
step write_and_read
step flush
step discard
step write_zeroes
step files
step disconnect
