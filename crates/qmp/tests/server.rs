//! A server and its clients over real sockets: who waits for whom, and what a bad client can do.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

#[path = "server/slow_reader.rs"]
mod slow_reader;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use qmp::limits::{MAX_CLIENTS, MAX_MESSAGE_BYTES, MAX_PENDING};
use qmp::{Call, Command, Endpoint, Event, Handle, Interface, Object, Product, Reply, Run, Server};
use serde_json::{Value, json};
use unix_socket::listener::Listener;

/// Far above what anything here needs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// What commands work on.
#[derive(Default)]
struct State {
    counter: u64,
    /// Of those that are not done.
    replies: Vec<Reply>,
}

/// A program that counts, when the test lets it.
struct Program {
    server: Option<Server>,
    handle: Handle,
    calls: Receiver<Call<State>>,
    state: State,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

fn interface() -> Interface<State> {
    let count = Command {
        name: "count",
        arguments: Object::default(),
        returns: Some(qmp::Type::Int),
        run: Run::InBand(|state: &mut State, _| {
            state.counter += 1;
            Ok(json!(state.counter))
        }),
    };
    let wait = Command {
        name: "wait",
        arguments: Object::default(),
        returns: None,
        run: Run::Deferred(|state: &mut State, _, reply| state.replies.push(reply)),
    };
    let event = Event {
        name: "TICK",
        data: Object::of(vec![qmp::Member::required("text", qmp::Type::Str)]),
    };
    let product = Product {
        package: "test".to_owned(),
        version: [1, 0, 0],
    };
    Interface::new(product, vec![], vec![count, wait], vec![event])
}

impl Program {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let handle = Handle::new().unwrap();
        let (sender, calls) = channel();
        let deliver = move |call| drop(sender.send(call));
        let server = Server::spawn(handle.clone(), Arc::new(interface()), deliver).unwrap();
        server.open(
            Endpoint::Listening(Listener::bind(&socket).unwrap(), None),
            false,
        );
        Program {
            server: Some(server),
            handle,
            calls,
            state: State::default(),
            socket,
            _folder: folder,
        }
    }

    /// Carries out one command.
    fn step(&mut self) {
        let call = self.calls.recv_timeout(STUCK_AFTER).unwrap();
        call.run(&mut self.state);
    }

    fn client(&self) -> Client {
        let mut client = Client::greeted(&self.socket);
        let enable = json!({"enable": ["oob"]});
        client.send(&json!({"execute": "qmp_capabilities", "arguments": enable}));
        assert_eq!(client.hear(), json!({"return": {}}));
        client
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn greeted(socket: &PathBuf) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        let mut client = Client(BufReader::new(stream));
        assert_eq!(client.hear()["QMP"]["capabilities"], json!(["oob"]));
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.write(message.to_string().as_bytes());
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        read.unwrap_or_else(|error| panic!("no message within {STUCK_AFTER:?}: {error}"));
        assert!(line.ends_with("\r\n"), "{line:?}");
        serde_json::from_str(&line).unwrap()
    }

    fn at_end(&mut self) -> bool {
        let mut rest = Vec::new();
        // Whatever was still to be read, then the end; a reset is one, too.
        self.0.read_to_end(&mut rest).is_ok() || rest.is_empty()
    }

    fn asks_version(&mut self) {
        self.send(&json!({"exec-oob": "query-version", "id": "v"}));
        assert_eq!(self.hear()["id"], "v");
    }
}

#[test]
fn answers_go_to_who_asked_in_the_order_of_the_requests() {
    let mut program = Program::start();
    let mut clients = [program.client(), program.client()];
    for id in 0..3 {
        for client in &mut clients {
            client.send(&json!({"execute": "count", "id": id}));
        }
    }
    (0..6).for_each(|_| program.step());
    for client in &mut clients {
        let mut before = 0;
        for id in 0..3 {
            let answer = client.hear();
            assert_eq!(answer["id"], id);
            assert!(answer["return"].as_u64().unwrap() > before);
            before = answer["return"].as_u64().unwrap();
        }
    }
}

#[test]
fn out_of_band_passes_what_waits() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count", "id": "waits"}));
    client.asks_version();
    program.step();
    assert_eq!(client.hear(), json!({"return": 1, "id": "waits"}));
}

#[test]
fn a_client_has_one_request_in_the_program() {
    let mut program = Program::start();
    let mut client = program.client();
    let requests = MAX_PENDING * 5;
    for _ in 0..requests {
        client.send(&json!({"execute": "count"}));
    }
    // Another one's come through all the same.
    let mut other = program.client();
    other.send(&json!({"execute": "count"}));
    let first = [(), ()].map(|()| program.calls.recv_timeout(STUCK_AFTER).unwrap());
    assert!(program.calls.try_recv().is_err(), "the rest waits");
    for call in first {
        call.run(&mut program.state);
    }
    other.hear();
    (1..requests).for_each(|_| program.step());
    for _ in 0..requests {
        assert!(client.hear()["return"].is_u64());
    }
}

#[test]
fn what_is_answered_later_holds_up_its_own_client_only() {
    let mut program = Program::start();
    let (mut client, mut other) = (program.client(), program.client());
    client.send(&json!({"execute": "wait", "id": "long"}));
    client.send(&json!({"execute": "count", "id": "behind"}));
    program.step();
    client.asks_version();
    other.send(&json!({"execute": "count"}));
    program.step();
    assert_eq!(other.hear(), json!({"return": 1}));
    assert!(program.calls.try_recv().is_err(), "it waits");
    let reply = program.state.replies.pop().unwrap();
    std::thread::spawn(|| reply.send(Ok(json!({}))));
    assert_eq!(client.hear(), json!({"return": {}, "id": "long"}));
    program.step();
    assert_eq!(client.hear(), json!({"return": 2, "id": "behind"}));
}

#[test]
fn no_request_is_left_behind() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "wait", "id": 1}));
    client.send(&json!({"execute": "count", "id": 2}));
    program.step();
    program.state.replies.clear();
    let refused = |id: u32| {
        let error = json!({"class": "GenericError", "desc": "the daemon is about to end"});
        json!({"error": error, "id": id})
    };
    assert_eq!(client.hear(), refused(1));
    drop(program.calls.recv_timeout(STUCK_AFTER).unwrap());
    assert_eq!(client.hear(), refused(2));
}

#[test]
fn events_go_to_those_who_are_through_the_negotiation() {
    let program = Program::start();
    let mut client = program.client();
    let mut fresh = Client::greeted(&program.socket);
    program.handle.emit("TICK", json!({"text": "a"}));
    let event = client.hear();
    assert_eq!(event["event"], "TICK");
    assert_eq!(event["data"], json!({"text": "a"}));
    assert!(event["timestamp"]["seconds"].as_u64().unwrap() > 1_700_000_000);
    assert!(event["timestamp"]["microseconds"].as_u64().unwrap() < 1_000_000);
    fresh.send(&json!({"execute": "qmp_capabilities"}));
    assert_eq!(fresh.hear(), json!({"return": {}}), "and no event before");
}

#[test]
fn a_client_that_never_reads_is_dropped_and_holds_nobody_up() {
    let program = Program::start();
    let mut deaf = program.client();
    let mut client = program.client();
    let text = "x".repeat(100_000);
    for _ in 0..100 {
        program.handle.emit("TICK", json!({"text": text}));
        assert_eq!(client.hear()["event"], "TICK");
    }
    assert!(deaf.at_end());
    client.asks_version();
}

#[test]
fn one_that_asks_and_never_reads_is_not_read_either() {
    let program = Program::start();
    let mut deaf = program.client();
    deaf.0.get_mut().set_nonblocking(true).unwrap();
    let request = json!({"execute": "query-qmp-schema"}).to_string();
    let start = Instant::now();
    // Ends when both sockets are full: else the server would collect answers for ever.
    while deaf.0.get_mut().write(request.as_bytes()).is_ok() {
        assert!(start.elapsed() < STUCK_AFTER, "requests are read for ever");
    }
    program.client().asks_version();
    // And when it reads after all, it gets its answers.
    deaf.0.get_mut().set_nonblocking(false).unwrap();
    for _ in 0..100 {
        assert!(deaf.hear()["return"].is_array());
    }
}

#[test]
fn garbage_costs_an_error_and_no_session() {
    let program = Program::start();
    let mut client = program.client();
    client.write(b"\x00\x01 hello {] \"\xff");
    client.write(&b"[".repeat(100_000));
    client.write(b"\n{\"a\":\"");
    client.write(&b"x".repeat(MAX_MESSAGE_BYTES + 1));
    client.write(b"\n{'exec-oob':'query-version','id':'v'}");
    loop {
        let answer = client.hear();
        if answer["id"] == "v" {
            break;
        }
        assert_eq!(answer["error"]["class"], "GenericError", "{answer}");
    }
    let mut half = program.client();
    half.write(b"{\"execute\": \"cou");
    drop(half);
    program.client().asks_version();
}

#[test]
fn who_stops_sending_still_gets_all_answers() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count"}));
    client.send(&json!({"execute": "count"}));
    let half_closed = client.0.get_ref().shutdown(std::net::Shutdown::Write);
    half_closed.unwrap();
    program.step();
    program.step();
    assert_eq!(client.hear(), json!({"return": 1}));
    assert_eq!(client.hear(), json!({"return": 2}));
    assert!(client.at_end());
}

#[test]
fn a_hundred_come_and_go() {
    let mut program = Program::start();
    for _ in 0..3 {
        let mut clients: Vec<Client> = (0..100).map(|_| program.client()).collect();
        for client in &mut clients {
            client.send(&json!({"execute": "count"}));
        }
        (0..100).for_each(|_| program.step());
        for client in &mut clients {
            assert!(client.hear()["return"].is_u64());
        }
    }
}

#[test]
fn more_than_there_may_be_wait_until_somebody_goes() {
    let program = Program::start();
    let mut clients: Vec<Client> = (0..MAX_CLIENTS).map(|_| program.client()).collect();
    let late = UnixStream::connect(&program.socket).unwrap();
    late.set_nonblocking(true).unwrap();
    clients[0].asks_version();
    assert!((&late).read(&mut [0]).is_err(), "not greeted yet");
    clients.pop();
    late.set_nonblocking(false).unwrap();
    late.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    assert_eq!((&late).read(&mut [0]).unwrap(), 1);
}

#[test]
fn who_connects_while_they_are_held_waits_and_who_is_there_is_answered() {
    let program = Program::start();
    let mut client = program.client();
    let server = program.server.as_ref().unwrap();
    server.hold(true);
    let late = UnixStream::connect(&program.socket).unwrap();
    late.set_nonblocking(true).unwrap();
    for _ in 0..100 {
        client.asks_version();
    }
    assert!((&late).read(&mut [0]).is_err(), "not greeted yet");
    server.hold(false);
    late.set_nonblocking(false).unwrap();
    late.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    assert_eq!((&late).read(&mut [0]).unwrap(), 1);
}

#[test]
fn at_the_end_the_last_answer_arrives_and_the_socket_goes() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count"}));
    program.step();
    drop(program.server.take());
    assert_eq!(client.hear(), json!({"return": 1}));
    assert!(client.at_end());
    assert!(!program.socket.exists());
}
