//! A transcript of QEMU's messages, in lines, and the expected replies.
//!
//! `COMMAND name value name value …`, numbers in hexadecimal, data as bytes in hexadecimal. Behind `->` are the expected
//! fields of the reply, which is compared byte by byte; `error` and an errno (decimal) mean a refusal. `ASKS`: the server
//! sends a message for memory now; `GIVES`: the reply to the oldest of those.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;

use test_support::events::event;
use test_support::vfio_user::Message;
use test_support::vfio_user::rig::Rig;
use vfio_user::wire::{self, DmaAccess, command};

/// Name of a command, its number, and the fields of its payload and of the reply's, by the specification: `NAME/BYTES` for a number,
/// which may be a constant (decimal); a name alone for bytes. `reply` is what is behind `->`.
const LAYOUTS: &[(&str, u16, &str, &str)] = &[
    ("VERSION", command::VERSION, "0/4 text", "0/4 reply"),
    (
        "DMA_MAP",
        command::DMA_MAP,
        "32/4 flags/4 off/8 iova/8 size/8",
        "",
    ),
    (
        "GET_INFO",
        command::DEVICE_GET_INFO,
        "16/4 0/4 0/8",
        "16/4 3/4 9/4 5/4",
    ),
    (
        "GET_REGION_INFO",
        command::DEVICE_GET_REGION_INFO,
        "32/4 0/4 index/4 0/4 0/8 0/8",
        "32/4 allowed/4 index/4 0/4 reply/8 0/8",
    ),
    (
        "GET_IRQ_INFO",
        command::DEVICE_GET_IRQ_INFO,
        "16/4 0/4 index/4 0/4",
        "",
    ),
    (
        "SET_IRQS",
        command::DEVICE_SET_IRQS,
        "20/4 flags/4 idx/4 start/4 count/4",
        "",
    ),
    (
        "REGION_READ",
        command::REGION_READ,
        "off/8 reg/4 cnt/4",
        "off/8 reg/4 cnt/4 reply",
    ),
    (
        "REGION_WRITE",
        command::REGION_WRITE,
        "off/8 reg/4 cnt/4 data",
        "off/8 reg/4 cnt/4",
    ),
    ("RESET", command::DEVICE_RESET, "", ""),
];

/// Sends all messages of a transcript, and checks the replies.
pub fn replay(rig: &mut Rig, transcript: &str) {
    let mut asked = VecDeque::new();
    let lines = transcript
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for (text, id) in lines.zip(1..) {
        let line = Line::parse(text);
        match line.command {
            "ASKS" => {
                let message = rig.receive().expect("the server asks");
                let name = match message.header.command {
                    command::DMA_READ => "DMA_READ",
                    _ => "DMA_WRITE",
                };
                assert_eq!(name, line.words["command"]);
                let access = DmaAccess::decode(&message.payload).unwrap();
                let expected = (line.number("addr"), line.number("count"));
                assert_eq!((access.address, access.count), expected);
                asked.push_back(message);
            }
            "GIVES" => {
                let Message { header, payload } = asked.pop_front().unwrap();
                let data = hex(line.words.get("data").map_or("", String::as_str));
                let payload = [&payload[..DmaAccess::BYTES], &data].concat();
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
    words: BTreeMap<&'a str, String>,
}

impl<'a> Line<'a> {
    /// Parses `COMMAND NAME VALUE … -> REPLY`.
    fn parse(text: &'a str) -> Self {
        let (said, reply) = text.split_once(" -> ").unwrap_or((text, ""));
        let (command, rest) = said.split_once(' ').unwrap_or((said, ""));
        let mut words = BTreeMap::new();
        if command == "VERSION" {
            words.insert("text", rest.to_owned());
        } else {
            let rest: Vec<_> = rest.split_whitespace().collect();
            let pairs = rest.chunks(2).map(|pair| (pair[0], pair[1].to_owned()));
            words.extend(pairs);
        }
        if let Some(data) = words.get("data") {
            words.insert("cnt", format!("{:x}", data.len() / 2));
        }
        let allowed = if reply == "0" { "0" } else { "3" };
        words.insert("allowed", allowed.to_owned());
        words.insert("reply", reply.to_owned());
        Line {
            text,
            command,
            words,
        }
    }

    fn number(&self, name: &str) -> u64 {
        u64::from_str_radix(&self.words[name], 16).expect(self.text)
    }

    fn encode(&self, layout: &str) -> Vec<u8> {
        let field = |field: &str| match field.split_once('/') {
            Some((name, bytes)) => {
                let number = name.parse().unwrap_or_else(|_| self.number(name));
                u64::to_le_bytes(number)[..bytes.parse().unwrap()].to_vec()
            }
            None if self.command == "VERSION" => [self.words[field].as_bytes(), &[0]].concat(),
            None => hex(&self.words[field]),
        };
        layout.split_whitespace().flat_map(field).collect()
    }

    /// Sends the command of the line, and asserts that the reply is the expected one.
    fn send(&self, rig: &mut Rig, id: u16) {
        let layout = LAYOUTS.iter().find(|(name, ..)| *name == self.command);
        let (_, command, payload, reply) = layout.expect(self.text);
        let is = |name| self.words.get(name).is_some_and(|value| value == "1");
        let flags = if is("posted") { wire::NO_REPLY } else { 0 };
        let eventfd = event();
        let fds: &[_] = if is("fds") { &[eventfd.as_fd()] } else { &[] };
        let message = Message::command(id, *command, flags, &self.encode(payload));
        assert!(rig.send(&message.bytes(), fds), "{}", self.text);
        rig.turn();
        if is("posted") {
            return;
        }
        let found = rig.receive().expect(self.text);
        let expected = match self.words["reply"].strip_prefix("error ") {
            Some(errno) => {
                let flags = wire::TYPE_REPLY | wire::ERROR;
                let mut refusal = Message::command(id, *command, flags, &[]);
                refusal.header.errno = errno.parse().unwrap();
                refusal
            }
            None => Message::command(id, *command, wire::TYPE_REPLY, &self.encode(reply)),
        };
        assert_eq!(found.bytes(), expected.bytes(), "{}: {found:?}", self.text);
    }
}

fn hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}
