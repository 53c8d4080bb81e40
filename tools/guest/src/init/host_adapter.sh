# A SCSI disk behind a host adapter: used by many writers at once, also while it and the bus are reset, and a second
# one, at target 1, whose requests are held until resets are over, or until the kernel calls a command back.
# Asks `before_large` and `after_large`, between which are 64 writes of 64 KiB, `busy` when the held disk has all that the
# driver gives it, and what load.sh asks.

. /scripts/load.sh

look_scsi() {
    device=/sys/block/$disk/device
    fact kernel "$(uname -r)"
    fact driver "$(cat /sys/class/scsi_host/host0/proc_name)"
    fact vendor "$(tr -d ' ' < "$device/vendor")"
    fact size_bytes "$(blockdev --getsize64 "/dev/$disk")"
    fact tags "$(cat "$device/queue_type")"
    fact queue_depth "$(cat "$device/queue_depth")"
    fact write_cache "$(cat "/sys/block/$disk/queue/write_cache")"
    # Behind the page's header of 4 bytes.
    fact serial "$(tail -c +5 "$device/vpd_pg80" | tr -d ' \000')"
    expect size "$(blockdev --getsize64 "/dev/$disk")"
    expect cache "$(tr ' ' _ < "/sys/block/$disk/queue/write_cache")"
}

# The host counts them: 64 requests of 64 KiB each, while nobody else writes.
large_requests() {
    sync
    ask before_large
    dd if=/pattern of="/dev/${disk}2" bs=64k count=64 iflag=fullblock oflag=direct conv=notrunc status=none
    ask after_large
}

# All that the driver has room for is at the disk at the same time: the host sees it there.
many_in_flight() {
    depth=$(cat "/sys/block/$held/device/queue_depth")
    jobs=
    ask hold
    for _ in $(seq "$depth"); do
        read_held &
        jobs="$jobs $!"
    done
    busy "$held" "$depth"
    ask busy
    ask release
    for job in $jobs; do wait "$job"; done
}

# Resets the held disk ($1 is "device") or all ("bus", "host"), which the kernel logs as $2, while both are in use.
reset() {
    before=$(dmesg | grep -c "$2") || true
    keep_writing
    busy "$disk" 1
    ask hold
    read_held 2> /dev/null &
    reading=$!
    busy "$held" 1
    reset_and_release "--$1"
    touch /tmp/enough
    logged "$2" $((before + 1))
}

# The reset of one disk that the driver offers: until Linux 6.7 that of a device, then that of a target. The driver sends the
# same message for both (BUS DEVICE RESET); the kernel refuses the other one.
disk_reset() {
    if grep -q ' sym53c8xx_eh_target_reset_handler' /proc/kallsyms; then echo target; else echo device; fi
}

# The driver gives up what the held disk had to do. The other one hears nothing of it.
reset_disk() {
    kind=$(disk_reset)
    fact disk_reset "$kind"
    if [ "$kind" = target ]; then
        reset_idle_target
    else
        reset device 'DEVICE RESET operation complete'
        if wait $reading; then
            echo "a command outlived the reset of its disk"
            return 1
        fi
    fi
    wait $writing
    read_held
}

# The handler for targets goes through the driver's list of commands while the reset ones leave it, and the kernel (6.12)
# crashes if there are any. So the held disk has nothing to do here; resets of the bus and of the adapter find it in use.
reset_idle_target() {
    keep_writing
    busy "$disk" 1
    /tools/sg_reset --no-esc --target "/dev/$held"
    touch /tmp/enough
    logged 'TARGET RESET operation complete' 1
}

# The kernel sends once more what both had to do.
reset_bus() {
    reset bus 'SCSI BUS has been reset'
    wait $reading
    wait $writing
}

# As the kernel does when nothing else has helped: the driver starts the adapter anew, and the kernel waits for ten
# seconds.
reset_host() {
    reset host 'HOST RESET operation complete'
    wait $reading
    wait $writing
}

# The kernel aborts what is not done in a second, and the disk is there as before.
abort() {
    device=/sys/block/$held/device
    patience=$(cat "$device/timeout")
    echo 0 > "$(echo "$device"/scsi_disk/*/max_retries)"
    echo 1 > "$device/timeout"
    ask hold
    read_held 2> /dev/null &
    reading=$!
    logged 'ABORT operation started' 1
    # The disk has been notified within this time.
    sleep 1
    ask release
    if wait $reading; then
        echo "a command that was to be aborted succeeded"
        return 1
    fi
    echo "$patience" > "$device/timeout"
    logged 'ABORT operation complete' 1
    fact aborts "$(dmesg | grep -c 'ABORT operation complete')"
    read_held
    fact held_state "$(cat "$device/state")"
}

# Which of the two the kernel calls sda is not said.
disk=$(disk_of_target 0) || fail find "no disk at target 0"
held=$(disk_of_target 1) || fail find "no disk at target 1"

step look_scsi
step partition
step large_requests
step format
step mount_rw
step write_all
step read_all
step many_in_flight
step reset_disk
step reset_bus
step read_all
step reset_host
step read_all
step abort
step unmount
step check_filesystem
