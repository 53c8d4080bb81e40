# A SCSI disk of 64 MiB, asked and told by the programs of sg3-utils; what it answers is what SPC-4 and SBC-3 say, to
# the byte where they leave no choice.

. /scripts/sense.sh
. /scripts/sg3_media.sh

blocks=131072
last=$((blocks - 1))

inquiry() {
    well sg_inq
    says 'Vendor identification: BLKPLANE' 'version=0x06 [SPC-4]' 'CmdQue=1'
    # The serial number is judged among the pages: sg3-utils 1.48 do not show it with the standard data.
    asks 96 96 12 00 00 00 60 00
    # A connected disk; SPC-4; HISUP, format 2; 91 more bytes; CMDQUE; "BLKPLANE"; SAM-5, SPC-4, SBC-3.
    bytes 0 00 00 06 12 5b 00 00 02 424c4b504c414e45
    bytes 58 00a0 0460 04c0 0000
    # As much as there is room for, and no more than there is.
    asks 96 5 12 00 00 00 05 00
    asks 65535 96 12 00 00 ff ff 00
    asks 255 96 12 00 00 00 ff 00
    does 12 00 00 00 00 00
    bad_field 2 - -r 96 -- 12 00 80 00 60 00
    bad_field 2 - -r 96 -- 12 01 c5 00 60 00
    # CMDDT, which SPC-3 took out.
    bad_field 1 1 -r 96 -- 12 02 00 00 60 00
}

# Vital product data.
pages() {
    serial=$(parameter serial)
    well sg_vpd -p 0x00
    says 'Unit serial number [sn]' 'Device identification [di]' 'Block limits (SBC) [bl]'
    asks 255 11 12 01 00 00 ff 00
    bytes 0 00 00 0007 00 80 83 86 b0 b1 b2
    well sg_vpd -p 0x80
    says_either "Unit serial number: $serial" "Product serial number: $serial"
    asks 255 $((4 + ${#serial})) 12 01 80 00 ff 00
    bytes 0 00 80 "$(printf %04x ${#serial})" "$(printf %s "$serial" | hexdump -v -e '1/1 "%02x"')"
    well sg_vpd -p 0x83
    says 'vendor id: BLKPLANE' "vendor specific: $serial" 'designator type: NAA' 'Relative target port: 0x1'
    asks 255 64 12 01 86 00 ff 00
    bytes 0 00 86 003c 00 07 01 01
    well sg_vpd -p 0xb0
    says_either 'Maximum unmap block descriptor count: 256' 'Maximum unmap block descriptor count: 0x100 '
    says_either 'Maximum transfer length: 65536 blocks' 'Maximum transfer length: 0x10000 '
    asks 255 64 12 01 b0 00 ff 00
    # WSNZ; 255 blocks of COMPARE AND WRITE; then what the medium likes; 65536 blocks in one transfer.
    bytes 0 00 b0 003c 01 ff
    bytes 8 00010000
    # 2^20 blocks of UNMAP, in 256 ranges; WRITE SAME of any length.
    bytes 20 00100000 00000100
    bytes 36 00000000ffffffff
    well sg_vpd -p 0xb1
    says 'Non-rotating medium'
    asks 255 64 12 01 b1 00 ff 00
    bytes 0 00 b1 003c 0001 00
    well sg_vpd -p 0xb2
    says_either 'Unmap command supported (LBPU): 1' 'LBPU=1'
    says_either 'read zeros (LBPRZ): 0' 'LBPRZ=0x0 '
    says_either 'Provisioning type: 2 (thin provisioned)' 'Provisioning type: thin provisioned'
    asks 255 8 12 01 b2 00 ff 00
    bytes 0 00 b2 0004 00 e0 02 00
}

capacity() {
    well sg_readcap
    says "Last LBA=$last" 'Logical block length=512 bytes'
    well sg_readcap --16
    says 'prot_en=0' 'lbpme=1, lbprz=0' "Last LBA=$last"
    asks 8 8 25 00 00 00 00 00 00 00 00 00
    bytes 0 0001ffff 00000200
    asks 32 32 9e 10 00 00 00 00 00 00 00 00 00 00 00 20 00 00
    bytes 0 000000000001ffff 00000200 00
    bytes 14 80 00 00000000
    asks 32 12 9e 10 00 00 00 00 00 00 00 00 00 00 00 0c 00 00
    bad_field 1 4 -r 32 -- 9e 11 00 00 00 00 00 00 00 00 00 00 00 20 00 00
    # Nothing was written: the disk is one hole.
    well sg_get_lba_status
    says "blocks: $blocks" 'deallocated'
    refuses 05 2100 000000 -r 32 -- 9e 12 00 00 00 00 00 02 00 00 00 00 00 20 00 00
}

# What the unit says and does besides moving data.
unit() {
    well sg_turs --number=16
    asks 255 $((8 + 8 * $(ls -d /sys/bus/scsi/devices/0:0:0:* | wc -l))) a0 00 00 00 00 00 00 00 00 ff 00 00
    bytes 4 00000000 0000000000000000
    well sg_luns
    asks 255 8 a0 00 01 00 00 00 00 00 00 ff 00 00
    bad_field 2 - -r 16 -- a0 00 03 00 00 00 00 00 00 10 00 00
    bad_field 6 - -r 15 -- a0 00 00 00 00 00 00 00 00 0f 00 00
    well sg_logs --all
    asks 255 5 4d 00 40 00 00 00 00 00 ff 00
    bytes 0 00 00 0001 00
    bad_field 2 5 -r 255 -- 4d 00 7f 00 00 00 00 00 ff 00
    well sg_requests
    asks 252 18 03 00 00 00 fc 00
    bytes 0 70 00 00 00000000 0a 00000000 0000
    asks 252 8 03 01 00 00 fc 00
    bytes 0 72 00 0000
    # The self-test that every disk has.
    well sg_senddiag --test
    bad_field 1 5 -- 1d 24 00 00 00 00
    well sg_sync
    ends 0 sg_sync --16 --lba=$last --count=1 "$device"
    refuses 05 2100 000000 -- 35 00 00 02 00 00 00 00 01 00
}

start_and_stop() {
    well sg_start --stop
    refuses 02 0402 000000 -- 00 00 00 00 00 00
    refuses 02 0402 000000 -r 512 -- 28 00 00 00 00 00 00 00 01 00
    # Who asks is told, and may always ask what this is.
    asks 18 18 03 00 00 00 12 00
    bytes 0 70 00 02 00000000 0a 00000000 0402
    well sg_inq
    well sg_start --start
    well sg_turs
    # There is nothing that could be ejected.
    bad_field 4 1 -- 1b 00 00 00 02 00
}

modes() {
    well sg_modes --all
    says 'WP=0' 'DpoFua=1' '>> Caching, page_control: current' '>> Control, page_control: current'
    # MODE SENSE(6): header, without blocks; the caching page, what can be changed of it, its default.
    asks 255 24 1a 08 08 00 ff 00
    bytes 0 17 00 10 00 08 12 04 00
    asks 255 24 1a 08 48 00 ff 00
    bytes 4 08 12 04 00
    asks 255 24 1a 08 88 00 ff 00
    bytes 4 08 12 04 00
    # With blocks, which the long form may say in 16 bytes.
    asks 255 24 1a 00 0a 00 ff 00
    bytes 0 17 00 10 08 00020000 00000200 0a 0a 02 10 00 00 0000 ffff 0000
    asks 255 36 5a 10 0a 00 00 00 00 00 ff 00
    bytes 0 0022 00 10 01 00 0010 0000000000020000 00000000 00000200 0a 0a
    asks 255 10 5a 08 3f 00 00 00 00 00 0a 00
    bytes 0 003e
    # None is saved; 07 and subpages are not there.
    refuses 05 3900 000000 -r 255 -- 1a 08 c8 00 ff 00
    bad_field 2 5 -r 255 -- 1a 08 07 00 ff 00
    bad_field 3 - -r 255 -- 1a 08 0a 01 ff 00
}

# $1 to $4: bytes 2 to 5 of the control page.
control() {
    make /tmp/list 00 00 00 00 0a 0a "$1" "$2" "$3" "$4" 0000 ffff 0000
    sends /tmp/list 16 15 10 00 00 10 00
}

change_modes() {
    make /tmp/list 00 00 00 00 0a 0a 02 00 00 00 0000 ffff 0000
    bad_parameter 7 4 -i /tmp/list -s 16 -- 15 10 00 00 10 00
    refuses 05 1a00 000000 -i /tmp/list -s 15 -- 15 10 00 00 0f 00
    bad_field 1 0 -i /tmp/list -s 16 -- 15 11 00 00 10 00
    bad_field 1 4 -i /tmp/list -s 16 -- 15 00 00 00 10 00
    # Sense data in descriptors: INVALID FIELD, and which one. The adapter's driver asks for it in the fixed format.
    control 06 10 00 00
    status=0
    sg_raw -v "$device" 00 00 00 00 01 00 > /tmp/said 2>&1 || status=$?
    if [ "$driver" = sym53c8xx ]; then
        refused 70 00 05 00000000 0a 00000000 2400 00 c80004
    else
        refused 72 05 2400 000000 08 02 06 0000 c8 0004 00
    fi
    # Nobody writes.
    control 02 10 08 00
    refuses 07 2702 000000 -i /pattern -s 512 -- 2a 00 00 00 00 00 00 00 01 00
    asks 255 24 1a 08 08 00 ff 00
    bytes 2 90
    control 02 10 00 00
    # Without a write cache, and with it again.
    for wce in 00 04; do
        make /tmp/list 00 00 00 00 08 12 $wce 00 00000000 00000000 00000000 00000000
        sends /tmp/list 24 15 10 00 00 18 00
        asks 255 24 1a 08 08 00 ff 00
        bytes 4 08 12 $wce
    done
}

# The table of commands says what the commands do.
opcodes() {
    well sg_opcodes
    says 'Compare and write' 'Persistent reserve out, register and move' 'Write same(16)'
    well sg_opcodes --tmf
    says 'Abort task' 'Logical unit reset'
    # A bus has no messages for queries, nor for the reset of a nexus.
    asks 16 4 a3 0d 00 00 00 00 00 00 00 10 00 00
    if [ "$driver" = sym53c8xx ]; then
        bytes 0 d8 00 00 00
    else
        bytes 0 dc 03 00 00
    fi
    # Supported as the standard says, 16 bytes, UNMAP and NDOB.
    asks 255 20 a3 0c 01 93 00 00 00 00 00 ff 00 00
    bytes 0 00 03 0010 93 09
    asks 255 4 a3 0c 01 ec 00 00 00 00 00 ff 00 00
    bytes 0 00 01 0000
    # Some have service actions, and some have none.
    bad_field 2 2 -r 255 -- a3 0c 01 9e 00 00 00 00 00 ff 00 00
    bad_field 2 2 -r 255 -- a3 0c 02 28 00 00 00 00 00 ff 00 00
    # What is not in it is not there: the neighbours of what is.
    sg_opcodes --unsorted "$device" | awk '/^ [0-9a-f][0-9a-f] / { print $1 }' | sort -u > /tmp/known
    fact opcodes "$(wc -l < /tmp/known)"
    while read -r opcode; do
        absent $((0x$opcode - 1))
        absent $((0x$opcode + 1))
    done < /tmp/known
    absent 255
}

# There is no command of operation code $1, if the table has none.
absent() {
    local opcode
    opcode=$(printf %02x $(($1 & 0xff)))
    if ! grep -q "$opcode" /tmp/known; then
        refuses 05 2000 000000 --cmdset=1 -- "$opcode" 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    fi
}

# PERSISTENT RESERVE OUT of the given options succeeds, and is refused with a conflict.
may() { well sg_persist --no-inquiry --out "$@"; }
may_not() { ends $conflict sg_persist --no-inquiry --out "$@" "$device"; }
reads() {
    well sg_persist --no-inquiry "$1"
    shift
    says "$@"
}

reserve() {
    reads --report-capabilities 'Persist Through Power Loss Capable(PTPL_C): 0' 'Write Exclusive, all registrants: 1'
    reads --read-keys 'there are NO registered reservation keys'
    # Who is not registered may not reserve.
    may_not --reserve --param-rk=0x1 --prout-type=1
    may --register --param-sark=0xabc
    reads --read-keys '1 registered reservation key follows' '0xabc'
    # Only with its key: to register, to reserve, to clear.
    may_not --register --param-rk=0x1 --param-sark=0x2
    may_not --reserve --param-rk=0x1 --prout-type=1
    may_not --clear --param-rk=0x1
    may --reserve --param-rk=0xabc --prout-type=3
    reads --read-reservation 'Key=0xabc' 'type: Exclusive Access'
    reads --read-full-status 'Key=0xabc' '<< Reservation holder >>' 'Relative port address: 0x1'
    # Once more is no harm; of another type it is a conflict, and to release it as another is a mistake.
    may --reserve --param-rk=0xabc --prout-type=3
    may_not --reserve --param-rk=0xabc --prout-type=1
    make /tmp/list 0000000000000abc 0000000000000000 00000000 00 00 0000
    refuses 05 2604 000000 -i /tmp/list -s 24 -- 5f 02 01 00 00 00 00 00 18 00
    # The holder reads and writes. RESERVE(6) is nobody's while there are registrations.
    asks 512 512 28 00 00 00 00 00 00 00 01 00
    fill /pattern 0 1
    ends $conflict sg_raw "$device" 16 00 00 00 00 00
    may --release --param-rk=0xabc --prout-type=3
    reads --read-reservation 'there is NO reservation held'
}

# Keys and reservations change hands.
preempt() {
    may --reserve --param-rk=0xabc --prout-type=5
    # Of a key that nobody has.
    may_not --preempt --param-rk=0xabc --param-sark=0x77 --prout-type=5
    # Itself, as another type.
    may --preempt --param-rk=0xabc --param-sark=0xabc --prout-type=6
    reads --read-reservation 'Key=0xabc' 'type: Exclusive Access, registrants only'
    may --preempt-abort --param-rk=0xabc --param-sark=0xabc --prout-type=1
    reads --read-reservation 'type: Write Exclusive'
    may --register-ignore --param-sark=0xdef
    reads --read-reservation 'Key=0xdef'
    make /tmp/list 0000000000000def 0000000000000000 00000000 00 00 0000
    # A type that there is not, a scope, a list of another length; SPEC_I_PT, ALL_TG_PT and APTPL.
    bad_field 2 3 -i /tmp/list -s 24 -- 5f 01 02 00 00 00 00 00 18 00
    bad_field 2 7 -i /tmp/list -s 24 -- 5f 01 11 00 00 00 00 00 18 00
    refuses 05 1a00 000000 -i /tmp/list -s 23 -- 5f 01 01 00 00 00 00 00 17 00
    for flag in '08 3' '04 2' '01 0'; do
        make /tmp/list 0000000000000def 0000000000000def 00000000 "${flag% *}" 00 0000
        bad_parameter 20 "${flag#* }" -i /tmp/list -s 24 -- 5f 00 00 00 00 00 00 00 18 00
    done
    bad_field 1 4 -i /tmp/list -s 24 -- 5f 08 00 00 00 00 00 00 18 00
    bad_field 1 4 -r 255 -- 5e 04 00 00 00 00 00 00 ff 00
    may --clear --param-rk=0xdef
    reads --read-keys 'there are NO registered reservation keys'
    reads --read-reservation 'there is NO reservation held'
    # RESERVE(6) is there again.
    does 16 00 00 00 00 00
    does 17 00 00 00 00 00
}

disk=$(disk_of_target 0) || fail find "no disk at target 0"
device=/dev/$disk
driver=$(cat /sys/class/scsi_host/host0/proc_name)

for name in inquiry pages capacity unit start_and_stop modes change_modes bad_commands verify \
    compare_and_write write_same unmap reserve preempt opcodes; do
    step "$name"
done
fact answers "$(wc -l < $answers)"
fact refusals "$(wc -l < $refusals)"
