//! A transcript of QEMU's messages, in lines, and the expected replies.
//!
//! `COMMAND name value name value …`, numbers in hexadecimal, data as bytes in hexadecimal. Behind `->` are the expected
//! fields of the reply, which is compared byte by byte; `error` and an errno (decimal) mean a refusal. `ASKS`: the server
//! sends a message for memory now; `GIVES`: the reply to the oldest of those.

use std::collections::{BTreeMap, VecDeque};

use std::os::fd::AsFd;

use test_support::events::event;
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, access, unmap};
use vfio_user::wire::{
    self, DeviceInfo, DmaAccess, DmaMap, Header, IrqInfo, RegionInfo, SetIrqs, Version, command,
};

/// Sends all messages of a transcript, and checks the replies.
pub fn replay(rig: &mut Rig, transcript: &str) {
    let mut asked = VecDeque::new();
    let mut id = 0;
    for line in transcript.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        id += 1;
        let line = Line::parse(line);
        match line.command {
            "ASKS" => {
                let message = rig.receive().expect("the server asks");
                let name = match message.header.command {
                    command::DMA_READ => "DMA_READ",
                    _ => "DMA_WRITE",
                };
                assert_eq!(name, line.words["command"]);
                let access = DmaAccess::decode(&message.payload).unwrap();
                assert_eq!(access.address, line.number("addr"));
                assert_eq!(access.count, line.number("count"));
                asked.push_back(message);
            }
            "GIVES" => {
                let Message { header, payload } = asked.pop_front().unwrap();
                let payload = [&payload[..DmaAccess::BYTES], &line.data("data")].concat();
                let reply = Message::command(header.id, header.command, wire::TYPE_REPLY, &payload);
                assert!(rig.send(&reply.bytes(), &[]));
                rig.turn();
            }
            _ => line.send(rig, id),
        }
    }
    assert_eq!(rig.receive(), None, "no other message is sent");
}

struct Line<'a> {
    text: &'a str,
    command: &'a str,
    words: BTreeMap<&'a str, &'a str>,
    expected: Option<&'a str>,
}

impl<'a> Line<'a> {
    /// Parses `COMMAND NAME VALUE … -> REPLY`.
    fn parse(text: &'a str) -> Self {
        let (said, expected) = match text.split_once(" -> ") {
            Some((said, expected)) => (said, Some(expected)),
            None => (text, None),
        };
        let (command, rest) = said.split_once(' ').unwrap_or((said, ""));
        let words = match command {
            "VERSION" => BTreeMap::from([("json", rest)]),
            _ => {
                let words: Vec<_> = rest.split_whitespace().collect();
                assert!(words.len().is_multiple_of(2), "{text}");
                words.chunks(2).map(|pair| (pair[0], pair[1])).collect()
            }
        };
        Line {
            text,
            command,
            words,
            expected,
        }
    }

    fn number(&self, name: &str) -> u64 {
        u64::from_str_radix(self.words[name], 16).expect(self.text)
    }

    fn small(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).unwrap()
    }

    fn data(&self, name: &str) -> Vec<u8> {
        hex(self.words.get(name).unwrap_or(&""))
    }

    /// The command's number and payload, and the expected payload of its reply.
    fn payloads(&self) -> (u16, Vec<u8>, Vec<u8>) {
        let (mut payload, mut reply) = (Vec::new(), Vec::new());
        let command = match self.command {
            "VERSION" => {
                Version::default().encode(&mut payload);
                payload.extend_from_slice(self.words["json"].as_bytes());
                payload.push(0);
                Version::default().encode(&mut reply);
                reply.extend_from_slice(self.expected.unwrap().as_bytes());
                reply.push(0);
                command::VERSION
            }
            "DMA_MAP" => {
                DmaMap {
                    argsz: DmaMap::SIZE,
                    flags: self.small("flags"),
                    offset: self.number("off"),
                    address: self.number("iova"),
                    size: self.number("size"),
                }
                .encode(&mut payload);
                command::DMA_MAP
            }
            "DMA_UNMAP" => {
                payload = unmap(0, self.number("iova"), self.number("size"));
                reply.clone_from(&payload);
                command::DMA_UNMAP
            }
            "GET_INFO" => {
                let info = |flags, num_regions, num_irqs| DeviceInfo {
                    argsz: DeviceInfo::SIZE,
                    flags,
                    num_regions,
                    num_irqs,
                };
                info(0, 0, 0).encode(&mut payload);
                info(3, 9, 5).encode(&mut reply);
                command::DEVICE_GET_INFO
            }
            "GET_REGION_INFO" => {
                let info = |flags, size| RegionInfo {
                    argsz: RegionInfo::SIZE,
                    flags,
                    index: self.small("index"),
                    cap_offset: 0,
                    size,
                    offset: 0,
                };
                let size = u64::from_str_radix(self.expected.unwrap(), 16).unwrap();
                info(0, 0).encode(&mut payload);
                info(if size > 0 { 3 } else { 0 }, size).encode(&mut reply);
                command::DEVICE_GET_REGION_INFO
            }
            "GET_IRQ_INFO" => {
                IrqInfo {
                    argsz: IrqInfo::SIZE,
                    index: self.small("index"),
                    ..IrqInfo::default()
                }
                .encode(&mut payload);
                command::DEVICE_GET_IRQ_INFO
            }
            "SET_IRQS" => {
                SetIrqs {
                    argsz: SetIrqs::SIZE,
                    flags: self.small("flags"),
                    index: self.small("idx"),
                    start: self.small("start"),
                    count: self.small("count"),
                }
                .encode(&mut payload);
                command::DEVICE_SET_IRQS
            }
            "REGION_READ" => {
                let data = hex(self.expected.unwrap());
                let access = |data| {
                    let count = self.small("cnt");
                    access(self.small("reg"), self.number("off"), count, data)
                };
                payload = access(&[]);
                reply = access(&data);
                command::REGION_READ
            }
            "REGION_WRITE" => {
                let data = self.data("data");
                let count = u32::try_from(data.len()).unwrap();
                let access = |data| access(self.small("reg"), self.number("off"), count, data);
                payload = access(&data);
                reply = access(&[]);
                command::REGION_WRITE
            }
            "RESET" => command::DEVICE_RESET,
            other => panic!("{other}"),
        };
        (command, payload, reply)
    }

    /// Sends the command of the line, and asserts that the reply is the expected one.
    fn send(&self, rig: &mut Rig, id: u16) {
        let (command, payload, mut reply) = self.payloads();
        let posted = self.words.get("posted") == Some(&"1");
        let flags = if posted { wire::NO_REPLY } else { 0 };
        let eventfd = event();
        let has_fd = self.words.get("fds") == Some(&"1");
        let fds: &[_] = if has_fd { &[eventfd.as_fd()] } else { &[] };
        let message = Message::command(id, command, flags, &payload);
        assert!(rig.send(&message.bytes(), fds), "{}", self.text);
        rig.turn();
        if posted {
            return;
        }
        let found = rig.receive().expect(self.text);
        let mut flags = wire::TYPE_REPLY;
        let mut errno = 0;
        if let Some(error) = self.expected.and_then(|text| text.strip_prefix("error ")) {
            flags |= wire::ERROR;
            errno = error.parse().unwrap();
            reply.clear();
        }
        let header = Header {
            errno,
            ..Message::command(id, command, flags, &reply).header
        };
        let expected = Message {
            header,
            payload: reply,
        };
        assert_eq!(found.bytes(), expected.bytes(), "{}: {found:?}", self.text);
    }
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
