# The disk of the first boot: every byte is still there. The sums are told to the host,
# which compares them with those that the first guest computed before it wrote.

step look
step check_filesystem
step mount_rw
step verify_files
step verify_raw
step unmount
