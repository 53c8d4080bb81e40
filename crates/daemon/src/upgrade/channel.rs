//! A pair of sockets between two programs: messages in JSON, with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use serde_json::{Value, json};

/// How long the new program may take to say that it has started, and that it has everything. Nothing stands still
/// meanwhile.
pub(crate) const START_TIME: Duration = Duration::from_secs(60);
/// How often the service manager hears of us meanwhile.
pub(crate) const ALIVE: Duration = Duration::from_secs(1);

/// Most descriptors that one call passes (`SCM_MAX_FD` is 253).
const FDS_AT_ONCE: usize = 128;
/// Most bytes of a message: ten thousand disks have some millions.
const MAX_BYTES: usize = 64 << 20;
/// Most descriptors of a message.
const MAX_FDS: usize = 1 << 20;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

/// What the programs say to each other, in this order but for [`Said::Failed`].
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    /// New: it has started, and read its options.
    Hello,
    /// Old: this is what runs.
    State(Value),
    /// New: all of it is there.
    Prepared,
    /// Old: the queues have stopped, and stand there; what else changes until then; by export.
    Stopped(Value),
    /// New: they are started, and take nothing yet.
    Started,
    /// Old: all of it is yours.
    Go,
    /// New: the queues go on, since this time (`CLOCK_MONOTONIC`, in nanoseconds).
    Gone(u64),
    /// New: why it cannot.
    Failed(String),
}

impl Said {
    fn to_json(&self) -> Value {
        match self {
            Said::Hello => json!({"hello": env!("CARGO_PKG_VERSION")}),
            Said::State(state) => json!({"state": state}),
            Said::Prepared => json!({"prepared": true}),
            Said::Stopped(bases) => json!({"stopped": bases}),
            Said::Started => json!({"started": true}),
            Said::Go => json!({"go": true}),
            Said::Gone(at_ns) => json!({"gone": at_ns}),
            Said::Failed(why) => json!({"failed": why}),
        }
    }

    fn of_json(json: &mut Value) -> Option<Self> {
        let (name, value) = json.as_object_mut()?.iter_mut().next()?;
        Some(match name.as_str() {
            "hello" => Said::Hello,
            "state" => Said::State(value.take()),
            "prepared" => Said::Prepared,
            "stopped" => Said::Stopped(value.take()),
            "started" => Said::Started,
            "go" => Said::Go,
            "gone" => Said::Gone(value.as_u64()?),
            "failed" => Said::Failed(value.as_str()?.to_owned()),
            _ => return None,
        })
    }
}

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Channel(one), Channel(other)))
    }

    /// Whoever stops in the middle of a message, or does not take one, is waited for no longer than this.
    pub fn limit_waiting(&self, time: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(time))?;
        self.0.set_write_timeout(Some(time))
    }

    /// One with this number that we were started with, if it is one.
    pub fn inherit(number: RawFd) -> Option<Self> {
        if number <= 2 {
            return None;
        }
        // SAFETY: it is not -1, and only asked whether it is a socket.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        if sockopt::socket_domain(borrowed) != Ok(AddressFamily::UNIX) {
            return None;
        }
        // Children have no business with it.
        rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).ok()?;
        // SAFETY: it is open, and the variable says that it was made for us.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        Some(Channel(UnixStream::from(owned)))
    }

    /// Says something, with descriptors.
    pub fn send(&self, said: &Said, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_json(&said.to_json(), fds)
    }

    /// What the other side says.
    pub fn recv(&self) -> io::Result<(Said, Vec<OwnedFd>)> {
        let (mut json, fds) = self.recv_json()?;
        let said = Said::of_json(&mut json);
        let said =
            said.ok_or_else(|| io::Error::other("it says what this version does not know"))?;
        Ok((said, fds))
    }

    /// Whether it says something, or has gone, within this time.
    pub fn is_readable_within(&self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let found = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
        Ok(found > 0)
    }

    pub(crate) fn send_json(&self, json: &Value, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = json.to_string().into_bytes();
        let number = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let head = [number(body.len())?, number(fds.len())?].map(u32::to_ne_bytes);
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

    pub(crate) fn recv_json(&self) -> io::Result<(Value, Vec<OwnedFd>)> {
        let mut head = [0; 8];
        (&self.0).read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let bytes = u32::from_ne_bytes([a, b, c, d]) as usize;
        let count = u32::from_ne_bytes([e, f, g, h]) as usize;
        if bytes > MAX_BYTES || count > MAX_FDS {
            return Err(io::Error::other("its message is too long"));
        }
        let mut fds = Vec::new();
        while fds.len() < count {
            let before = fds.len();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let flags = RecvFlags::CMSG_CLOEXEC;
            recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut byte)],
                &mut control,
                flags,
            )?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(found) = message {
                    fds.extend(found);
                }
            }
            if fds.len() == before {
                return Err(io::Error::other(
                    "descriptors were lost: too many files are open, see `ulimit -n` and `LimitNOFILE=`",
                ));
            }
        }
        let mut body = vec![0; bytes];
        (&self.0).read_exact(&mut body)?;
        Ok((serde_json::from_slice(&body)?, fds))
    }
}

impl AsFd for Channel {
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
        let (one, other) = Channel::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(7).unwrap();
        let fds = vec![file.as_fd(); 3 * FDS_AT_ONCE + 1];
        let state = json!({"text": "x".repeat(100_000)});
        let said = Said::State(state);
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(&said, &fds).unwrap());
            let (heard, found) = other.recv().unwrap();
            assert_eq!(heard, said);
            assert_eq!(found.len(), fds.len());
            for fd in found {
                assert_eq!(rustix::fs::fstat(fd).unwrap().st_size, 7);
            }
        });
        for said in [
            Said::Hello,
            Said::Prepared,
            Said::Stopped(json!([])),
            Said::Started,
            Said::Go,
            Said::Gone(7),
            Said::Failed("why".into()),
        ] {
            one.send(&said, &[]).unwrap();
            assert_eq!(other.recv().unwrap().0, said);
        }
        drop(one);
        assert!(other.recv().is_err());
    }
}
