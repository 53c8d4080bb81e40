# What moves data, and what must not.

# Whether somebody compares what a command moves with what the initiator has: the virtio controller does. On a bus
# nobody does: the adapter's driver goes on with filler as long as there is a data phase.
compared() { [ "$driver" != sym53c8xx ]; }

# A command is given up by the transport (OVERRUN), for which sg3-utils have status 99.
overruns() {
    ends 99 sg_raw "$@"
    says 'DID_ERROR'
}

# Bits that a command does not have, places that the disk does not have, and lengths that do not fit.
bad_commands() {
    fill /pattern 0 8
    bad_field 4 0 -- 00 00 00 00 01 00
    # NACA, and what was the link bit.
    bad_field 5 2 -- 00 00 00 00 00 04
    bad_field 5 0 -- 00 00 00 00 00 01
    # RDPROTECT and WRPROTECT: there is no protection information.
    bad_field 1 5 -r 512 -- 28 20 00 00 00 00 00 00 01 00
    bad_field 1 7 -i /pattern -s 512 -- 2a 80 00 00 00 00 00 00 01 00
    # The block behind the last; beginning before it; and beyond what numbers can say.
    refuses 05 2100 000000 -r 512 -- 28 00 00 02 00 00 00 00 01 00
    refuses 05 2100 000000 -r 1024 -- 28 00 00 01 ff ff 00 00 02 00
    refuses 05 2100 000000 -i /pattern -s 512 -- 2a 00 00 02 00 00 00 00 01 00
    refuses 05 2100 000000 -i /pattern -s 1024 -- 8a 00 00 00 00 00 00 01 ff ff 00 00 00 02 00 00
    refuses 05 2100 000000 -r 512 -- 88 00 ff ff ff ff ff ff ff ff 00 00 00 02 00 00
    refuses 05 2100 000000 -r 512 -- 08 1f ff ff 01 00
    # Nothing at all may be asked for, where the disk is.
    does 28 00 00 00 00 00 00 00 00 00
    refuses 05 2100 000000 -- 28 00 00 02 00 01 00 00 00 00
    # More than the 32 MiB that are announced.
    bad_field 10 - -r 512 -- 88 00 00 00 00 00 00 00 00 00 00 01 00 01 00 00
    # Less room, or less data, than the command moves: it moves nothing.
    if compared; then
        overruns -r 512 "$device" 28 00 00 00 00 00 00 00 08 00
        overruns -i /tools/sg_raw -s 512 "$device" 2a 00 00 00 00 00 00 00 08 00
        holds /pattern 0 8
    fi
    # More data than the command takes: what it takes is written.
    piece 1024 4096 > /tmp/two
    sends /tmp/two 1024 2a 00 00 00 00 01 00 00 01 00
    holds /tmp/two 1 1
    piece 512 1024 > /tmp/one
    holds /tmp/one 2 1
}

verify() {
    fill /pattern 64 8
    ends 0 sg_verify --lba=64 --count=8 "$device"
    ends 0 sg_verify --lba=64 --count=8 --ndo=4096 --in=/pattern "$device"
    # One byte, in the third block.
    { piece 1100 0; printf Z; piece 2995 1101; } > /tmp/other
    cmp -s -n 4096 /tmp/other /pattern && complain "the pattern has a Z there"
    ends 14 sg_verify --lba=64 --count=8 --ndo=4096 --in=/tmp/other "$device"
    status=0
    sg_raw -v -i /tmp/other -s 4096 "$device" 2f 02 00 00 00 40 00 00 08 00 > /tmp/said 2>&1 || status=$?
    refused f0 00 0e 0000044c 0a 00000000 1d00 00 000000
}

compare_and_write() {
    fill /pattern 96 4
    # Two blocks as they are, and two that come after.
    piece 1024 0 > /tmp/both
    piece 1024 65536 >> /tmp/both
    ends 0 sg_compare_and_write --in=/tmp/both --lba=96 --num=2 --xferlen=2048 "$device"
    piece 1024 65536 > /tmp/new
    holds /tmp/new 96 2
    piece 1024 1024 > /tmp/rest
    holds /tmp/rest 98 2
    # Now they are others, from the first byte on.
    ends 14 sg_compare_and_write --in=/tmp/both --lba=96 --num=2 --xferlen=2048 "$device"
    says 'Miscompare at byte offset: 0 '
    # The 701st byte differs: that is said, and nothing is written.
    { piece 700 65536; printf Z; piece 323 66237; piece 1024 0; } > /tmp/both
    ends 14 sg_compare_and_write --in=/tmp/both --lba=96 --num=2 --xferlen=2048 "$device"
    says 'Miscompare at byte offset: 700 '
    status=0
    sg_raw -v -i /tmp/both -s 2048 "$device" 89 00 00 00 00 00 00 00 00 60 00 00 00 02 00 00 > /tmp/said 2>&1 || status=$?
    refused f0 00 0e 000002bc 0a 00000000 1d00 00 000000
    holds /tmp/new 96 2
    # Of no blocks; of those behind the disk; with half of the data.
    does 89 00 00 00 00 00 00 00 00 60 00 00 00 00 00 00
    refuses 05 2100 000000 -i /tmp/both -s 1024 -- 89 00 00 00 00 00 00 02 00 00 00 00 00 01 00 00
    ! compared || overruns -i /tmp/both -s 1024 "$device" 89 00 00 00 00 00 00 00 00 60 00 00 00 02 00 00
    holds /tmp/new 96 2
}

write_same() {
    head -c 65536 /dev/zero > /tmp/zeroes
    fill /pattern 128 64
    # One block of the pattern, many times.
    ends 0 sg_write_same --10 --in=/pattern --xferlen=512 --lba=136 --num=8 "$device"
    for lba in $(seq 136 143); do holds /pattern "$lba" 1; done
    # Zeroes; zeroes that need no space; zeroes without a block to write.
    ends 0 sg_write_same --16 --lba=144 --num=8 "$device"
    ends 0 sg_write_same --16 --unmap --lba=152 --num=8 "$device"
    ends 0 sg_write_same --16 --ndob --lba=160 --num=8 "$device"
    ends 0 sg_write_same --16 --ndob --unmap --lba=168 --num=3 "$device"
    holds /tmp/zeroes 144 27
    piece 4096 0 > /tmp/before
    holds /tmp/before 128 8
    piece 10752 22016 > /tmp/after
    holds /tmp/after 171 21
    # WSNZ: nobody says "all that there is" by saying nothing.
    bad_field 7 - -i /pattern -s 512 -- 41 00 00 00 00 80 00 00 00 00
    bad_field 10 - -i /pattern -s 512 -- 93 00 00 00 00 00 00 00 00 80 00 00 00 00 00 00
    # ANCHOR, and what once was PBDATA and LBDATA.
    bad_field 1 4 -i /pattern -s 512 -- 93 18 00 00 00 00 00 00 00 80 00 00 00 08 00 00
    bad_field 1 2 -i /pattern -s 512 -- 41 04 00 00 00 80 00 00 08 00
    refuses 05 2100 000000 -i /pattern -s 512 -- 41 00 00 01 ff ff 00 00 02 00
    holds /tmp/before 128 8
}

# A parameter list of $1 ranges that are the other words each.
ranges() {
    count=$1
    shift
    joined "$@"
    list=$(printf '%04x%04x00000000' $((6 + 16 * count)) $((16 * count)))
    for _ in $(seq "$count"); do list=$list$joined; done
    make /tmp/list "$list"
}

unmap() {
    fill /pattern 256 64
    ends 0 sg_unmap --force --lba=264,280 --num=8,8 "$device"
    asks 72 72 9e 12 00 00 00 00 00 00 01 00 00 00 00 48 00 00
    bytes 0 00000044 00000000 0000000000000100 00000008 00000000 0000000000000108 00000008 01000000
    bytes 40 0000000000000110 00000008 00000000 0000000000000118 00000008 01000000
    piece 4096 0 > /tmp/before
    holds /tmp/before 256 8
    piece 4096 8192 > /tmp/between
    holds /tmp/between 272 8
    piece 16384 16384 > /tmp/after
    holds /tmp/after 288 32
    # No list, a list of no ranges, a range of no blocks, 256 ranges.
    does 42 00 00 00 00 00 00 00 00 00
    ranges 0
    sends /tmp/list 8 42 00 00 00 00 00 00 00 08 00
    ranges 1 0000000000000100 00000000 00000000
    sends /tmp/list 24 42 00 00 00 00 00 00 00 18 00
    ranges 256 0000000000000108 00000001 00000000
    sends /tmp/list 4104 42 00 00 00 00 00 00 10 08 00
    holds /tmp/before 256 8
    # A header that is cut off, a list that ends too early, a range too many, and too many blocks.
    refuses 05 1a00 000000 -i /tmp/list -s 7 -- 42 00 00 00 00 00 00 00 07 00
    refuses 05 1a00 000000 -i /tmp/list -s 24 -- 42 00 00 00 00 00 00 00 18 00
    ranges 257 0000000000000108 00000001 00000000
    bad_parameter 2 - -i /tmp/list -s 4120 -- 42 00 00 00 00 00 00 10 18 00
    ranges 9 0000000000000000 00020000 00000000
    bad_parameter 144 - -i /tmp/list -s 152 -- 42 00 00 00 00 00 00 00 98 00
    # Behind the disk: then the range before it is left alone too.
    make /tmp/list 0026 0020 00000000 0000000000000100 00000008 00000000 000000000001fff8 00000009 00000000
    refuses 05 2100 000000 -i /tmp/list -s 40 -- 42 00 00 00 00 00 00 00 28 00
    # ANCHOR.
    bad_field 1 0 -i /tmp/list -s 24 -- 42 01 00 00 00 00 00 00 18 00
    holds /tmp/before 256 8
}
