//! Guests and front-ends that do what they should not, and one beside them, on the same iothread, that must not notice.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;
use test_support::deadline::{Deadline, eventually};
use test_support::threads::{status_field, threads_named};
use test_support::vfio_user::{Message, access, map, unmap};
use vfio_user::wire::{self, command};

use crate::assemble::{MSG_OUT, Program, When};
use crate::driver::{BUFFERS, transfer};
use crate::machine::*;
use crate::process::{Folder, Process};
use crate::transfers::{self, MIB, execute};

const LINE: &str = "--object iothread,id=io \
    --blockdev null-co,node-name=a,size=4M,read-zeroes=on,latency-ns=10000000 \
    --blockdev file,node-name=b,filename=b.img,cache.direct=off \
    --export vfio-user-lsi53c895a,id=hostile,writable=on,iothread=io,addr.type=unix,addr.path=hostile.sock,node-name=a \
    --export vfio-user-lsi53c895a,id=beside,writable=on,iothread=io,addr.type=unix,addr.path=beside.sock,node-name=b";

/// The warning after an interrupt that has blocked.
const BLOCKED: &str = "made an eventfd blocking and filled it";

const BLOCKS: u16 = 128;
const BYTES: usize = 512 * BLOCKS as usize;

/// The daemon with both, and the one beside.
struct Scene {
    folder: Folder,
    program: Process,
    beside: Driver,
    round: u8,
}

fn plug(folder: &Folder, socket: &str) -> Driver {
    let mut driver = Driver::new(Machine::plug(&folder.join(socket)));
    let done = execute(&mut driver, transfers::command(0, 0, &[0; 6]));
    assert_eq!(done.status, 2, "unit attention");
    driver
}

impl Scene {
    /// Starts the program, with a well-behaved driver on one of its exports.
    fn new() -> Self {
        let folder = Folder::new();
        folder.image("b.img", 4 * MIB);
        let program = folder.start(LINE, "beside.sock");
        let beside = plug(&folder, "beside.sock");
        Scene {
            folder,
            program,
            beside,
            round: 0,
        }
    }

    fn hostile(&self) -> Driver {
        plug(&self.folder, "hostile.sock")
    }

    /// While something goes on with the other: what is written beside is read again.
    #[track_caller]
    fn unaffected(&mut self) {
        self.round += 1;
        let lba = u32::from(self.round) * u32::from(BLOCKS) % 4096;
        let machine = &mut self.beside.machine;
        machine.poke(BUFFERS, &[self.round; BYTES]);
        for (opcode, at) in [(0x2a, BUFFERS), (0x28, BUFFERS + BYTES as u32)] {
            let order = transfer(opcode, 0, Some(1), lba, BLOCKS, at);
            assert_eq!(execute(&mut self.beside, order).status, 0);
        }
        let found = self.beside.machine.peek(BUFFERS + BYTES as u32, BYTES);
        assert!(found == [self.round; BYTES], "round {}", self.round);
    }

    /// The hostile one has gone: who comes next finds a device that works, and the program holds nothing of the last.
    #[track_caller]
    fn serves_the_next(&mut self) {
        let mut next = self.hostile();
        next.machine.poke(BUFFERS, &[0x5a; BYTES]);
        for opcode in [0x2a, 0x28] {
            let order = transfer(opcode, 0, Some(1), 0, BLOCKS, BUFFERS);
            assert_eq!(execute(&mut next, order).status, 0);
        }
        next.expect_well();
        self.unaffected();
    }

    fn descriptors(&self) -> PathBuf {
        format!("/proc/{}/fd", self.program.pid().as_raw_nonzero()).into()
    }

    fn ends_well(self) {
        let ended = self.program.stop();
        for line in ended.stderr.lines() {
            let known = ["bad message", "truncated guest memory", BLOCKED];
            assert!(known.iter().any(|words| line.contains(words)), "{line}");
        }
    }
}

fn message(command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    Message::command(9, command, flags, payload).bytes()
}

type Strike = fn(&mut Machine);

/// Sixteen reads and writes.
fn in_flight(driver: &mut Driver) {
    for tag in 0..16 {
        let opcode = if tag % 2 == 0 { 0x28 } else { 0x2a };
        let at = BUFFERS + u32::from(tag) * BYTES as u32;
        driver.submit(&transfer(opcode, 0, Some(tag), 0, BLOCKS, at));
    }
}

#[test]
fn endless_scripts_do_not_disturb_other_guests() {
    const AT: u32 = 0x3000;
    let mut scene = Scene::new();
    let mut to_itself = Program::at(AT);
    to_itself.label("again").jump(When::Always, "again");
    let mut moves_much = Program::at(AT);
    moves_much.label("again").copy(0x10_0000, 0, 0x20_0000);
    moves_much.jump(When::Always, "again");
    let mut resets = Program::at(AT);
    resets
        .label("again")
        .select_atn(0, "again")
        .move_direct(MSG_OUT, 0x10_0000, 0x20_0000)
        .wait_disconnect()
        .jump(When::Always, "again");
    for program in [to_itself, moves_much, resets] {
        let mut machine = scene.hostile().machine;
        // BUS DEVICE RESET, again and again.
        machine.poke(0x20_0000, &[0x0c; 0x10_0000]);
        machine.start(&program, AT);
        for _ in 0..3 {
            scene.unaffected();
            machine.read8(ISTAT0);
        }
        // It goes, and the program goes on.
        drop(machine);
        scene.unaffected();
        scene.serves_the_next();
    }
    scene.ends_well();
}

#[test]
fn disconnect_or_memory_loss_with_requests_in_flight_is_handled() {
    let mut scene = Scene::new();
    scene.serves_the_next();
    let descriptors = scene.descriptors();
    let open = || std::fs::read_dir(&descriptors).unwrap().count();
    // Those that have gone are heard of a moment later.
    let mut next = scene.hostile();
    let with_one = open();
    next.expect_well();
    drop(next);
    let strikes: [(&str, Strike); 7] = [
        ("goes", |_| {}),
        ("memory shrinks", |machine| {
            ftruncate(machine.memory(), 0x1000).unwrap();
        }),
        ("memory is taken back", |machine| {
            let all = unmap(wire::DMA_UNMAP_ALL, 0, 0);
            machine.call(command::DMA_UNMAP, &all, &[]);
        }),
        ("device reset", |machine| {
            machine.call(command::DEVICE_RESET, &[], &[]);
        }),
        ("chip reset", |machine| machine.write8(ISTAT0, 0x40)),
        ("bus reset", |machine| machine.write8(SCNTL1, 0x08)),
        (
            "memory goes behind a reset without waiting for it",
            |machine| {
                machine.say(&message(command::DEVICE_RESET, 0, &[]));
                ftruncate(machine.memory(), 0).unwrap();
            },
        ),
    ];
    for (name, strike) in strikes {
        let mut driver = scene.hostile();
        in_flight(&mut driver);
        strike(&mut driver.machine);
        scene.unaffected();
        drop(driver);
        scene.unaffected();
        scene.serves_the_next();
        let next = scene.hostile();
        scene.program.wait_until(name, || open() == with_one);
        drop(next);
    }
    scene.ends_well();
}

#[test]
fn interrupts_that_block_do_not_disturb_other_guests() {
    let mut scene = Scene::new();
    for _ in 0..5 {
        let mut driver = scene.hostile();
        driver.machine.make_interrupts_block();
        in_flight(&mut driver);
        let deadline = Deadline::default();
        while !driver.machine.irq_level() {
            deadline.pause("an interrupt");
        }
        scene.unaffected();
    }
    scene.serves_the_next();
    let log = scene.program.stderr();
    assert_eq!(log.matches(BLOCKED).count(), 1, "{log}");
    scene.ends_well();
}

#[test]
fn arbitrary_or_unread_vfio_user_messages_are_handled() {
    let mut scene = Scene::new();
    let read = message(command::REGION_READ, 0, &access(2, 0, 8192, &[]));
    // Half a message, and no more.
    let driver = scene.hostile();
    assert!(driver.machine.say(&read[..20]));
    scene.unaffected();
    drop(driver);
    // Requests until the socket is full, without reading a reply.
    let driver = scene.hostile();
    let deadline = Deadline::default();
    while driver.machine.say(&read) || driver.machine.may_say_more() {
        deadline.check("it takes no more questions");
    }
    scene.unaffected();
    drop(driver);
    scene.serves_the_next();
    // What makes no sense.
    let driver = scene.hostile();
    assert!(driver.machine.say(&[0xff; 100]));
    assert!(driver.machine.is_hung_up());
    scene.unaffected();
    // A guest's memory that the front-end does not share, and never answers for.
    let mut driver = scene.hostile();
    let far = map(0x4000_0000, 0x1000);
    driver.machine.call(command::DMA_MAP, &far, &[]);
    driver.machine.write32(DSP, 0x4000_0000);
    scene.unaffected();
    drop(driver);
    scene.serves_the_next();
    scene.ends_well();
}

/// A read of a semaphore takes one of what is in it, so that it stays readable.
#[test]
fn eventfd_for_unmasking_that_stays_readable_lets_the_iothread_sleep() {
    let mut scene = Scene::new();
    let hostile = scene.hostile();
    let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK;
    let semaphore = eventfd(0, flags).unwrap();
    rustix::io::write(&semaphore, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let unmask = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_UNMASK;
    hostile.machine.set_irqs(unmask, &[semaphore.as_fd()]);
    let iothread = threads_named(scene.program.pid(), "IO io").remove(0);
    let sleeps = || {
        std::thread::sleep(Duration::from_millis(1));
        let status = std::fs::read_to_string(iothread.join("status")).unwrap();
        status_field(&status, "State").starts_with('S')
    };
    // One that has always something to do is never asleep.
    eventually("it sleeps for some time", || (0..100).all(|_| sleeps()));
    scene.unaffected();
    scene.program.stop();
}
