//! A network that delivers an old copy of a write late: after the connection it was sent on has broken, and the write was sent again.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::{Folder, STUCK_AFTER};
use crate::servers::Server;
use crate::{MIB, SOCKET, start};

/// Copies what is sent one way, until its end; the other side then has its end, too.
fn copy(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// A proxy. On its first connection it keeps the first write that it sees, breaks the client's side, and delivers the write
/// when it is released; the client sees the end of the connection only if `closes` is set before that.
struct LateProxy {
    socket: PathBuf,
    has_write: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
    is_delivered: mpsc::Receiver<()>,
}

/// The beginning of a request to write (`NBD_REQUEST_MAGIC`, no flags, `NBD_CMD_WRITE`).
const WRITE: [u8; 8] = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];

impl LateProxy {
    fn start(folder: &Folder, server: &Path) -> Self {
        let socket = folder.join("proxy");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = server.to_owned();
        let (sees, has_write) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (delivers, is_delivered) = mpsc::channel();
        thread::spawn(move || {
            let mut first = Some((sees, released, delivers));
            for client in listener.incoming() {
                let client = client.unwrap();
                let upstream = UnixStream::connect(&server).unwrap();
                let answers = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
                match first.take() {
                    None => {
                        thread::spawn(move || copy(client, upstream));
                        thread::spawn(move || copy(answers.0, answers.1));
                    }
                    Some((sees, released, delivers)) => {
                        let answers = thread::spawn(move || copy(answers.0, answers.1));
                        thread::spawn(move || {
                            keep_first_write(client, upstream, &sees, &released);
                            // The server has answered, or closed its end: the write was carried out.
                            answers.join().unwrap();
                            let _ = delivers.send(());
                        });
                    }
                }
            }
        });
        LateProxy {
            socket,
            has_write,
            release,
            is_delivered,
        }
    }
}

fn keep_first_write(
    mut client: UnixStream,
    mut upstream: UnixStream,
    sees: &mpsc::Sender<()>,
    released: &mpsc::Receiver<()>,
) {
    let mut bytes = [0; 1 << 16];
    loop {
        let len = client.read(&mut bytes).unwrap();
        assert!(len > 0, "the client writes");
        if bytes[..len].starts_with(&WRITE) {
            let mut write = bytes[..len].to_vec();
            let mut rest = vec![0; 28 + BLOCK - len];
            client.read_exact(&mut rest).unwrap();
            write.extend(rest);
            client.shutdown(std::net::Shutdown::Both).unwrap();
            sees.send(()).unwrap();
            released.recv().unwrap();
            upstream.write_all(&write).unwrap();
            upstream.shutdown(std::net::Shutdown::Write).unwrap();
            return;
        }
        upstream.write_all(&bytes[..len]).unwrap();
    }
}

/// The old copy is carried out before the guest has sent anything else: then nothing is lost. What the protocol cannot
/// prevent, an old copy that comes after a newer write, is in docs/nbd-client.md.
#[test]
fn a_write_is_sent_again_and_its_late_copy_changes_nothing() {
    let folder = Folder::new();
    folder.image("image", MIB);
    let image = folder.join("image");
    let Some(server) = Server::nbdkit(&folder, &format!("file {}", image.display())) else {
        return;
    };
    let proxy = LateProxy::start(&folder, server.socket());
    let line = format!(
        "--blockdev nbd,node-name=d,server.type=unix,server.path={},reconnect-delay=60 --export \
         vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={SOCKET},writable=on",
        proxy.socket.display()
    );
    let (program, mut client) = start(&folder, &line);
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.ask(0, 0, OUT, 3, 7);
    guest.submit(0);
    proxy.has_write.recv_timeout(STUCK_AFTER).unwrap();
    guest.wait(0, 0);
    assert_eq!(guest.status(0, 0), 0, "the write was sent again");
    // The guest writes elsewhere, and the old copy arrives.
    guest.request(0, OUT, 4, 8);
    proxy.release.send(()).unwrap();
    proxy.is_delivered.recv_timeout(STUCK_AFTER).unwrap();
    for (block, byte) in [(3, 7), (4, 8)] {
        guest.request(0, IN, block, 0);
        assert_eq!(guest.data(0, 0), [byte; BLOCK], "{block}");
    }
    assert_eq!(crate::failed_requests(&mut client), 0);
    assert_eq!(program.stop().code, Some(0));
}
