# Two disks of a SCSI controller are used by many at once while units are reset, and while a command of one is held for longer
# than the kernel gives it.

. /scripts/load.sh

# What was under way is sent once more, and nothing is lost: neither of the held disk's nor of the other one's.
reset_held() {
    keep_writing
    busy "$disk" 1
    ask hold
    read_held &
    reading=$!
    busy "$held" 1
    reset_and_release --device
    touch /tmp/enough
    wait $reading
    wait $writing
}

# The same unit again and again while all write to it.
reset_busy() {
    for number in 1 2 3; do
        keep_writing
        busy "$disk" 4
        /tools/sg_reset --no-esc --device "/dev/$disk"
        touch /tmp/enough
        wait $writing
    done
}

# Linux' driver for the controller has no other resets: they fail, and nobody is disturbed.
other_resets() {
    keep_writing
    busy "$disk" 1
    for kind in target bus host; do
        if /tools/sg_reset --no-esc --$kind "/dev/$disk"; then
            echo "there is a reset of the $kind"
            return 1
        fi
    done
    touch /tmp/enough
    wait $writing
}

# The driver calls nothing back: it relies on the device to answer some time.
patience() {
    echo 1 > "/sys/block/$held/device/timeout"
    ask hold
    read_held &
    reading=$!
    busy "$held" 1
    # Longer than the kernel's time, however fast the guest is.
    sleep 2
    ask release
    wait $reading
    echo 30 > "/sys/block/$held/device/timeout"
    fact held_state "$(cat "/sys/block/$held/device/state")"
}

disk=$(disk_of_target 0) || fail find "no disk at target 0"
held=$(disk_of_target 1) || fail find "no disk at target 1"

step partition
step format
step mount_rw
step write_all
step reset_held
step read_all
step reset_busy
step read_all
step other_resets
step patience
step read_all
step unmount
step check_filesystem
