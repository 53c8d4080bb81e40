# The host has less space than the disk, and more later: the guest notices nothing but a pause. Asks `full` while
# files are written that do not fit.

file_bytes=$((8 * 1048576))
files="1 2 3 4"

file() { piece $file_bytes $(($1 * 65536)); }

write_files() {
    { for number in $files; do file "$number" > "/mnt/file-$number"; done; sync; } &
    ask full
    wait $!
}

# Read from the disk, and the kernel has seen no error.
verify() {
    unmount
    check_filesystem
    mount_rw
    for number in $files; do
        file "$number" | cmp - "/mnt/file-$number"
    done
    unmount
    if dmesg | grep -i -e 'i/o error' -e 'blk_update_request' -e 'ext4-fs error' -e 'ext4-fs warning'; then
        echo "the kernel has seen an error"
        return 1
    fi
}

step look
step partition
step format
step mount_rw
step write_files
step verify
