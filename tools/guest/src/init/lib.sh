# What the scenarios share. The protocol that the host reads, one message per line:
#   BP-STEP name          a step begins
#   BP| text              a line that the step printed
#   BP: key=value         a fact
#   BP-OK name            the step succeeded
#   BP-FAIL name reason   it did not; the guest switches off
#   BP-ASK name           waits until the host sends a line
#   BP-END                the scenario is complete

say() { printf '%s\n' "$*" >&3; }
fact() { say "BP: $1=$2"; }
ask() { say "BP-ASK $1"; read -r _ <&4; }

fail() {
    say "BP-FAIL $*"
    poweroff -f
    sleep 60
}

# Value of bp.NAME= on the kernel's command line.
parameter() {
    for word in $(cat /proc/cmdline); do
        case $word in bp.$1=*) echo "${word#*=}"; return 0 ;; esac
    done
    return 1
}

# Runs a function as a step. It runs in a shell of its own in which any failing command ends it.
step() {
    say "BP-STEP $1"
    ( set -e -o pipefail; "$@" ) > /tmp/output 2>&1
    status=$?
    while read -r line; do say "BP| $line"; done < /tmp/output
    [ $status = 0 ] || fail "$1" "status $status: $(tail -n 1 /tmp/output)"
    say "BP-OK $1"
}

# Prints the name of the first virtio or SCSI disk. SCSI disks appear some time after their driver.
find_disk() {
    for _ in $(seq 100); do
        for path in /sys/block/vd* /sys/block/sd*; do
            [ -e "$path/size" ] && basename "$path" && return 0
        done
        usleep 100000
    done
    return 1
}

# Reads the pattern from the fourth partition of the disk that has one. Partitions appear some time after their disk.
read_pattern() {
    for _ in $(seq 300); do
        for partition in /dev/vd?4 /dev/sd?4; do
            [ -b "$partition" ] && dd if="$partition" of=/pattern bs=1M status=none && return 0
        done
        usleep 100000
    done
    return 1
}

# Prints the name of the SCSI disk at target $1, LUN 0.
disk_of_target() {
    for _ in $(seq 300); do
        for path in /sys/bus/scsi/devices/0:0:"$1":0/block/*; do
            [ -e "$path/size" ] && basename "$path" && return 0
        done
        usleep 100000
    done
    echo "no disk at target $1" >&2
    return 1
}

# What the kernel knows of the disk; checked against what the host asked for.
look() {
    sys=/sys/block/$disk
    queue=$sys/queue
    queues=$(ls "$sys/mq" | wc -l)
    serial=$(cat $sys/serial 2>/dev/null || true)
    bytes=$(blockdev --getsize64 "/dev/$disk")
    cache=$(cat $queue/write_cache)
    read_only=$(blockdev --getro "/dev/$disk")
    fact kernel "$(uname -r)"
    fact cpus "$(nproc)"
    fact disk "/dev/$disk"
    fact size_bytes "$bytes"
    fact queues "$queues"
    fact logical_block_size "$(cat $queue/logical_block_size)"
    fact physical_block_size "$(cat $queue/physical_block_size)"
    fact serial "$serial"
    fact write_cache "$cache"
    fact read_only "$read_only"
    # One digit per feature that was negotiated; 34 is VIRTIO_F_RING_PACKED.
    fact packed "$(cut -c35 "$sys/device/features")"
    fact max_segments "$(cat $queue/max_segments)"
    fact discard_max_bytes "$(cat $queue/discard_max_bytes)"
    fact discard_granularity "$(cat $queue/discard_granularity)"
    fact write_zeroes_max_bytes "$(cat $queue/write_zeroes_max_bytes)"
    expect size "$bytes"
    expect queues "$queues"
    expect serial "$serial"
    expect cache "$(echo "$cache" | tr ' ' _)"
    expect read_only "$read_only"
}

# Fails the step unless bp.$1 is $2; a parameter that was not given is not checked.
expect() {
    wanted=$(parameter "$1") || return 0
    [ "$wanted" = "$2" ] && return 0
    echo "$1 is '$2', the host expected '$wanted'"
    return 1
}

# $1 bytes of the pattern from offset $2.
piece() {
    dd if=/pattern bs=64k iflag=skip_bytes,count_bytes skip="$2" count="$1" status=none
}

# The SHA-256 of standard input, in hexadecimal.
sum() { sha256sum | cut -d ' ' -f 1; }

# The partition that has the file system.
files_partition=1

# Two partitions: 60 % for a file system, the rest stays raw.
partition() {
    mib=$(($(blockdev --getsize64 "/dev/$disk") / 1048576))
    printf '%s\n' o n p 1 '' "+$((mib * 6 / 10))M" n p 2 '' '' w | fdisk "/dev/$disk" > /tmp/fdisk 2>&1 ||
        { cat /tmp/fdisk; return 1; }
    await_partition 2
    fdisk -l "/dev/$disk"
}

# Partitions appear some time after their disk or table.
await_partition() {
    for _ in $(seq 50); do
        [ -b "/dev/$disk$1" ] && return 0
        usleep 100000
    done
    echo "/dev/$disk$1 is missing"
    return 1
}

# Tables are written now, not later by a kernel thread: the host watches the space used.
# e2fsprogs discards the partition first.
format() {
    /tools/mkfs.ext4 -q -F -L blockplane -E lazy_itable_init=0,lazy_journal_init=0 "/dev/$disk$files_partition"
}

mount_rw() { mount -t ext4 "/dev/$disk$files_partition" /mnt; }
unmount() { umount /mnt; }

# How often each queue's own interrupt came: a queue without any was not in use.
interrupts() {
    grep -e 'virtio.*-req\.' /proc/interrupts > /tmp/interrupts || return 0
    while read -r _ counts; do
        total=0
        for word in $counts; do
            case $word in *[!0-9]*) break ;; esac
            total=$((total + word))
        done
        name=${counts##*-}
        fact "interrupts.$name" "$total"
        [ "$total" -gt 0 ] || { echo "queue $name was never used"; return 1; }
    done < /tmp/interrupts
}

# The raw partition holds one region of 1 MiB for each CPU, 8 MiB apart.
# As the kernel maps CPUs to queues, all queues carry data at the same time.
region_mib=1
region_stride_mib=8

# Prints the sum of region $1, read with direct I/O in blocks of $2 bytes on the CPU of that number.
read_region() {
    taskset -c "$1" dd if="/dev/${disk}2" bs="$2" iflag=direct,skip_bytes,count_bytes \
        skip=$(($1 * region_stride_mib * 1048576)) count=$((region_mib * 1048576)) status=none | sum
}

check_filesystem() { /tools/e2fsck -f -n "/dev/$disk$files_partition"; }

verify_files() {
    cd /mnt
    while read -r wanted name; do
        hash=$(sum < "$name")
        fact "sum.$name" "$hash"
        [ "$hash" = "$wanted" ] || { echo "$name has changed"; return 1; }
    done < SHA256SUMS
    echo "$(wc -l < SHA256SUMS) files verified"
    ls -l /mnt
    df -h /mnt
}

verify_raw() {
    for cpu in $(seq 0 $(($(nproc) - 1))); do
        fact "sum.raw-$cpu" "$(read_region "$cpu" 32768)"
    done
}
