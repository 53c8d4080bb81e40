# The firmware and a boot loader read the kernel and all that is here from the disk: it is written and read on.

# Its last 16 MiB.
end=$(($(blockdev --getsize64 "/dev/$disk") - 16 * 1048576))

write_end() {
    fact command_line "$(cat /proc/cmdline)"
    fact driver "$(cat /sys/class/scsi_host/host0/proc_name)"
    fact size_bytes "$(blockdev --getsize64 "/dev/$disk")"
    dd if=/pattern of="/dev/$disk" bs=256k iflag=fullblock oflag=direct,seek_bytes seek=$end conv=notrunc status=none
}

read_end() {
    dd if="/dev/$disk" bs=128k iflag=direct,skip_bytes skip=$end status=none | cmp - /pattern
    # As the firmware's interrupt service needs it.
    [ "$(dd if="/dev/$disk" bs=1 skip=510 count=2 status=none | hexdump -e '2/1 "%02x"')" = 55aa ]
}

step write_end
step read_end
