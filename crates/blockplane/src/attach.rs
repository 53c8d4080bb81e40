//! What `serve` tells people: what is served, and the options that attach it to a VM.

use std::io::Write;

use options::{Disk, LogLevel, Serve};

/// Prints it, unless told to be quiet.
pub(crate) fn announce(options: &Serve, new: bool) {
    if options.log_level == LogLevel::Error {
        return;
    }
    let socket =
        std::path::absolute(options.socket_path()).unwrap_or_else(|_| options.socket_path());
    let socket = socket.display();
    let disk = match &options.disk {
        Disk::Path(path) => path.display().to_string(),
        Disk::NullCo => "null-co:".to_owned(),
    };
    let state = match (new, options.read_only) {
        (true, _) => ", new",
        (false, true) => ", read-only",
        (false, false) => "",
    };
    let look = options.monitor.as_ref().map(|monitor| {
        let monitor = std::path::absolute(monitor).unwrap_or_else(|_| monitor.clone());
        format!("Look at it: blockplane top {}\n", monitor.display())
    });
    let look = look.unwrap_or_default();
    let queue_size = options.queue_size.min(256);
    let text = format!(
        "blockplane: serving {disk}{state} on {socket} (up to {} queues)

Attach it to a VM (its memory must be shared):
  QEMU
    -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -m 1G \\
    -chardev socket,id=disk,path={socket} -device vhost-user-blk-pci,chardev=disk
  Cloud Hypervisor
    --memory size=1G,shared=on --disk vhost_user=true,socket={socket},num_queues=1,queue_size={queue_size}

{look}Ctrl-C stops it: requests in flight are finished first.",
        options.num_queues,
    );
    // Whoever does not want to read it may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{text}");
}
