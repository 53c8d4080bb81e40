# The server is killed while every CPU writes and reads back, and the guest notices nothing but a pause: it asks
# `crashes` meanwhile. The guest may also be moved then.

rounds_on=/dev/$disk
. /scripts/rounds.sh

step look
step crashes
step verify
