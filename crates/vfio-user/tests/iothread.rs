//! A device on an iothread of the event loop: its socket and its eventfd are handlers beside any others.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod support;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use event_loop::iothread::PlaneContext;
use event_loop::{
    HandlerId, Idle, IoThread, Plane, PollSettings, Readiness, Remote, SpawnError, TimerId,
};
use rustix::event::{PollFd, PollFlags, poll};
use support::{Message, access, new_eventfd, set_irqs, signals};
use vfio_user::testing::{LEVEL, Scratch};
use vfio_user::wire::{self, Header, command};
use vfio_user::{Server, Watched, Watches};

/// One device and what is watched for it.
struct Devices {
    server: Server<Scratch>,
    watches: Watches,
    timer: Option<(u64, TimerId)>,
    more: bool,
}

impl Devices {
    /// Watches what is to be watched now.
    fn watch(&mut self, cx: &mut PlaneContext<Self>) {
        self.watches
            .update(cx, &self.server, |watched| watched)
            .unwrap();
        let deadline_ns = self.server.deadline_ns();
        if self.timer.map(|(at_ns, _)| at_ns) != deadline_ns {
            if let Some((_, timer)) = self.timer.take() {
                cx.cancel_timer(timer);
            }
            self.timer = deadline_ns.map(|at_ns| (at_ns, cx.add_timer(at_ns, ())));
        }
    }
}

impl Plane for Devices {
    type Handler = Watched;
    type Timer = ();
    type Message = UnixStream;

    fn ready(&mut self, cx: &mut PlaneContext<Self>, _: HandlerId, watched: Watched, _: Readiness) {
        match watched {
            Watched::Read => self.server.readable(cx.now_ns()),
            Watched::Write => self.server.writable(),
            Watched::Unmask => self.server.unmasked(),
        }
        self.more = true;
    }

    fn expired(&mut self, _: &mut PlaneContext<Self>, (): ()) {
        self.timer = None;
        self.more = true;
    }

    fn message(&mut self, cx: &mut PlaneContext<Self>, socket: UnixStream) {
        self.server.connect(socket).unwrap();
        self.watch(cx);
    }

    fn admit(&mut self, cx: &mut PlaneContext<Self>) {
        if self.more {
            self.more = self.server.run(cx.now_ns());
            self.watch(cx);
        }
    }

    fn busy(&self) -> bool {
        self.more
    }

    fn reap(&mut self, _: &mut PlaneContext<Self>) {}
    fn complete(&mut self, _: &mut PlaneContext<Self>) {}
    fn notify(&mut self, _: &mut PlaneContext<Self>) {}
    fn submit(&mut self, _: &mut PlaneContext<Self>) {}
    fn poll(&mut self) -> bool {
        false
    }
    fn poll_until(&mut self, _: &PollSettings, now_ns: u64) -> u64 {
        now_ns
    }
    fn learn(&mut self, _: &PollSettings, _: Idle) {}
    fn park(&mut self, _: &mut PlaneContext<Self>) -> bool {
        false
    }
    fn stopped(&mut self, cx: &mut PlaneContext<Self>) {
        self.server.disconnect();
        self.watch(cx);
        assert_eq!(cx.handler_count(), 0);
    }
}

#[derive(Debug)]
struct Failed;

impl From<io::Error> for Failed {
    fn from(_: io::Error) -> Self {
        Failed
    }
}

impl From<SpawnError> for Failed {
    fn from(_: SpawnError) -> Self {
        Failed
    }
}

/// A front-end that waits for its answers.
struct FrontEnd(UnixStream);

impl FrontEnd {
    fn say(&self, command: u16, payload: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let bytes = Message::command(1, command, 0, payload).bytes();
        let sent = sendmsg(
            &self.0,
            &[io::IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn hear(&mut self) -> Message {
        use std::io::Read;
        let mut header = [0; Header::BYTES];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap();
        assert_eq!(header.flags, wire::TYPE_REPLY, "{header:?}");
        let mut payload = vec![0; header.size as usize - Header::BYTES];
        self.0.read_exact(&mut payload).unwrap();
        Message { header, payload }
    }
}

#[test]
fn a_device_shares_a_thread_with_an_event_loop() {
    let make = |_: &mut PlaneContext<Devices>, _: &Remote<UnixStream>| {
        Ok::<_, Failed>(Devices {
            server: Server::new(Scratch::default()),
            watches: Watches::default(),
            timer: None,
            more: false,
        })
    };
    let iothread = IoThread::<Devices>::spawn("devices", PollSettings::default(), make).unwrap();
    for session in 0..2u8 {
        let (front_end, socket) = UnixStream::pair().unwrap();
        let mut front_end = FrontEnd(front_end);
        iothread.remote().send(socket).unwrap();
        front_end.say(command::VERSION, &[0; 4], &[]);
        front_end.hear();
        let trigger = new_eventfd();
        let connect = |front_end: &mut FrontEnd, action, fd: &OwnedFd| {
            let payload = set_irqs(0, wire::IRQ_DATA_EVENTFD | action, 1, &[]);
            front_end.say(command::DEVICE_SET_IRQS, &payload, &[fd.as_fd()]);
            front_end.hear();
        };
        let wait = || {
            poll(&mut [PollFd::new(&trigger, PollFlags::IN)], None).unwrap();
            signals(&trigger)
        };
        connect(&mut front_end, wire::IRQ_ACTION_TRIGGER, &trigger);
        front_end.say(command::REGION_WRITE, &access(0, LEVEL, 1, &[1]), &[]);
        front_end.hear();
        assert_eq!(wait(), 1);
        // One eventfd, and another one in its place.
        for unmask in [new_eventfd(), new_eventfd()] {
            connect(&mut front_end, wire::IRQ_ACTION_UNMASK, &unmask);
            rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(), 1, "unmasked while the line is up");
        }
        // More than a socket holds: the answers are sent when it is writable again.
        for _ in 0..200 {
            front_end.say(command::REGION_READ, &access(2, 0, 8192, &[]), &[]);
        }
        for _ in 0..200 {
            assert_eq!(front_end.hear().payload.len(), 16 + 8192);
        }
        front_end.say(command::REGION_READ, &access(2, 9, 1, &[]), &[]);
        assert_eq!(
            front_end.hear().payload[16],
            session,
            "the device keeps its state"
        );
        front_end.say(command::REGION_WRITE, &access(2, 9, 1, &[session + 1]), &[]);
        front_end.hear();
        front_end.0.shutdown(std::net::Shutdown::Write).unwrap();
        use std::io::Read;
        assert_eq!(
            front_end.0.read(&mut [0]).unwrap(),
            0,
            "it has hung up, too"
        );
    }
    iothread.stop();
}
