//! Clients of a monitor on a thread of their own: one asks and never reads, the others ask and read.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{getpriority_process, setpriority_process};

use crate::cpus::pin;
use crate::error::{Error, Result};
use crate::load::latencies;

const NEGOTIATE: &[u8] = br#"{"execute":"qmp_capabilities"}"#;
/// What those ask that read.
const QUESTION: &[u8] = br#"{"execute":"query-block-exports"}"#;
/// What the one asks that does not: the longest answer there is.
const LONG_QUESTION: &[u8] = br#"{"execute":"query-qmp-schema"}"#;
/// What all answers without an error begin with.
const ANSWER: &[u8] = br#"{"return""#;
/// For the greeting and the first answer.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// How often the end is looked for when nothing happens.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How often clients ask, all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// They are connected and silent.
    Silent,
    /// So often per second.
    PerSecond(u32),
    /// Each as soon as it has its answer.
    AsAnswered,
}

/// `0`, a number, or `max`.
impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "max" => Ok(Rate::AsAnswered),
            _ => match text.parse() {
                Ok(0) => Ok(Rate::Silent),
                Ok(rate) => Ok(Rate::PerSecond(rate)),
                Err(_) => Err("a number of questions per second in all, or max".to_owned()),
            },
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Silent => f.write_str("silent"),
            Rate::PerSecond(rate) => write!(f, "{rate} questions per s"),
            Rate::AsAnswered => f.write_str("as fast as answered"),
        }
    }
}

/// The number of monitor clients and their request rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientLoad {
    pub clients: u16,
    pub rate: Rate,
    /// Niceness of their thread.
    pub nice: u8,
    /// Where it runs; anywhere else.
    pub cpu: Option<usize>,
}

/// The replies that the clients received.
#[derive(Clone, Debug)]
pub(super) struct ClientResults {
    pub answers: u64,
    pub time: Duration,
    /// From a question to the end of its answer.
    pub waits: Histogram<u64>,
}

impl Default for ClientResults {
    fn default() -> Self {
        ClientResults {
            answers: 0,
            time: Duration::ZERO,
            waits: latencies(),
        }
    }
}

/// Clients that are connected until [`Clients::leave`].
pub(super) struct Clients {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<ClientResults>>,
}

impl Clients {
    /// Connects them; they ask from now on.
    pub fn start(socket: &Path, wanted: ClientLoad) -> Result<Self> {
        let silent = connect(socket)?;
        never_read(&silent)?;
        let asking = (1..wanted.clients).map(|_| Client::connect(socket));
        let asking: Vec<Client> = asking.collect::<Result<_>>()?;
        let end = Arc::new(AtomicBool::new(false));
        let thread = {
            let end = end.clone();
            std::thread::spawn(move || {
                // Its socket stays open as long as theirs.
                let _silent = silent;
                if let Some(cpu) = wanted.cpu {
                    pin(cpu)?;
                }
                be_at_least_as_nice_as(i32::from(wanted.nice))?;
                ask(asking, wanted.rate, &end)
            })
        };
        Ok(Clients { end, thread })
    }

    /// Disconnects them.
    pub fn leave(self) -> Result<ClientResults> {
        self.end.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(heard) => heard,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Sets the calling thread's niceness, unless it is nicer already: an ordinary user may not take that back.
fn be_at_least_as_nice_as(wanted: i32) -> Result<()> {
    let present = getpriority_process(None).map_err(Error::io("ask for a thread's niceness"))?;
    setpriority_process(None, wanted.max(present)).map_err(Error::io("set a thread's niceness"))
}

/// Greets and is greeted. The socket does not block any more.
fn connect(socket: &Path) -> Result<UnixStream> {
    let path = socket.display();
    let doing = || Error::io(format!("talk to the monitor at {path}"));
    let stream = UnixStream::connect(socket).map_err(doing())?;
    stream
        .set_read_timeout(Some(GREETING_LIMIT))
        .map_err(doing())?;
    // Without a question there is nothing behind the line that could be lost in the buffer.
    let mut lines = BufReader::new(&stream);
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).map_err(doing())?;
    (&stream).write_all(NEGOTIATE).map_err(doing())?;
    line.clear();
    lines.read_until(b'\n', &mut line).map_err(doing())?;
    if !line.starts_with(ANSWER) {
        let said = String::from_utf8_lossy(&line).into_owned();
        return Err(Error::Requests(format!(
            "the monitor at {path} said {said:?} to qmp_capabilities"
        )));
    }
    stream.set_nonblocking(true).map_err(doing())?;
    Ok(stream)
}

/// Asks until nothing more of it is taken.
fn never_read(mut stream: &UnixStream) -> Result<()> {
    let questions = LONG_QUESTION.repeat(20);
    loop {
        match stream.write(&questions) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(Error::io("ask a monitor")(error)),
        }
    }
}

/// One that reads its answers.
struct Client {
    stream: UnixStream,
    /// Since when it waits for one.
    asked: Option<Instant>,
    /// The begin of a line.
    read: Vec<u8>,
}

impl Client {
    fn connect(socket: &Path) -> Result<Self> {
        Ok(Client {
            stream: connect(socket)?,
            asked: None,
            read: Vec::new(),
        })
    }

    fn ask(&mut self, now: Instant) -> Result<()> {
        // A question fits: the one before it was taken.
        (&self.stream)
            .write_all(QUESTION)
            .map_err(Error::io("ask a monitor"))?;
        self.asked = Some(now);
        Ok(())
    }

    /// Reads what is there; how long it has waited, if that was the answer.
    fn hear(&mut self) -> Result<Option<Duration>> {
        let mut buffer = [0; 4096];
        match (&self.stream).read(&mut buffer) {
            Ok(0) => return Err(Error::Gone),
            Ok(count) => self.read.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(Error::io("read a monitor's answer")(error)),
        }
        let mut waited = None;
        while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.read.drain(..=end).collect();
            // (Others are events.)
            if line.starts_with(ANSWER) {
                waited = self.asked.take().map(|asked| asked.elapsed());
            } else if line.starts_with(br#"{"error""#) {
                let said = String::from_utf8_lossy(&line).into_owned();
                return Err(Error::Requests(format!(
                    "a monitor does not answer: {said}"
                )));
            }
        }
        Ok(waited)
    }
}

/// Asks in turn, and reads all answers, until `end`.
fn ask(mut clients: Vec<Client>, rate: Rate, end: &AtomicBool) -> Result<ClientResults> {
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("make an epoll"))?;
    for (client, number) in clients.iter().zip(0..) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&watched, &client.stream, data, epoll::EventFlags::IN)
            .map_err(Error::io("watch a monitor's client"))?;
    }
    let mut events: Vec<epoll::Event> = Vec::with_capacity(clients.len());
    let mut heard = ClientResults::default();
    let begun = Instant::now();
    // Questions that were due.
    let mut due = 0u32;
    if rate == Rate::AsAnswered {
        clients
            .iter_mut()
            .try_for_each(|client| client.ask(begun))?;
    }
    while !end.load(Ordering::Relaxed) {
        let mut patience = LOOK_INTERVAL;
        if let Rate::PerSecond(rate) = rate {
            let at = |due: u32| begun + Duration::from_secs(1) * due / rate;
            while at(due) <= Instant::now() {
                // Who still waits for its last answer is passed over.
                let client = due as usize % clients.len().max(1);
                if let Some(client) = clients.get_mut(client)
                    && client.asked.is_none()
                {
                    client.ask(Instant::now())?;
                }
                due += 1;
            }
            patience = patience.min(at(due).saturating_duration_since(Instant::now()));
        }
        let patience = Timespec::try_from(patience).ok();
        events.clear();
        match epoll::wait(&watched, spare_capacity(&mut events), patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("wait for a monitor")(error)),
        }
        for event in &events {
            let Some(client) = usize::try_from(event.data.u64())
                .ok()
                .and_then(|number| clients.get_mut(number))
            else {
                continue;
            };
            if let Some(waited) = client.hear()? {
                heard.answers += 1;
                heard
                    .waits
                    .saturating_record(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
                if rate == Rate::AsAnswered {
                    client.ask(Instant::now())?;
                }
            }
        }
    }
    heard.time = begun.elapsed();
    Ok(heard)
}
