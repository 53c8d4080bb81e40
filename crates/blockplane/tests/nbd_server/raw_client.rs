//! A client that sends any bytes: the handshake, requests and replies, one by one.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd::wire::{
    OPTION_MAGIC, OptionHeader, OptionReplyHeader, REQUEST_MAGIC, Request, SimpleReply, command,
    option, option_reply,
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
        client.greet().map_err(closed)?;
        let name = string(export);
        let replies = client.option(option::GO, &[&name[..], &[0, 0]].concat());
        match replies.map_err(closed)?.pop() {
            Some((option_reply::ACK, _)) => Ok(client),
            other => Err(String::from_utf8(other.unwrap().1).unwrap()),
        }
    }

    /// Ends the connection at once, also if another test is starting a program, which has its descriptor for a moment.
    pub fn hang_up(self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Begins the handshake.
    pub fn greet(&mut self) -> std::io::Result<()> {
        self.stream.read_exact(&mut [0; 18])?;
        self.stream.write_all(&3u32.to_be_bytes())
    }

    /// Sends an option.
    pub fn send_option(&mut self, option: u32, data: &[u8]) -> std::io::Result<()> {
        let header = OptionHeader {
            magic: OPTION_MAGIC,
            option,
            length: u32::try_from(data.len()).unwrap(),
        };
        self.stream.write_all(&[&header.encode(), data].concat())
    }

    /// Sends an option, and returns the kinds and the data of all replies to it.
    pub fn option(&mut self, option: u32, data: &[u8]) -> std::io::Result<Vec<(u32, Vec<u8>)>> {
        self.send_option(option, data)?;
        let mut replies = Vec::new();
        loop {
            let mut header = [0; OptionReplyHeader::BYTES];
            self.stream.read_exact(&mut header)?;
            let header = OptionReplyHeader::decode(&header);
            let mut data = vec![0; header.length as usize];
            self.stream.read_exact(&mut data)?;
            replies.push((header.reply, data));
            if header.reply == option_reply::ACK || header.reply & option_reply::ERROR != 0 {
                return Ok(replies);
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

    /// Writes this byte to a range.
    #[track_caller]
    pub fn write(&mut self, offset: u64, len: u32, byte: u8) {
        let data = vec![byte; len as usize];
        self.send(&[request(command::WRITE, 0, 1, (offset, len)), data].concat());
        assert_eq!(self.reply(0), (1, 0, vec![]));
    }

    /// Reads a range.
    #[track_caller]
    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.send(&request(command::READ, 0, 2, (offset, len)));
        let (cookie, error, data) = self.reply(len as usize);
        assert_eq!((cookie, error), (2, 0));
        data
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
                // This process was stopped and continued.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

/// A string after its length.
pub fn string(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap();
    [&len.to_be_bytes()[..], text.as_bytes()].concat()
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
