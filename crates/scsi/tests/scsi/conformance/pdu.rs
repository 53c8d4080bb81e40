//! iSCSI's units of transfer (RFC 7143, section 11), as far as a test needs them.

use std::io::{self, Read, Write};
use std::net::TcpStream;

pub const HEADER_BYTES: usize = 48;

/// What we say that we take in one unit.
pub const MAX_SEGMENT_BYTES: usize = 262_144;

pub mod opcode {
    pub const COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    /// Of an answer to one of the above.
    pub const ANSWER: u8 = 0x20;
    pub const DATA_IN: u8 = 0x25;
    pub const READY_TO_TRANSFER: u8 = 0x31;
}

pub struct Pdu {
    pub header: [u8; HEADER_BYTES],
    pub data: Vec<u8>,
}

impl Pdu {
    /// An answer with the same initiator task tag.
    pub fn answer(&self, opcode: u8, flags: u8) -> Pdu {
        let mut header = [0; HEADER_BYTES];
        header[0] = opcode;
        header[1] = 0x80 | flags;
        header[16..20].copy_from_slice(&self.header[16..20]);
        Pdu {
            header,
            data: Vec::new(),
        }
    }

    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// It is not numbered.
    pub fn immediate(&self) -> bool {
        self.header[0] & 0x40 != 0
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    pub fn set_word(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    pub fn lun(&self) -> Option<u16> {
        scsi::decode_lun(self.header[8..16].try_into().unwrap())
    }

    pub fn receive(stream: &mut TcpStream) -> io::Result<Pdu> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let mut additional = vec![0; usize::from(header[4]) * 4];
        stream.read_exact(&mut additional)?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        stream.read_exact(&mut data)?;
        data.truncate(len);
        Ok(Pdu { header, data })
    }

    pub fn send(mut self, stream: &mut TcpStream) -> io::Result<()> {
        let len = u32::try_from(self.data.len()).unwrap().to_be_bytes();
        self.header[5..8].copy_from_slice(&len[1..]);
        self.data.resize(self.data.len().next_multiple_of(4), 0);
        stream.write_all(&[&self.header, self.data.as_slice()].concat())
    }

    /// Lines of `key=value`, each with a zero byte at its end.
    pub fn text(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.data);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    pub fn set_text(&mut self, pairs: &[(&str, &str)]) {
        for (key, value) in pairs {
            self.data.extend(format!("{key}={value}\0").bytes());
        }
    }
}
