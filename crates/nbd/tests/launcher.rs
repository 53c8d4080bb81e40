//! A process in which the launcher of connections has not been started yet: this file has one test.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nbd::client::{
    BlockSizes, ClientOptions, ClientQueue, Disk, Negotiated, ReplyStyle, ServerAddress,
};
use test_support::limited_host::{Call, with_errno};

const NEGOTIATED: Negotiated = Negotiated {
    size: 1 << 20,
    flags: 0,
    blocks: BlockSizes {
        minimum: 1,
        preferred: 4096,
        maximum: 32 << 20,
    },
    replies: ReplyStyle::Simple,
};

fn options() -> ClientOptions {
    ClientOptions {
        server: ServerAddress::Unix {
            path: PathBuf::from("/no/server"),
        },
        export: "disk".to_owned(),
        reconnect_delay: Duration::ZERO,
        open_timeout: Duration::ZERO,
        attempt_timeout: Duration::ZERO,
        stop_timeout: Duration::ZERO,
        tls: None,
    }
}

/// Without the launcher no queue of it could connect.
#[test]
fn disk_is_not_taken_over_by_a_process_that_cannot_start_threads() {
    let new_threads = [libc::SYS_clone, libc::SYS_clone3].map(Call::any);
    let refused = with_errno(&new_threads, libc::EAGAIN, || {
        let (socket, _peer) = UnixStream::pair().unwrap();
        [
            Disk::restore(options(), NEGOTIATED),
            Disk::of_socket(options(), socket.into(), NEGOTIATED),
            Disk::open(&options()),
        ]
        .map(|disk| disk.err().map(|error| error.to_string()))
    });
    let Some(refused) = refused else { return };
    let expected = "cannot open export 'disk' of /no/server: cannot start a thread: Resource \
                    temporarily unavailable (os error 11)";
    assert_eq!(refused, [(); 3].map(|()| Some(expected.to_owned())));
    let disk = Disk::restore(options(), NEGOTIATED).unwrap();
    drop(ClientQueue::new(disk, None, Arc::new(|| ())));
}
