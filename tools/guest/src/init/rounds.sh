# Writers that write and read back until the host says that it is enough, in rounds whose data is known.
# Their place is the device $rounds_on, 8 MiB of it for each.

chunk=$((1024 * 1024))

# $1 bytes of the pattern from where the writer and the round say, so that no two rounds are the same.
round_of() {
    piece $chunk $((($1 * 7919 + $2 * 12289) % 8192 * 512))
}

# Writes and verifies by direct I/O until told to stop: its own 8 MiB of $rounds_on, a chunk per round.
load() {
    round=0
    while [ ! -e /tmp/stop ]; do
        at=$(($1 * 8 * 1048576 + round % 8 * chunk))
        round_of "$1" "$round" > "/tmp/wanted-$1"
        taskset -c "$2" dd if="/tmp/wanted-$1" of="$rounds_on" bs=16k oflag=direct,seek_bytes seek=$at conv=notrunc status=none
        taskset -c "$2" dd if="$rounds_on" bs=64k iflag=direct,skip_bytes,count_bytes skip=$at count=$chunk status=none |
            cmp - "/tmp/wanted-$1" || { echo "round $round of writer $1 was not read as written"; return 1; }
        round=$((round + 1))
    done
    echo $round > "/tmp/rounds-$1"
}

verified_rounds() {
    writers=$((2 * $(nproc)))
    pids=
    for writer in $(seq 0 $((writers - 1))); do
        load "$writer" $((writer % $(nproc))) &
        pids="$pids $!"
    done
    ask verified_rounds
    touch /tmp/stop
    for pid in $pids; do wait "$pid"; done
    for writer in $(seq 0 $((writers - 1))); do
        fact "rounds.$writer" "$(cat "/tmp/rounds-$writer")"
    done
}

# The last rounds of all writers are still there, and the kernel has seen no error.
verify() {
    for writer in $(seq 0 $((2 * $(nproc) - 1))); do
        rounds=$(cat "/tmp/rounds-$writer")
        for round in $(seq $((rounds > 8 ? rounds - 8 : 0)) $((rounds - 1))); do
            round_of "$writer" "$round" > /tmp/wanted
            dd if="$rounds_on" bs=64k iflag=direct,skip_bytes,count_bytes status=none \
                skip=$((writer * 8 * 1048576 + round % 8 * chunk)) count=$chunk | cmp - /tmp/wanted
        done
    done
    if dmesg | grep -i -e 'i/o error' -e 'blk_update_request' -e 'timed out'; then
        echo "the kernel has seen an error"
        return 1
    fi
}
