# Commands of SCSI, byte by byte, with the programs of sg3-utils. What a program said is in /tmp/said, the data that
# came in /tmp/data.

PATH=/tools:$PATH
refusals=/tmp/refusals
answers=/tmp/answers
: > $refusals > $answers

# sg3-utils' status for RESERVATION CONFLICT.
conflict=24

# Fails the step, with what was said.
complain() {
    echo "$*"
    cat /tmp/said
    return 1
}

# Program $2, with the rest, ends with status $1.
ends() {
    local wanted=$1
    shift
    status=0
    "$@" > /tmp/said 2>&1 < /dev/null || status=$?
    [ $status = "$wanted" ] || complain "$*: status $status, not $wanted"
}

# The sentence was said; white space counts as one blank.
was_said() {
    case $(tr -s ' \t\n' '   ' < /tmp/said) in
        *"$1"*) ;;
        *) return 1 ;;
    esac
}

# Each of the sentences was said.
says() {
    local sentence
    for sentence in "$@"; do
        was_said "$sentence" || complain "does not say: $sentence"
    done
}

# One of the two sentences was said: the first by sg3-utils 1.46, the second by 1.48.
says_either() { was_said "$1" || was_said "$2" || complain "says neither: $1, nor: $2"; }

# The words, without anything between them.
joined() {
    local IFS=
    joined="$*"
}

# A program of sg3-utils, asked about the disk, succeeds.
well() { ends 0 "$@" "$device"; }

# File $1 gets the bytes that the other words are in hexadecimal.
make() {
    local file=$1
    shift
    joined "$@"
    printf "$(echo "$joined" | sed 's/../\\x&/g')" > "$file"
}

# A command, with room for $1 bytes, brings exactly $2.
asks() {
    local room=$1 wanted=$2
    shift 2
    rm -f /tmp/data
    ends 0 sg_raw -R -r "$room" -o /tmp/data "$device" "$@"
    local came
    came=$(wc -c < /tmp/data)
    [ "$came" = "$wanted" ] || complain "$*: $came bytes came, not $wanted"
    echo "$*" >> $answers
}

# From byte $1 on, the data that came is the other words.
bytes() {
    local at=$1 found
    shift
    joined "$@"
    found=$(hexdump -v -s "$at" -n $((${#joined} / 2)) -e '1/1 "%02x"' /tmp/data)
    [ "$found" = "$joined" ] || complain "at byte $at is $found, not $joined"
}

# A command without data succeeds.
does() { ends 0 sg_raw "$device" "$@"; }

# A command with the first $2 bytes of file $1 succeeds.
sends() {
    local file=$1 len=$2
    shift 2
    ends 0 sg_raw -i "$file" -s "$len" "$device" "$@"
}

# The sense data of a refused command is these words.
refused() {
    local found
    [ $status != 0 ] || complain "was not refused"
    found=$(awk '/Raw sense data/ { on = 1; next } !NF { on = 0 } on { gsub(/ /, ""); printf "%s", $0 }' /tmp/said)
    joined "$@"
    [ "$found" = "$joined" ] || complain "the sense data is $found, not $joined"
    echo "$*" >> $refusals
}

# Gives a command, with sg_raw's options before "--", to see it refused with sense key $1, additional sense code and
# qualifier $2 and sense-key specific bytes $3.
refuses() {
    local key=$1 code=$2 specific=$3 options=
    shift 3
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    status=0
    # shellcheck disable=SC2086 # several words
    sg_raw -v $options "$device" "$@" > /tmp/said 2>&1 < /dev/null || status=$?
    echo "for: $*" >> /tmp/said
    refused 70 00 "$key" 00000000 0a 00000000 "$code" 00 "$specific"
}

# INVALID FIELD IN CDB: byte $1, and bit $2 if it is not "-".
bad_field() {
    local kind=c0 specific
    [ "$2" = - ] || kind=$(printf 'c%x' $((8 + $2)))
    specific=$(printf '%s%04x' "$kind" "$1")
    shift 2
    refuses 05 2400 "$specific" "$@"
}

# INVALID FIELD IN PARAMETER LIST: byte $1, and bit $2 if it is not "-".
bad_parameter() {
    local kind=80 specific
    [ "$2" = - ] || kind=$(printf '8%x' $((8 + $2)))
    specific=$(printf '%s%04x' "$kind" "$1")
    shift 2
    refuses 05 2600 "$specific" "$@"
}

# $3 blocks of file $1 are at LBA $2.
holds() {
    dd if="$device" bs=512 iflag=direct skip="$2" count="$3" status=none > /tmp/held
    cmp -s -n $(($3 * 512)) /tmp/held "$1" || complain "the blocks from $2 on are others"
}

# Writes $3 blocks of file $1 to LBA $2.
fill() { dd if="$1" of="$device" bs=512 oflag=direct seek="$2" count="$3" conv=notrunc status=none; }
