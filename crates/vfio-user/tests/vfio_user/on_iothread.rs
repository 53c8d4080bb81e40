//! A device on an iothread, whose event loop watches its socket and its eventfd: sessions with our front-end, and with an independent
//! one, rust-vmm's, which Cloud Hypervisor uses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};

use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::{
    EventLoop, EventLoopThread, HandlerId, IdleEnd, PollSettings, Readiness, Remote, Runner,
    SpawnError, TimerId,
};
use rust_vmm_vfio_user::Client;
use test_support::deadline::eventually;
use test_support::events::{becomes_readable, event, take};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{access, file, memory, set_irqs};
use vfio_user::testing::{ADDRESS, DATA, LEVEL, MAPPED_WRITE, Scratch};
use vfio_user::wire::{self, command};
use vfio_user::{Server, ServerLoopHandlers, ServerReadiness};

/// A device and its handlers.
struct Devices {
    server: Server<Scratch>,
    watches: ServerLoopHandlers,
    timer: Option<(u64, TimerId)>,
    /// Front-ends that come after the present one.
    next: VecDeque<UnixStream>,
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

    fn on_message(&mut self, _: &mut RunnerContext<Self>, socket: UnixStream) {
        self.next.push_back(socket);
        self.more = true;
    }

    fn admit(&mut self, cx: &mut RunnerContext<Self>) {
        if self.more {
            self.more = self.server.do_pending_work(cx.now_ns());
            if self.server.socket().is_none()
                && let Some(socket) = self.next.pop_front()
            {
                self.server.attach_connection(socket).unwrap();
            }
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

/// An iothread with a device.
fn spawn() -> EventLoopThread<UnixStream> {
    let make = |_: &mut RunnerContext<Devices>, _: &Remote<UnixStream>| {
        Ok::<_, Failed>(Devices {
            server: Server::new(Scratch::default()),
            watches: ServerLoopHandlers::default(),
            timer: None,
            next: VecDeque::new(),
            more: false,
        })
    };
    EventLoop::spawn("devices", PollSettings::default(), make).unwrap()
}

fn wait(line: &OwnedFd) -> u64 {
    assert!(becomes_readable(line), "the line is signalled");
    take(line)
}

#[test]
fn a_device_shares_a_thread_with_an_event_loop() {
    let iothread = spawn();
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
        connect(wire::IRQ_ACTION_TRIGGER, &trigger);
        front_end.send(command::REGION_WRITE, &access(0, LEVEL, 1, &[1]), &[]);
        front_end.reply();
        assert_eq!(wait(&trigger), 1);
        // An eventfd, and another one that replaces it.
        for unmask in [event(), event()] {
            connect(wire::IRQ_ACTION_UNMASK, &unmask);
            rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(wait(&trigger), 1, "unmasked while the line is up");
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

#[test]
fn cloud_hypervisors_client_can_connect_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let iothread = spawn();
    let remote = iothread.remote().clone();
    let accepting = std::thread::spawn(move || {
        for socket in listener.incoming().take(3) {
            remote.send(socket.unwrap()).unwrap();
        }
    });
    for session in 0..3u8 {
        let mut client = Client::new(&path).unwrap();
        let sizes: Vec<_> = (0..9)
            .map(|index| client.region(index).unwrap().size)
            .collect();
        assert_eq!(sizes, [256, 0x400, 0x2000, 0, 0, 0, 0, 256, 0]);
        let mut ids = [0; 4];
        client.region_read(7, 0, &mut ids).unwrap();
        assert_eq!(ids, [0x00, 0x10, 0x12, 0x00]);
        let mut before = [0; 1];
        client.region_read(2, 0x100, &mut before).unwrap();
        assert_eq!(before, [session], "the device keeps its state");
        client.region_write(2, 0x100, &[session + 1]).unwrap();

        let memory = memory(1 << 20);
        client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
        client.region_write(0, ADDRESS, &[0, 0, 8, 0]).unwrap();
        client.region_write(0, DATA, &[session + 1; 4]).unwrap();
        client.region_write(0, MAPPED_WRITE, &[1]).unwrap();
        // The reply to the write was sent before the access to memory.
        eventually("what was written is in memory", || {
            let mut written = [0; 4];
            file(&memory).read_exact_at(&mut written, 0x8_0000).unwrap();
            written == [session + 1; 4]
        });
        let intx = client.get_irq_info(0).unwrap();
        assert_eq!((intx.count, intx.flags), (1, 7));
        let (trigger, unmask) = (event(), event());
        for (action, fd) in [
            (wire::IRQ_ACTION_TRIGGER, &trigger),
            (wire::IRQ_ACTION_UNMASK, &unmask),
        ] {
            let flags = wire::IRQ_DATA_EVENTFD | action;
            client.set_irqs(0, flags, 0, 1, &[fd.as_raw_fd()]).unwrap();
        }
        client.region_write(0, LEVEL, &[1]).unwrap();
        assert_eq!(wait(&trigger), 1);
        rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&trigger), 1, "the line is still up");
        client.region_write(0, LEVEL, &[0]).unwrap();
        let flags = wire::IRQ_DATA_NONE | wire::IRQ_ACTION_TRIGGER;
        client.set_irqs(0, flags, 0, 0, &[]).unwrap();
        client.dma_unmap(0, 1 << 20).unwrap();
        client.reset().unwrap();
        client.shutdown().unwrap();
    }
    accepting.join().unwrap();
    iothread.stop();
}
