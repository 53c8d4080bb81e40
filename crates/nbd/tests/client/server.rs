//! A scripted server on a Unix socket: each connection runs a function of the test, after the handshake.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nbd::client::{ClientOptions, ServerAddress};
use nbd::wire::*;

/// What a server offers.
#[derive(Clone, Copy)]
pub struct Offer {
    pub size: u64,
    pub flags: u16,
    pub structured: bool,
    pub extended: bool,
    pub blocks: Option<[u32; 3]>,
}

/// Everything but several connections.
pub const ALL_FLAGS: u16 = transmission_flag::HAS_FLAGS
    | transmission_flag::SEND_FLUSH
    | transmission_flag::SEND_FUA
    | transmission_flag::SEND_TRIM
    | transmission_flag::SEND_WRITE_ZEROES;

impl Default for Offer {
    fn default() -> Self {
        Offer {
            size: 16 << 20,
            flags: ALL_FLAGS,
            structured: true,
            extended: false,
            blocks: None,
        }
    }
}

/// A request as a server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub command: u16,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
    pub payload: Vec<u8>,
}

/// A connection of the server after the handshake.
pub struct Peer {
    pub stream: UnixStream,
    pub offer: Offer,
}

fn read_array<const N: usize>(stream: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Peer {
    /// The next request; `None` at the end.
    pub fn receive(&mut self) -> Option<Received> {
        let stream = &mut self.stream;
        let (magic, header) = if self.offer.extended {
            let header = ExtendedRequest::decode(&read_array(stream).ok()?);
            (header.magic == EXTENDED_REQUEST_MAGIC, header)
        } else {
            let header = Request::decode(&read_array(stream).ok()?);
            let extended = ExtendedRequest {
                magic: EXTENDED_REQUEST_MAGIC,
                flags: header.flags,
                command: header.command,
                cookie: header.cookie,
                offset: header.offset,
                length: header.length.into(),
            };
            (header.magic == REQUEST_MAGIC, extended)
        };
        assert!(magic, "{header:?}");
        let mut received = Received {
            command: header.command,
            flags: header.flags,
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
            payload: Vec::new(),
        };
        if received.command == command::WRITE {
            received.payload = vec![0; usize::try_from(received.length).unwrap()];
            stream.read_exact(&mut received.payload).ok()?;
        }
        Some(received)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// A chunk with this payload.
    pub fn chunk(&mut self, cookie: u64, flags: u16, kind: u16, payload: &[u8]) {
        let mut bytes = if self.offer.extended {
            let header = ExtendedReply {
                magic: EXTENDED_REPLY_MAGIC,
                flags,
                chunk: kind,
                cookie,
                offset: 0,
                length: payload.len() as u64,
            };
            header.encode().to_vec()
        } else {
            let header = StructuredReply {
                magic: STRUCTURED_REPLY_MAGIC,
                flags,
                chunk: kind,
                cookie,
                length: u32::try_from(payload.len()).unwrap(),
            };
            header.encode().to_vec()
        };
        bytes.extend_from_slice(payload);
        self.send(&bytes);
    }

    /// A chunk with data for an offset.
    pub fn data_chunk(&mut self, cookie: u64, flags: u16, offset: u64, data: &[u8]) {
        let payload = [&offset.to_be_bytes()[..], data].concat();
        self.chunk(cookie, flags, chunk::OFFSET_DATA, &payload);
    }

    pub fn simple(&mut self, cookie: u64, error: u32, data: &[u8]) {
        let header = SimpleReply {
            magic: SIMPLE_REPLY_MAGIC,
            error,
            cookie,
        };
        let bytes = [&header.encode()[..], data].concat();
        self.send(&bytes);
    }

    /// Answers a request with success and the data of a read.
    pub fn answer(&mut self, request: &Received, data: &[u8]) {
        let is_chunked = self.offer.structured || self.offer.extended;
        match (is_chunked, request.command) {
            (false, _) => self.simple(request.cookie, 0, data),
            (true, command::READ) => {
                self.data_chunk(request.cookie, reply_flag::DONE, request.offset, data);
            }
            (true, _) if !self.offer.extended => self.simple(request.cookie, 0, &[]),
            (true, _) => self.chunk(request.cookie, reply_flag::DONE, chunk::NONE, &[]),
        }
    }

    /// Carries requests out in memory until the end.
    pub fn serve(&mut self, disk: &Mutex<Vec<u8>>) {
        while let Some(request) = self.receive() {
            if request.command == command::DISC {
                return;
            }
            let data = apply(&mut disk.lock().unwrap(), &request);
            self.answer(&request, &data);
        }
    }
}

/// Carries a request out in memory.
pub fn apply(disk: &mut [u8], request: &Received) -> Vec<u8> {
    let offset = usize::try_from(request.offset).unwrap();
    let range = offset..offset + usize::try_from(request.length).unwrap();
    match request.command {
        command::READ => return disk[range].to_vec(),
        command::WRITE => disk[range].copy_from_slice(&request.payload),
        command::WRITE_ZEROES | command::TRIM => disk[range].fill(0),
        command::FLUSH => {}
        other => panic!("command {other}"),
    }
    Vec::new()
}

/// A server whose connections run `script` with their number and what is left after the handshake.
pub struct Server {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Server {
    pub fn start(offer: Offer, script: impl FnMut(usize, Peer) + Send + 'static) -> Self {
        Self::start_raw(offer, script, |_| true)
    }

    /// A server with this disk whose first connection runs `first` instead of serving it.
    pub fn start_with_first(
        disk: Vec<u8>,
        mut first: impl FnMut(&mut Peer) + Send + 'static,
    ) -> Self {
        let offer = Offer {
            size: disk.len() as u64,
            ..Offer::default()
        };
        let disk = Mutex::new(disk);
        Self::start(offer, move |number, mut peer| match number {
            0 => first(&mut peer),
            _ => peer.serve(&disk),
        })
    }

    /// As [`start`](Self::start); `accepts` has each stream before the handshake, and may refuse it.
    pub fn start_raw(
        offer: Offer,
        script: impl FnMut(usize, Peer) + Send + 'static,
        mut accepts: impl FnMut(&mut UnixStream) -> bool + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let script = Arc::new(Mutex::new(script));
            let mut number = 0;
            while let Ok((mut stream, _)) = listener.accept() {
                if !accepts(&mut stream) || handshake(&mut stream, offer).is_err() {
                    continue;
                }
                // One connection after the other: a test's script decides when the next may begin.
                (script.lock().unwrap())(number, Peer { stream, offer });
                number += 1;
            }
        });
        Server {
            _folder: folder,
            path,
        }
    }

    /// A server that ends its first connection with the first request, and accepts no other one before a message. Then it serves this disk.
    pub fn start_lost_until_allowed(disk: Vec<u8>) -> (Self, Sender<()>) {
        let (allow, allowed) = channel();
        let (mut count, disk) = (0, Mutex::new(disk));
        let server = Self::start_raw(
            Offer::default(),
            move |number, mut peer| match number {
                0 => drop(peer.receive()),
                _ => peer.serve(&disk),
            },
            move |_| {
                count += 1;
                count != 2 || allowed.recv().is_ok()
            },
        );
        (server, allow)
    }

    /// Options for a client of it, which waits for new connections for so long, and gives silent servers up after a moment.
    pub fn options(&self, reconnect_delay: Duration) -> ClientOptions {
        ClientOptions {
            tls: None,
            server: ServerAddress::Unix {
                path: self.path.clone(),
            },
            export: "disk".to_owned(),
            reconnect_delay,
            open_timeout: Duration::ZERO,
            attempt_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_millis(200),
        }
    }
}

/// The server's handshake; an error if the client has left.
fn handshake(stream: &mut UnixStream, offer: Offer) -> std::io::Result<()> {
    let greeting = Greeting {
        magic: NBD_MAGIC,
        option_magic: OPTION_MAGIC,
        flags: handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES,
    };
    stream.write_all(&greeting.encode())?;
    read_array::<4>(stream)?;
    loop {
        let header = OptionHeader::decode(&read_array(stream)?);
        assert_eq!(header.magic, OPTION_MAGIC);
        let mut data = vec![0; header.length as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |reply, data: &[u8]| {
            let header = OptionReplyHeader {
                magic: OPTION_REPLY_MAGIC,
                option: header.option,
                reply,
                length: u32::try_from(data.len()).unwrap(),
            };
            stream.write_all(&[&header.encode()[..], data].concat())
        };
        match header.option {
            option::STRUCTURED_REPLY if offer.structured => reply(option_reply::ACK, &[])?,
            option::EXTENDED_HEADERS if offer.extended => reply(option_reply::ACK, &[])?,
            option::GO => {
                assert_eq!(data[4..8], *b"disk");
                let export = ExportInfo {
                    info: info::EXPORT,
                    size: offer.size,
                    flags: offer.flags,
                };
                reply(option_reply::INFO, &export.encode())?;
                if let Some([minimum, preferred, maximum]) = offer.blocks {
                    let blocks = BlockSizeInfo {
                        info: info::BLOCK_SIZE,
                        minimum,
                        preferred,
                        maximum,
                    };
                    reply(option_reply::INFO, &blocks.encode())?;
                }
                return reply(option_reply::ACK, &[]);
            }
            _ => reply(option_reply::ERR_UNSUP, &[])?,
        }
    }
}
