# Every CPU writes and reads back while the server is killed or upgraded, or the guest is moved; the guest notices nothing but a
# pause. It asks `verified_rounds` meanwhile.

rounds_on=/dev/$disk
. /scripts/rounds.sh

step look
step verified_rounds
step verify
