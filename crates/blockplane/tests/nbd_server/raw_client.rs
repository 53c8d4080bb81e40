//! A client that sends any bytes: the handshake, requests and replies, one by one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd::wire::{
    OPTION_MAGIC, OptionHeader, OptionReplyHeader, REQUEST_MAGIC, Request, SimpleReply, option,
    option_reply,
};

use crate::process::{Folder, STUCK_AFTER};

/// A client that has entered an export, with simple replies.
pub struct RawClient {
    pub stream: UnixStream,
}

impl RawClient {
    /// Connects to the server on the socket `nbd`, without the handshake.
    pub fn connect(folder: &Folder) -> Self {
        let stream = UnixStream::connect(folder.join("nbd")).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        RawClient { stream }
    }

    /// Connects and enters an export.
    pub fn enter(folder: &Folder, export: &str) -> Self {
        Self::try_enter(folder, export).unwrap()
    }

    /// The same; an error if the server closes the connection or has no such export.
    pub fn try_enter(folder: &Folder, export: &str) -> Result<Self, String> {
        let mut client = Self::connect(folder);
        let closed = |error: std::io::Error| error.to_string();
        client.stream.read_exact(&mut [0; 18]).map_err(closed)?;
        let name_len = u32::try_from(export.len()).unwrap();
        let data = [&name_len.to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
        let go = OptionHeader {
            magic: OPTION_MAGIC,
            option: option::GO,
            length: u32::try_from(data.len()).unwrap(),
        };
        let bytes = [&3u32.to_be_bytes()[..], &go.encode(), &data].concat();
        client.stream.write_all(&bytes).map_err(closed)?;
        loop {
            let mut header = [0; OptionReplyHeader::BYTES];
            client.stream.read_exact(&mut header).map_err(closed)?;
            let header = OptionReplyHeader::decode(&header);
            let mut data = vec![0; header.length as usize];
            client.stream.read_exact(&mut data).map_err(closed)?;
            match header.reply {
                option_reply::ACK => return Ok(client),
                option_reply::INFO => {}
                _ => return Err(String::from_utf8(data).unwrap()),
            }
        }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Receives a simple reply: its cookie, its error, and so many bytes of data if it has succeeded.
    pub fn reply(&mut self, data_len: usize) -> (u64, u32, Vec<u8>) {
        let mut header = [0; SimpleReply::BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let header = SimpleReply::decode(&header);
        let mut data = vec![0; if header.error == 0 { data_len } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        (header.cookie, header.error, data)
    }

    /// Sends a request without data, and returns the error of its reply.
    pub fn result_of(&mut self, command: u16, flags: u16, range: (u64, u32)) -> u32 {
        self.send(&request(command, flags, 1, range));
        self.reply(0).1
    }

    /// Whether the server closes the connection within this time.
    pub fn is_closed_within(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// The header of a request.
pub fn request(command: u16, flags: u16, cookie: u64, (offset, length): (u64, u32)) -> Vec<u8> {
    let request = Request {
        magic: REQUEST_MAGIC,
        flags,
        command,
        cookie,
        offset,
        length,
    };
    request.encode().to_vec()
}
