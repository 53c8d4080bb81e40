//! A server and its clients over real sockets: order of responses, and the cost of misbehaving clients.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod response_order;
mod slow_reader;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use qmp::limits::{MAX_CLIENTS, MAX_MESSAGE_BYTES, MAX_PENDING};
use qmp::{
    Command, CommandCall, CommandHandler, Endpoint, Event, Interface, ObjectType, ProgramVersion,
    ReplySender, Server, ServerHandle,
};
use serde_json::{Value, json};
use unix_socket::listener::Listener;

/// A test that takes longer hangs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// State that commands work on.
#[derive(Default)]
struct State {
    counter: u64,
    /// Replies of commands that are not done.
    replies: Vec<ReplySender>,
}

/// A program whose commands run when the test says so.
struct Program {
    server: Option<Server>,
    handle: ServerHandle,
    calls: Receiver<CommandCall<State>>,
    state: State,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

fn interface() -> Interface<State> {
    let count = Command {
        name: "count",
        arguments: ObjectType::default(),
        returns: Some(qmp::Type::Int),
        run: CommandHandler::InBand(|state: &mut State, _| {
            state.counter += 1;
            Ok(json!(state.counter))
        }),
    };
    let wait = Command {
        name: "wait",
        arguments: ObjectType::default(),
        returns: None,
        run: CommandHandler::Deferred(|state: &mut State, _, reply| state.replies.push(reply)),
    };
    let event = Event {
        name: "TICK",
        data: ObjectType::with_members(vec![qmp::Member::required("text", qmp::Type::Str)]),
    };
    let product = ProgramVersion {
        package: "test".to_owned(),
        version: [1, 0, 0],
    };
    Interface::new_with_common_commands(product, vec![], vec![count, wait], vec![event])
}

impl Program {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let handle = ServerHandle::new().unwrap();
        let (sender, calls) = channel();
        let deliver = move |call| drop(sender.send(call));
        let server = Server::spawn(handle.clone(), Arc::new(interface()), deliver).unwrap();
        server.open_monitor(
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

    /// Runs one command.
    fn step(&mut self) {
        let call = self.calls.recv_timeout(STUCK_AFTER).unwrap();
        call.run(&mut self.state);
    }

    fn client(&self) -> Client {
        let mut client = Client::greeted(&self.socket);
        let enable = json!({"enable": ["oob"]});
        client.send(&json!({"execute": "qmp_capabilities", "arguments": enable}));
        assert_eq!(client.recv(), json!({"return": {}}));
        client
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn greeted(socket: &PathBuf) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        let mut client = Client(BufReader::new(stream));
        assert_eq!(client.recv()["QMP"]["capabilities"], json!(["oob"]));
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.write(message.to_string().as_bytes());
    }

    fn recv(&mut self) -> Value {
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        read.unwrap_or_else(|error| panic!("no message within {STUCK_AFTER:?}: {error}"));
        assert!(line.ends_with("\r\n"), "{line:?}");
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a request again and again until both sockets are full: else the server would collect requests, or responses, for ever.
    /// How many were sent in full.
    fn write_until_full(&mut self, request: &Value) -> usize {
        let stream = self.0.get_mut();
        let (request, start, mut count) = (request.to_string(), Instant::now(), 0);
        stream.set_nonblocking(true).unwrap();
        while stream
            .write(request.as_bytes())
            .is_ok_and(|bytes| bytes == request.len())
        {
            count += 1;
            assert!(start.elapsed() < STUCK_AFTER, "requests are read for ever");
        }
        stream.set_nonblocking(false).unwrap();
        count
    }

    fn at_end(&mut self) -> bool {
        let mut rest = Vec::new();
        // Unread data, then the end of the stream or a reset.
        self.0.read_to_end(&mut rest).is_ok() || rest.is_empty()
    }

    fn check_is_served(&mut self) {
        self.send(&json!({"exec-oob": "query-version", "id": "v"}));
        assert_eq!(self.recv()["id"], "v");
    }
}

/// A connection of a client that is to be accepted later.
struct Waiting(UnixStream);

impl Waiting {
    fn connect(program: &Program) -> Self {
        let stream = UnixStream::connect(&program.socket).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        Waiting(stream)
    }

    fn assert_not_greeted(&self) {
        self.0.set_nonblocking(true).unwrap();
        assert!((&self.0).read(&mut [0]).is_err(), "not greeted yet");
        self.0.set_nonblocking(false).unwrap();
    }

    fn assert_greeted(&self) {
        assert_eq!((&self.0).read(&mut [0]).unwrap(), 1);
    }
}

#[test]
fn each_client_gets_its_responses_in_the_order_of_its_requests() {
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
            let answer = client.recv();
            assert_eq!(answer["id"], id);
            assert!(answer["return"].as_u64().unwrap() > before);
            before = answer["return"].as_u64().unwrap();
        }
    }
}

#[test]
fn out_of_band_commands_pass_commands_that_wait() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count", "id": "waits"}));
    client.check_is_served();
    program.step();
    assert_eq!(client.recv(), json!({"return": 1, "id": "waits"}));
}

#[test]
fn a_client_has_one_request_in_the_program() {
    let mut program = Program::start();
    let mut client = program.client();
    let requests = MAX_PENDING * 5;
    for _ in 0..requests {
        client.send(&json!({"execute": "count"}));
    }
    // The other client's request is not held up.
    let mut other = program.client();
    other.send(&json!({"execute": "count"}));
    let first = [(), ()].map(|()| program.calls.recv_timeout(STUCK_AFTER).unwrap());
    assert!(program.calls.try_recv().is_err(), "the rest waits");
    for call in first {
        call.run(&mut program.state);
    }
    other.recv();
    (1..requests).for_each(|_| program.step());
    for _ in 0..requests {
        assert!(client.recv()["return"].is_u64());
    }
}

#[test]
fn a_deferred_command_holds_up_its_own_client_only() {
    let mut program = Program::start();
    let (mut client, mut other) = (program.client(), program.client());
    client.send(&json!({"execute": "wait", "id": "long"}));
    client.send(&json!({"execute": "count", "id": "behind"}));
    program.step();
    client.check_is_served();
    other.send(&json!({"execute": "count"}));
    program.step();
    assert_eq!(other.recv(), json!({"return": 1}));
    assert!(program.calls.try_recv().is_err(), "it waits");
    let reply = program.state.replies.pop().unwrap();
    std::thread::spawn(|| reply.send(Ok(json!({}))));
    assert_eq!(client.recv(), json!({"return": {}, "id": "long"}));
    program.step();
    assert_eq!(client.recv(), json!({"return": 2, "id": "behind"}));
}

#[test]
fn every_dropped_request_gets_an_error() {
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
    assert_eq!(client.recv(), refused(1));
    drop(program.calls.recv_timeout(STUCK_AFTER).unwrap());
    assert_eq!(client.recv(), refused(2));
}

#[test]
fn events_go_to_negotiated_sessions_only() {
    let program = Program::start();
    let mut client = program.client();
    let mut fresh = Client::greeted(&program.socket);
    program.handle.emit("TICK", json!({"text": "a"}));
    let event = client.recv();
    assert_eq!(event["event"], "TICK");
    assert_eq!(event["data"], json!({"text": "a"}));
    assert!(event["timestamp"]["seconds"].as_u64().unwrap() > 1_700_000_000);
    assert!(event["timestamp"]["microseconds"].as_u64().unwrap() < 1_000_000);
    fresh.send(&json!({"execute": "qmp_capabilities"}));
    assert_eq!(fresh.recv(), json!({"return": {}}), "and no event before");
}

#[test]
fn requests_of_a_client_that_reads_no_responses_are_not_read() {
    let program = Program::start();
    let mut slow = program.client();
    slow.write_until_full(&json!({"execute": "query-qmp-schema"}));
    program.client().check_is_served();
    // When it reads at last, it gets its responses.
    for _ in 0..100 {
        assert!(slow.recv()["return"].is_array());
    }
}

#[test]
fn a_session_survives_malformed_input() {
    let program = Program::start();
    let mut client = program.client();
    client.write(b"\x00\x01 hello {] \"\xff");
    client.write(&b"[".repeat(100_000));
    client.write(b"\n{\"a\":\"");
    client.write(&b"x".repeat(MAX_MESSAGE_BYTES + 1));
    client.write(b"\n{'exec-oob':'query-version','id':'v'}");
    loop {
        let answer = client.recv();
        if answer["id"] == "v" {
            break;
        }
        assert_eq!(answer["error"]["class"], "GenericError", "{answer}");
    }
    let mut half = program.client();
    half.write(b"{\"execute\": \"cou");
    drop(half);
    program.client().check_is_served();
}

#[test]
fn a_client_that_closes_its_sending_side_still_gets_all_responses() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count"}));
    client.send(&json!({"execute": "count"}));
    let half_closed = client.0.get_ref().shutdown(std::net::Shutdown::Write);
    half_closed.unwrap();
    program.step();
    program.step();
    assert_eq!(client.recv(), json!({"return": 1}));
    assert_eq!(client.recv(), json!({"return": 2}));
    assert!(client.at_end());
}

#[test]
fn a_client_beyond_the_limit_waits_until_another_disconnects() {
    let mut program = Program::start();
    let mut clients: Vec<Client> = (0..MAX_CLIENTS).map(|_| program.client()).collect();
    for client in &mut clients {
        client.send(&json!({"execute": "count"}));
    }
    (0..MAX_CLIENTS).for_each(|_| program.step());
    for client in &mut clients {
        assert!(client.recv()["return"].is_u64());
    }
    let late = Waiting::connect(&program);
    clients[0].check_is_served();
    late.assert_not_greeted();
    clients.pop();
    late.assert_greeted();
}

#[test]
fn new_clients_wait_while_accepting_is_paused_and_others_are_served() {
    let program = Program::start();
    let mut client = program.client();
    let server = program.server.as_ref().unwrap();
    server.set_accepting_paused(true);
    let late = Waiting::connect(&program);
    for _ in 0..100 {
        client.check_is_served();
    }
    late.assert_not_greeted();
    server.set_accepting_paused(false);
    late.assert_greeted();
}

#[test]
fn stopping_delivers_the_last_response_and_removes_the_socket() {
    let mut program = Program::start();
    let mut client = program.client();
    client.send(&json!({"execute": "count"}));
    program.step();
    drop(program.server.take());
    assert_eq!(client.recv(), json!({"return": 1}));
    assert!(client.at_end());
    assert!(!program.socket.exists());
}
