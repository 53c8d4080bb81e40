# Files of many sizes on a mounted file system, with the sums of what was to be written.

# Around each limit of blocks and pages, and some large ones.
sizes="0 1 511 512 513 4095 4096 4097 65537 1048579 4194304"
small_files=8

# Writes $3 bytes of the pattern from offset $2 to the file $1.
write_one() {
    piece "$3" "$2" > "/mnt/$1"
    hash=$(piece "$3" "$2" | sum)
    echo "$hash  $1" >> /tmp/sums
    fact "sum.$1" "$hash"
}

write_files() {
    : > /tmp/sums
    for size in $sizes; do
        # Large files cannot start late in the pattern; the odd step gives each its own bytes.
        offset=$(((size * 31 + 65521) % (16777216 - size + 1)))
        write_one "file-$size" "$offset" "$size"
    done
    mkdir /mnt/small
    for number in $(seq "$small_files"); do
        write_one "small/$number" $((number * 65521)) $((number * 131))
    done
    piece 1048576 1048576 > /tmp/direct
    dd if=/tmp/direct of=/mnt/direct bs=32k oflag=direct status=none
    hash=$(sum < /tmp/direct)
    echo "$hash  direct" >> /tmp/sums
    fact sum.direct "$hash"
    cp /tmp/sums /mnt/SHA256SUMS
    sync
    echo "$(wc -l < /tmp/sums) files"
    df -h /mnt
}
