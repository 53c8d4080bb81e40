# A file system that many write to at once, and beside it a disk whose requests are held, while both are reset: $disk and $held.
# Asks `hold` and `release`: of the requests of the second disk.

writers=8
file_bytes=524288

# The bytes of file $1: each has its own.
bytes_of() { piece $file_bytes $(($1 * 65521)); }

# Writes file $1 by direct I/O in pieces of another size than its neighbours'.
write_file() {
    bytes_of "$1" > "/tmp/file-$1"
    copy_file "$1"
}

copy_file() {
    dd if="/tmp/file-$1" of="/mnt/file-$1" bs=$((4096 << ($1 % 5))) oflag=direct conv=notrunc status=none
}

# The same again and again until there is /tmp/enough: whoever waits for many at the same time sees them, however
# long each takes to begin.
keep_writing_file() {
    write_file "$1" || return 1
    until [ -e /tmp/enough ]; do copy_file "$1" || return 1; done
}

# All files are written by process $writing from now on, until there is /tmp/enough.
keep_writing() {
    rm -f /tmp/enough
    all_at_once keep_writing_file &
    writing=$!
}

# Fails unless file $1 reads back from the disk as it was written.
read_file() {
    bytes_of "$1" > "/tmp/file-$1"
    dd if="/mnt/file-$1" bs=$((4096 << (($1 + 2) % 5))) iflag=direct status=none | cmp - "/tmp/file-$1"
}

# Runs $1 for each file, all at the same time.
all_at_once() {
    jobs=
    for number in $(seq $writers); do
        "$1" "$number" &
        jobs="$jobs $!"
    done
    for job in $jobs; do wait "$job" || return 1; done
}

write_all() {
    all_at_once write_file
    sync
}

read_all() {
    umount /mnt
    mount_rw
    all_at_once read_file
    fact files $writers
}

# Waits until a reset or an abort is in the kernel's log $2 times.
logged() {
    for _ in $(seq 300); do
        [ "$(dmesg | grep -c "$1")" -ge "$2" ] && return 0
        usleep 100000
    done
    dmesg | tail -n 20
    echo "the kernel has not logged: $1"
    return 1
}

# It has no more than these 4 KiB: the kernel looks for partitions in them with one request.
read_held() { dd if="/dev/$held" of=/dev/null bs=4096 iflag=direct status=none; }

# Resets by sg_reset with option $1 while requests of the second disk are held. The device does not answer, and a bus stands still,
# until they have ended and their memory is the guest's: they are released once the kernel waits for that.
reset_and_release() {
    /tools/sg_reset --no-esc "$1" "/dev/$held" &
    resetting=$!
    # D: it waits for the device. One that has failed is gone.
    while [ -e /proc/$resetting ] && ! grep -q ') D' /proc/$resetting/stat; do usleep 10000; done
    # The kernel waits, and the device has been notified within this time.
    sleep 1
    ask release
    wait $resetting || { dmesg | tail -n 20; return 1; }
}

# Waits until disk $1 has at least $2 commands.
busy() {
    for _ in $(seq 500); do
        [ "$(cat "/sys/block/$1/device/device_busy")" -ge "$2" ] && return 0
        usleep 10000
    done
    echo "$1 has $(cat "/sys/block/$1/device/device_busy") commands, not $2"
    return 1
}
