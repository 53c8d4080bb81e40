//! Channel between the two processes of a live upgrade: sends and receives JSON messages with descriptors over a socket pair.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use serde_json::{Value, json};

/// Time in which the new program must send its next message while it starts and prepares, unless the client chooses another one.
/// Guests are served meanwhile.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the service manager gets a keep-alive meanwhile.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of descriptors in one call (`SCM_MAX_FD` is 253).
const FDS_AT_ONCE: usize = 128;
/// Maximum size of a message: ten thousand disks need a few million bytes.
const MAX_BYTES: usize = 64 << 20;
/// Maximum number of descriptors in a message.
const MAX_FDS: usize = 1 << 20;

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct UpgradeChannel(UnixStream);

/// Messages of a live upgrade, in the order in which they are sent, except for [`UpgradeMessage::Failed`]. "Old" and
/// "new" are the senders.
#[derive(Debug, PartialEq)]
pub(crate) enum UpgradeMessage {
    /// New: the process has started and has read its options.
    Hello,
    /// Old: description of all objects, with their descriptors.
    State(Value),
    /// New: all objects are created.
    Prepared,
    /// Old: queues are stopped; by export, their positions and other state that was changing until then.
    Stopped(Value),
    /// New: queues are started, but do not admit requests yet.
    Started,
    /// Old: the new process owns everything from now on. Sent again after the service manager was notified.
    Go,
    /// New: queues have resumed at this time (`CLOCK_MONOTONIC`, in nanoseconds).
    Resumed(u64),
    /// New: the reason why it cannot take over.
    Failed(String),
}

impl UpgradeMessage {
    /// An object whose only key names the message.
    fn to_json(&self) -> Value {
        match self {
            UpgradeMessage::Hello => json!({"hello": env!("CARGO_PKG_VERSION")}),
            UpgradeMessage::State(state) => json!({"state": state}),
            UpgradeMessage::Prepared => json!({"prepared": true}),
            UpgradeMessage::Stopped(bases) => json!({"stopped": bases}),
            UpgradeMessage::Started => json!({"started": true}),
            UpgradeMessage::Go => json!({"go": true}),
            UpgradeMessage::Resumed(at_ns) => json!({"gone": at_ns}),
            UpgradeMessage::Failed(reason) => json!({"failed": reason}),
        }
    }

    /// The message that [`UpgradeMessage::to_json`] has written; `None` for one of another version.
    fn from_json(json: &mut Value) -> Option<Self> {
        let (name, value) = json.as_object_mut()?.iter_mut().next()?;
        Some(match name.as_str() {
            "hello" => UpgradeMessage::Hello,
            "state" => UpgradeMessage::State(value.take()),
            "prepared" => UpgradeMessage::Prepared,
            "stopped" => UpgradeMessage::Stopped(value.take()),
            "started" => UpgradeMessage::Started,
            "go" => UpgradeMessage::Go,
            "gone" => UpgradeMessage::Resumed(value.as_u64()?),
            "failed" => UpgradeMessage::Failed(value.as_str()?.to_owned()),
            _ => return None,
        })
    }
}

impl UpgradeChannel {
    /// Creates both ends of a channel.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((UpgradeChannel(one), UpgradeChannel(other)))
    }

    /// Sets the timeout for a peer that stops in the middle of a message, or does not read one.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(timeout))?;
        self.0.set_write_timeout(Some(timeout))
    }

    /// The channel on an inherited descriptor; `None` if it is not a Unix socket.
    pub fn from_inherited_fd(number: RawFd) -> Option<Self> {
        if number <= 2 {
            return None;
        }
        // SAFETY: it is not -1, and it is only used to query its type.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        if sockopt::socket_domain(borrowed) != Ok(AddressFamily::UNIX) {
            return None;
        }
        // Children must not inherit it.
        rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).ok()?;
        // SAFETY: it is open, and the variable says that it was opened for this process.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        Some(UpgradeChannel(UnixStream::from(owned)))
    }

    /// Sends a message with descriptors.
    pub fn send(&self, message: &UpgradeMessage, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_json_and_fds(&message.to_json(), fds)
    }

    /// Receives a message with its descriptors.
    pub fn recv(&self) -> io::Result<(UpgradeMessage, Vec<OwnedFd>)> {
        let (mut json, fds) = self.recv_json_and_fds()?;
        let message = UpgradeMessage::from_json(&mut json);
        let message = message
            .ok_or_else(|| io::Error::other("it sent a message that this version does not know"))?;
        Ok((message, fds))
    }

    /// Waits until there is a message or the peer has closed its end; false after the timeout.
    pub fn is_readable_within(&self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let found = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
        Ok(found > 0)
    }

    /// Sends JSON with descriptors: their lengths, the descriptors with one byte for each group of them, then the text.
    pub(crate) fn send_json_and_fds(&self, json: &Value, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = json.to_string().into_bytes();
        let to_u32 = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let head = [to_u32(body.len())?, to_u32(fds.len())?].map(u32::to_ne_bytes);
        (&self.0).write_all(&head.concat())?;
        for fds in fds.chunks(FDS_AT_ONCE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::Error::other("too many descriptors at once"));
            }
            let byte = [IoSlice::new(&[0])];
            let send = || sendmsg(&self.0, &byte, &mut control, SendFlags::NOSIGNAL);
            rustix::io::retry_on_intr(send)?;
        }
        (&self.0).write_all(&body)
    }

    /// Receives JSON with its descriptors, as [`UpgradeChannel::send_json_and_fds`] sends them.
    pub(crate) fn recv_json_and_fds(&self) -> io::Result<(Value, Vec<OwnedFd>)> {
        let mut head = [0; 8];
        (&self.0).read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let body_len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let fd_count = u32::from_ne_bytes([e, f, g, h]) as usize;
        if body_len > MAX_BYTES || fd_count > MAX_FDS {
            return Err(io::Error::other("its message is too long"));
        }
        let mut fds = Vec::new();
        while fds.len() < fd_count {
            let len_before = fds.len();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut bytes = [IoSliceMut::new(&mut byte)];
            match recvmsg(&self.0, &mut bytes, &mut control, flags) {
                // With a timeout, also when this process was stopped and continued: signal(7).
                Err(Errno::INTR) => continue,
                received => received?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(found) = message {
                    fds.extend(found);
                }
            }
            if fds.len() == len_before {
                return Err(io::Error::other(
                    "descriptors were lost: too many files are open, see `ulimit -n` and `LimitNOFILE=`",
                ));
            }
        }
        let mut body = vec![0; body_len];
        (&self.0).read_exact(&mut body)?;
        Ok((serde_json::from_slice(&body)?, fds))
    }
}

impl AsFd for UpgradeChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_with_all_their_descriptors() {
        let (one, other) = UpgradeChannel::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(7).unwrap();
        let fds = vec![file.as_fd(); 3 * FDS_AT_ONCE + 1];
        let state = json!({"text": "x".repeat(100_000)});
        let message = UpgradeMessage::State(state);
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(&message, &fds).unwrap());
            let (received, received_fds) = other.recv().unwrap();
            assert_eq!(received, message);
            assert_eq!(received_fds.len(), fds.len());
            for fd in received_fds {
                assert_eq!(rustix::fs::fstat(fd).unwrap().st_size, 7);
            }
        });
        for message in [
            UpgradeMessage::Hello,
            UpgradeMessage::Prepared,
            UpgradeMessage::Stopped(json!([])),
            UpgradeMessage::Started,
            UpgradeMessage::Go,
            UpgradeMessage::Resumed(7),
            UpgradeMessage::Failed("why".into()),
        ] {
            one.send(&message, &[]).unwrap();
            assert_eq!(other.recv().unwrap().0, message);
        }
        drop(one);
        assert!(other.recv().is_err());
    }
}
