//! The messages of vhost-user that we send, as bytes: the "Message Specification" of the
//! vhost-user protocol. Numbers are in the machine's byte order, as the protocol wants it.

/// Length of the header: request, flags, size of the payload.
pub(crate) const HEADER_BYTES: usize = 12;
/// Largest payload that we accept: a `CONFIG` message with all 256 bytes of configuration.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 12 + 256;

/// Version of the protocol, in the flags of each message.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Virtio feature: there are protocol features.
pub(crate) const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// Protocol features.
pub(crate) const PROTOCOL_F_MQ: u64 = 1 << 0;
pub(crate) const PROTOCOL_F_REPLY_ACK: u64 = 1 << 3;
pub(crate) const PROTOCOL_F_CONFIG: u64 = 1 << 9;
pub(crate) const PROTOCOL_F_INFLIGHT_SHMFD: u64 = 1 << 12;

/// What a message asks for; the values are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Request {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemTable = 5,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    GetConfig = 24,
    GetInflightFd = 31,
    SetInflightFd = 32,
}

/// The header of a message of ours.
pub(crate) fn header(request: Request, need_reply: bool, payload_bytes: u32) -> [u8; HEADER_BYTES] {
    let flags = VERSION | if need_reply { FLAG_NEED_REPLY } else { 0 };
    let mut header = [0; HEADER_BYTES];
    let words = [request as u32, flags, payload_bytes];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// The size of a reply's payload, if its header is that of a reply to `request`.
pub(crate) fn reply_bytes(header: &[u8; HEADER_BYTES], request: Request) -> Option<usize> {
    let word = |index: usize| {
        let bytes = header.get(4 * index..4 * index + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    let is_reply = word(0)? == request as u32
        && word(1)? & FLAG_REPLY != 0
        && word(1)? & VERSION_MASK == VERSION;
    let bytes = usize::try_from(word(2)?).ok()?;
    (is_reply && bytes <= MAX_PAYLOAD_BYTES).then_some(bytes)
}

/// A payload in the making.
#[derive(Default)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// What the other side has said.
    pub fn of(bytes: Vec<u8>) -> Self {
        Payload(bytes)
    }

    pub fn zeroes(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
