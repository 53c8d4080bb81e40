# The same load on several disks in turn, which differ in how the guest reaches them. Asks `begin` when all are there.

# Prints the name of the disk whose serial number is $1.
disk_with() {
    for _ in $(seq 300); do
        for path in /sys/block/sd* /sys/block/vd*; do
            # Behind the page's header of 4 bytes; a virtio disk has a file of its own.
            serial=$(cat "$path/serial" 2> /dev/null || tail -c +5 "$path/device/vpd_pg80" 2> /dev/null | tr -d ' \000') || true
            [ "$serial" = "$1" ] && basename "$path" && return 0
        done
        usleep 100000
    done
    echo "there is no disk $1" >&2
    return 1
}

find_all() {
    for serial in $disks; do
        echo "$serial is $(disk_with "$serial")"
        disk_with "$serial" > "/tmp/$serial"
    done
    # Merging, sorting and read-ahead are the guest's business, not the device's.
    for path in /sys/block/*/queue/scheduler; do
        echo none > "$path"
    done
}

# Each disk once with each load. Who is first is another one in each round.
round() {
    for load in $(parameter loads | tr , ' '); do
        for serial in $disks; do
            rate=$(/tools/disk_load "/dev/$(cat "/tmp/$serial")" "${load%-*}" "${load#*-}" "$(parameter depth)" \
                "$(parameter warm_up_ms)" "$(parameter time_ms)")
            fact "rate.$1.$load.$serial" "$rate"
        done
    done
}

disks=$(parameter disks | tr , ' ')
step find_all
ask begin
for number in $(seq "$(parameter rounds)"); do
    step round "$number"
    disks="${disks#* } ${disks%% *}"
done
