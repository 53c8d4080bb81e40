//! A device on an iothread, whose event loop watches its socket and its eventfd.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::{
    EventLoop, HandlerId, IdleEnd, PollSettings, Readiness, Remote, Runner, SpawnError, TimerId,
};
use test_support::events::{becomes_readable, event, take};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{access, set_irqs};
use vfio_user::testing::{LEVEL, Scratch};
use vfio_user::wire::{self, command};
use vfio_user::{Server, ServerLoopHandlers, ServerReadiness};

/// A device and its handlers.
struct Devices {
    server: Server<Scratch>,
    watches: ServerLoopHandlers,
    timer: Option<(u64, TimerId)>,
    more: bool,
}

impl Devices {
    /// Updates the handlers.
    fn watch(&mut self, cx: &mut RunnerContext<Self>) {
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

impl Runner for Devices {
    type Handler = ServerReadiness;
    type Timer = ();
    type Message = UnixStream;

    fn on_ready(
        &mut self,
        cx: &mut RunnerContext<Self>,
        _: HandlerId,
        watched: ServerReadiness,
        _: Readiness,
    ) {
        match watched {
            ServerReadiness::Read => self.server.handle_readable(cx.now_ns()),
            ServerReadiness::Write => self.server.handle_writable(),
            ServerReadiness::Unmask => self.server.handle_unmask(),
        }
        self.more = true;
    }

    fn on_timer(&mut self, _: &mut RunnerContext<Self>, (): ()) {
        self.timer = None;
        self.more = true;
    }

    fn on_message(&mut self, cx: &mut RunnerContext<Self>, socket: UnixStream) {
        self.server.attach_connection(socket).unwrap();
        self.watch(cx);
    }

    fn admit(&mut self, cx: &mut RunnerContext<Self>) {
        if self.more {
            self.more = self.server.do_pending_work(cx.now_ns());
            self.watch(cx);
        }
    }

    fn has_work_for_next_iteration(&self) -> bool {
        self.more
    }

    fn reap(&mut self, _: &mut RunnerContext<Self>) {}
    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {}
    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {}
    fn submit(&mut self, _: &mut RunnerContext<Self>) {}
    fn poll_sources_once(&mut self) -> bool {
        false
    }
    fn predict_poll_deadline_ns(&mut self, _: &PollSettings, now_ns: u64) -> u64 {
        now_ns
    }
    fn learn_from_idle(&mut self, _: &PollSettings, _: IdleEnd) {}
    fn prepare_to_block_or_find_work(&mut self, _: &mut RunnerContext<Self>) -> bool {
        false
    }
    fn on_stop(&mut self, cx: &mut RunnerContext<Self>) {
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

#[test]
fn a_device_shares_a_thread_with_an_event_loop() {
    let make = |_: &mut RunnerContext<Devices>, _: &Remote<UnixStream>| {
        Ok::<_, Failed>(Devices {
            server: Server::new(Scratch::default()),
            watches: ServerLoopHandlers::default(),
            timer: None,
            more: false,
        })
    };
    let iothread = EventLoop::<Devices>::spawn("devices", PollSettings::default(), make).unwrap();
    for session in 0..2u8 {
        let (front_end, socket) = UnixStream::pair().unwrap();
        let front_end = Connection::new(front_end);
        iothread.remote().send(socket).unwrap();
        front_end.send(command::VERSION, &[0; 4], &[]);
        front_end.reply();
        let trigger = event();
        let connect = |action, fd: &OwnedFd| {
            let payload = set_irqs(0, wire::IRQ_DATA_EVENTFD | action, 1, &[]);
            front_end.send(command::DEVICE_SET_IRQS, &payload, &[fd.as_fd()]);
            front_end.reply();
        };
        let wait = || {
            assert!(becomes_readable(&trigger), "the line is signalled");
            take(&trigger)
        };
        connect(wire::IRQ_ACTION_TRIGGER, &trigger);
        front_end.send(command::REGION_WRITE, &access(0, LEVEL, 1, &[1]), &[]);
        front_end.reply();
        assert_eq!(wait(), 1);
        // An eventfd, and another one that replaces it.
        for unmask in [event(), event()] {
            connect(wire::IRQ_ACTION_UNMASK, &unmask);
            rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(), 1, "unmasked while the line is up");
        }
        // More than a socket holds: the replies are sent when it is writable again.
        for _ in 0..200 {
            front_end.send(command::REGION_READ, &access(2, 0, 8192, &[]), &[]);
        }
        for _ in 0..200 {
            assert_eq!(front_end.reply().payload.len(), 16 + 8192);
        }
        front_end.send(command::REGION_READ, &access(2, 9, 1, &[]), &[]);
        assert_eq!(
            front_end.reply().payload[16],
            session,
            "the device keeps its state"
        );
        front_end.send(command::REGION_WRITE, &access(2, 9, 1, &[session + 1]), &[]);
        front_end.reply();
        front_end.end_of_messages();
        assert!(front_end.is_hung_up(), "it has hung up, too");
    }
    iothread.stop();
}
