# The disk of the first boot, served read-only: every byte verifies, nothing can be written.

mount_ro() { mount -o ro -t ext4 "/dev/${disk}1" /mnt; }

# Succeeds if the command fails.
refused() {
    if "$@"; then echo "not refused: $*"; return 1; fi
}

writes_refused() {
    refused dd if=/pattern of="/dev/$disk" bs=4096 count=1 oflag=direct
    refused dd if=/pattern of="/dev/${disk}2" bs=4096 count=1 conv=fsync
    refused /tools/blkdiscard "/dev/${disk}2"
    refused /tools/blkdiscard -z "/dev/${disk}2"
    refused mount -o remount,rw /mnt
}

step look
step check_filesystem
step mount_ro
step verify_files
step verify_raw
step writes_refused
step unmount
