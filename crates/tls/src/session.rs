//! A session: data of this side in, records out, and the reverse. It has no stream: each call gets one, which may block or not.
//!
//! Memory is bounded whatever the peer sends: one buffer for what was received, and the records that rustls keeps, of which each has at
//! most 18 KiB. What is to be sent and the stream does not take is kept up to [`MAX_UNSENT_BYTES`].

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::{ClientConnection, Connection, ServerConnection};

use crate::credentials::{ClientCredentials, ServerCredentials};
use crate::distinguished_name::distinguished_name;
use crate::record_scanner::RecordScanner;

/// The name of a server, as its certificate has it.
pub type ServerName = rustls::pki_types::ServerName<'static>;

/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 32 << 10;

/// Most bytes that are kept to be sent.
const MAX_UNSENT_BYTES: usize = 128 << 10;

/// Most encrypted bytes that a turn takes, whatever they contain: other sources of the thread wait meanwhile.
const MAX_BYTES_PER_TURN: usize = 512 << 10;

/// Bytes of the turn's budget that each record uses up, besides its own bytes. A key update has 27 bytes, and takes some 7 us.
const RECORD_COST_BYTES: usize = 2 << 10;

/// Most records that rustls is given at once.
const RECORDS_AT_ONCE: usize = 64;

/// A session.
pub struct Session {
    connection: Connection,
    /// Bytes of the stream.
    received: Box<[u8]>,
    /// Those that rustls has not taken.
    begin: usize,
    end: usize,
    scanner: RecordScanner,
    /// Encrypted bytes that this turn may still take, with the cost of their records.
    turn_budget: usize,
    /// The peer or the stream has ended, or the peer has violated the protocol.
    is_over: bool,
}

impl Session {
    /// A session of a client with a server of this name.
    ///
    /// # Errors
    /// None that a caller can cause: rustls has no secure random numbers.
    pub fn client(credentials: &ClientCredentials, name: ServerName) -> io::Result<Self> {
        let connection = ClientConnection::new(Arc::clone(credentials.config()), name);
        connection.map(|c| Self::new(c.into())).map_err(tls_error)
    }

    /// A session of a server with any client.
    ///
    /// # Errors
    /// As for [`Session::client`].
    pub fn server(credentials: &ServerCredentials) -> io::Result<Self> {
        let connection = ServerConnection::new(Arc::clone(credentials.config()));
        connection.map(|c| Self::new(c.into())).map_err(tls_error)
    }

    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        Session {
            connection,
            received: vec![0; RECEIVE_BYTES].into(),
            begin: 0,
            end: 0,
            scanner: RecordScanner::default(),
            turn_budget: MAX_BYTES_PER_TURN,
            is_over: false,
        }
    }

    /// Carries out the handshake.
    ///
    /// # Errors
    /// Those of the stream; after `WouldBlock` of a stream that does not block it is called again when the stream is ready: for
    /// writing if [`Session::has_unsent`]. `UnexpectedEof`; `InvalidData` with a text if the peer is not acceptable, or this side
    /// is not to the peer.
    pub fn handshake(&mut self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        loop {
            self.send_unsent(stream)?;
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            if self.is_over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let received = self.receive(stream);
            if let Err(error) = received {
                if error.kind() == io::ErrorKind::InvalidData {
                    // The alert that says why, if the stream takes it.
                    let _ = self.send_unsent(stream);
                }
                return Err(error);
            }
        }
    }

    /// The name of the peer's certificate. `None`: it has none, or one of a form that is not supported.
    #[must_use]
    pub fn peer_name(&self) -> Option<String> {
        let certificate = self.connection.peer_certificates()?.first()?;
        distinguished_name(certificate)
    }

    /// Whether records wait to be sent.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether the next read may find something that the stream does not announce: bytes that were received, the end, or more bytes
    /// after a turn whose budget is used up.
    #[must_use]
    pub fn has_more_to_read(&self) -> bool {
        self.is_over || self.begin < self.end || self.turn_budget == 0
    }

    /// Begins a turn of the thread, which takes at most 512 KiB of encrypted bytes, or some 250 records.
    pub fn begin_turn(&mut self) {
        self.turn_budget = MAX_BYTES_PER_TURN;
    }

    /// Reads data. 0: the peer has ended its side, or the stream has.
    ///
    /// # Errors
    /// Those of the stream; `Interrupted` if this turn has taken its share of encrypted bytes, and more may be there;
    /// `InvalidData` if the peer violates the protocol.
    pub fn read(&mut self, stream: &mut impl Read, data: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The stream has ended without a `close_notify`. What NBD sends has a length, so nothing is mistaken for whole.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Ok(0) if !data.is_empty() => {
                    self.is_over = true;
                    return Ok(0);
                }
                read => return read,
            }
            if self.turn_budget == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.receive(stream)?;
        }
    }

    /// Lets rustls process what was received, after receiving if there is nothing.
    fn receive(&mut self, stream: &mut impl Read) -> io::Result<()> {
        if self.begin == self.end && !self.is_over {
            let received = stream.read(&mut self.received)?;
            (self.begin, self.end) = (0, received);
            self.is_over = received == 0;
        }
        let unread = &self.received[self.begin..self.end];
        // A scan ahead on a copy: rustls may take fewer bytes than it is offered.
        let mut ahead = self.scanner;
        let offered = ahead.scan(unread, RECORDS_AT_ONCE).len_bytes;
        // Without bytes, this is the end of the stream.
        let taken = self.connection.read_tls(&mut &unread[..offered])?;
        let scanned = self.scanner.scan(&unread[..taken], RECORDS_AT_ONCE);
        self.begin += taken;
        let cost = taken + scanned.records * RECORD_COST_BYTES;
        self.turn_budget = self.turn_budget.saturating_sub(cost);
        let processed = self.connection.process_new_packets();
        self.is_over |= processed.is_err();
        processed.map(|_| ()).map_err(tls_error)
    }

    /// Takes data, and sends what the stream takes: returns how many bytes were taken.
    ///
    /// # Errors
    /// Those of the stream; `WouldBlock` if nothing was taken.
    pub fn write(&mut self, stream: &mut impl Write, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_unsent(stream)?;
        let taken = self.connection.writer().write_vectored(data)?;
        match self.send_unsent(stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends records that wait.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send_unsent(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends this side, as far as the stream takes it.
    pub fn close(&mut self, stream: &mut impl Write) {
        self.connection.send_close_notify();
        // The peer sees the end of the stream otherwise.
        let _ = self.send_unsent(stream);
    }
}

/// The error of a session.
fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, describe(&error))
}

/// The reason, and what to do where that is known.
fn describe(error: &rustls::Error) -> String {
    use rustls::{AlertDescription, CertificateError, Error};
    let hint = match error {
        Error::NoCertificatesPresented => "the peer has no certificate, which is required",
        Error::InvalidMessage(_) => "the peer does not speak TLS",
        // An authority of the same name, or of another one.
        Error::InvalidCertificate(
            CertificateError::BadSignature | CertificateError::UnknownIssuer,
        ) => "the peer's certificate is not signed by the authority in ca-cert.pem",
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the peer's certificate has expired",
        Error::InvalidCertificate(CertificateError::Revoked) => {
            "the peer's certificate is revoked by ca-crl.pem"
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server requires a certificate of the client: client-cert.pem and client-key.pem"
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied,
        ) => "the peer does not accept the certificate of this side",
        _ => return format!("TLS: {error}"),
    };
    format!("TLS: {hint} ({error})")
}
