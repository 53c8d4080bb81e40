//! The vfio-user socket: any messages, any bytes, any descriptors, and a device that asks for memory.
//!
//! Each command has one reply, and nothing else has one; a connection that was ended leaves a server that the next
//! front-end can use.

use test_support::vfio_user::{Message, access, unmap};
use vfio_user::testing::Scratch;
use vfio_user::wire::{self, CONFIG_REGION, DmaMap, SetIrqs, command};

use crate::descriptors;
use crate::front_end::FrontEnd;
use crate::input::Input;

const EVENTS: usize = 100;

/// Where memory is that the device may only ask for.
const FAR: u64 = 0x4000_0000;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

struct Rig {
    front_end: FrontEnd<Scratch>,
    far: Vec<u8>,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig {
        front_end: FrontEnd::new(Scratch::default()),
        far: vec![0; 8192],
    };
    if input.flag() {
        rig.front_end.agree();
        rig.front_end.map(FAR, 8192, None);
    }
    input.events(EVENTS, |input| rig.event(input));
    rig.ends();
}

impl Rig {
    fn event(&mut self, input: &mut Input) {
        let front_end = &mut self.front_end;
        match input.byte() % 16 {
            0..=2 => self.access(input),
            3 => self.set_irqs(input),
            4 => self.map(input),
            5 => {
                let flags = u32::from(input.byte() & 7 == 7) * 2;
                let (address, size) = (u64::from(input.byte()), u64::from(input.byte()));
                let payload = unmap(flags, address << 12, size << 12);
                front_end.command(command::DMA_UNMAP, &payload, None);
            }
            6 => {
                let which = [
                    command::DEVICE_GET_INFO,
                    command::DEVICE_GET_REGION_INFO,
                    command::DEVICE_GET_IRQ_INFO,
                ];
                let which = which[input.below(3)];
                let (argsz, index) = (input.byte().into(), u32::from(input.byte() & 0xf));
                let mut payload = words(&[argsz, 0, index, 0]);
                if which == command::DEVICE_GET_REGION_INFO {
                    payload.extend([0; 16]);
                }
                front_end.command(which, &payload, None);
            }
            7 => front_end.command(command::DEVICE_RESET, &[], None),
            8 => {
                let (what, flags) = (
                    u16::from(input.byte() % 20),
                    u32::from(input.byte()) & !wire::TYPE_MASK,
                );
                let fds = descriptors::some(input);
                let payload = input.bytes(64);
                front_end.command_with(what, flags, payload, &fds);
            }
            9 => {
                let fds = descriptors::some(input);
                let len = input.byte().into();
                front_end.send_anything(input.bytes(len), &fds);
            }
            10 => {
                // An unexpected reply, or one to another request.
                let payload = input.bytes(32);
                let (id, command) = (input.byte().into(), u16::from(input.byte() % 20));
                let mut reply = Message::command(id, command, wire::TYPE_REPLY, payload);
                reply.header.size = Message::command(0, 0, 0, &[0; 32]).header.size;
                front_end.send_anything(&reply.bytes(), &[]);
            }
            11 => {
                let succeeds = input.flag();
                front_end.answer(FAR, &mut self.far, succeeds);
            }
            12 => front_end.rig.now_ns += u64::from(input.u32()) << 4,
            13 => {
                front_end.connect();
                if input.flag() {
                    front_end.agree();
                }
            }
            14 => front_end.agree(),
            _ => {
                front_end.rig.server.handle_unmask();
                front_end.do_pending_work();
                front_end.receive();
            }
        }
    }

    fn access(&mut self, input: &mut Input) {
        let region = [0, 1, 2, CONFIG_REGION, u32::from(input.byte())][input.below(5)];
        let offset = match input.below(4) {
            0 => input.u64(),
            // Where the device does something.
            1 => 0x59 + u64::from(input.byte() % 0x28),
            _ => u64::from(input.byte()),
        };
        let count = match input.below(8) {
            0 => input.u32(),
            _ => u32::from(input.byte() % 20),
        };
        let flags = u32::from(input.below(8) == 0) * wire::NO_REPLY;
        let (command, payload) = match input.below(4) {
            0 => (command::REGION_READ, access(region, offset, count, &[])),
            1 => {
                let mut payload = u64::from(input.byte() % 5).to_le_bytes().to_vec();
                for _ in 0..payload[0] {
                    payload.extend(u64::from(input.byte()).to_le_bytes());
                    payload.extend(words(&[region, u32::from(input.byte() % 9)]));
                    payload.extend(input.array::<8>());
                }
                (command::REGION_WRITE_MULTI, payload)
            }
            _ => {
                let data = input.bytes(usize::try_from(count % 1024).expect("small"));
                (command::REGION_WRITE, access(region, offset, count, data))
            }
        };
        self.front_end.command_with(command, flags, &payload, &[]);
    }

    fn set_irqs(&mut self, input: &mut Input) {
        let kinds = [
            wire::IRQ_DATA_NONE,
            wire::IRQ_DATA_BOOL,
            wire::IRQ_DATA_EVENTFD,
            input.byte().into(),
        ];
        let actions = [
            wire::IRQ_ACTION_MASK,
            wire::IRQ_ACTION_UNMASK,
            wire::IRQ_ACTION_TRIGGER,
            0,
        ];
        let mut payload = Vec::new();
        SetIrqs {
            argsz: SetIrqs::SIZE,
            flags: kinds[input.below(4)] | actions[input.below(4)],
            index: u32::from(input.byte() % 6),
            start: u32::from(input.byte() & 7 == 7),
            count: u32::from(input.byte() % 3),
        }
        .encode(&mut payload);
        let booleans = input.below(3);
        payload.extend_from_slice(input.bytes(booleans));
        let fds = match input.below(3) {
            0 => vec![descriptors::event()],
            1 => Vec::new(),
            _ => descriptors::some(input),
        };
        self.front_end
            .command_with(command::DEVICE_SET_IRQS, 0, &payload, &fds);
    }

    fn map(&mut self, input: &mut Input) {
        let mut payload = Vec::new();
        DmaMap {
            argsz: DmaMap::SIZE,
            flags: u32::from(input.byte() & 3),
            offset: u64::from(input.byte() & 0x1f) << 11,
            address: match input.below(4) {
                0 => input.u64(),
                _ => u64::from(input.byte()) << 12,
            },
            size: match input.below(4) {
                0 => input.u64(),
                _ => u64::from(input.byte() & 0x1f) << 12,
            },
        }
        .encode(&mut payload);
        let fds = match input.below(3) {
            0 => Vec::new(),
            1 => vec![descriptors::memory()],
            _ => descriptors::some(input),
        };
        self.front_end
            .command_with(command::DMA_MAP, 0, &payload, &fds);
    }

    /// All commands have their replies; then another front-end comes.
    fn ends(&mut self) {
        let front_end = &mut self.front_end;
        for _ in 0..64 {
            if !front_end.rig.is_connected() || !front_end.is_tame() {
                break;
            }
            lets_go(front_end);
            while front_end.do_pending_work() {}
            front_end.receive();
            while front_end.asked() {
                front_end.answer(FAR, &mut self.far, true);
            }
        }
        assert!(
            !front_end.rig.is_connected() || !front_end.is_tame() || front_end.waiting() == 0,
            "all have their reply"
        );
        front_end.connect();
        front_end.agree();
        lets_go(front_end);
        front_end.command(command::DEVICE_RESET, &[], None);
        let payload = words(&[16, 0, 0, 0]);
        front_end.command(command::DEVICE_GET_INFO, &payload, None);
        front_end.do_pending_work();
        front_end.receive();
        assert!(front_end.rig.is_connected());
        assert_eq!(front_end.waiting(), 0, "the next front-end is served");
    }
}

/// The device uses memory no longer, which commands may wait for.
fn lets_go(front_end: &mut FrontEnd<Scratch>) {
    let payload = access(0, vfio_user::testing::KEEP, 1, &[0]);
    front_end.command_with(command::REGION_WRITE, wire::NO_REPLY, &payload, &[]);
}
