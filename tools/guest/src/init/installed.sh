# A guest that booted from its own disk. At first it makes a file system, fills it, and works while the server is killed; when it
# boots again, it finds all that. Asks `verified_rounds`.
# The partitions: what the firmware and the boot loader read; the file system; a raw one for rounds of writes.

files_partition=2
rounds_on=/dev/${disk}3
. /scripts/files.sh
. /scripts/rounds.sh

look_installed() {
    if [ -d /sys/firmware/efi ]; then fact firmware uefi; else fact firmware bios; fi
    fact kernel "$(uname -r)"
    fact command_line "$(cat /proc/cmdline)"
    fact cpus "$(nproc)"
    fact disk "/dev/$disk"
    fact size_bytes "$(blockdev --getsize64 "/dev/$disk")"
    fact queues "$(ls "/sys/block/$disk/mq" | wc -l)"
    case $disk in
    sd*) fact driver "$(cat /sys/class/scsi_host/host0/proc_name)" ;;
    *) fact driver virtio_blk ;;
    esac
    for device in /sys/bus/virtio/devices/*; do
        # One digit per feature that was negotiated; 34 is VIRTIO_F_RING_PACKED.
        [ -e "$device/features" ] && fact packed "$(cut -c35 "$device/features")"
    done
    await_partition 3
}

# The magic number of ext4's superblock.
has_files() {
    [ "$(dd if="/dev/$disk$files_partition" bs=1 skip=1080 count=2 status=none | hexdump -e '2/1 "%02x"')" = 53ef ]
}

# How many rounds each writer made, for the next boot.
keep_rounds() {
    mount_rw
    cp /tmp/rounds-* /mnt
    unmount
}

find_rounds() {
    cp /mnt/rounds-* /tmp
    for count in /tmp/rounds-*; do fact "found.${count##*-}" "$(cat "$count")"; done
}

step look_installed
if has_files; then
    fact boot second
    step check_filesystem
    step mount_rw
    step verify_files
    step find_rounds
    step unmount
    step verify
else
    fact boot first
    step format
    step mount_rw
    step write_files
    step unmount
    step verified_rounds
    step verify
    step keep_rounds
fi
