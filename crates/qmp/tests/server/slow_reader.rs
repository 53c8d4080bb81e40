//! Clients that do not read for a while: which events they get (docs/qmp.md, "What a client can cost").

use std::io::ErrorKind;

use super::*;
use qmp::limits::{FULL_OUTPUT_BYTES, MAX_OUTPUT_BYTES};

/// Bytes of an event, nearly all of them its text.
const EVENT_BYTES: usize = 10_000;
/// More than the sockets between a client and the server hold.
const MAX_SOCKET_BYTES: usize = 1 << 20;
/// Requests that a client sends before it reads.
const REQUESTS: usize = 1000;
const EVENTS: usize = 100;

/// Emits numbered events. When this returns the server has processed all of them, since `witness` has received the last.
fn emit(program: &Program, witness: &mut Client, numbers: std::ops::Range<usize>) {
    let text = "x".repeat(EVENT_BYTES);
    for number in numbers {
        let data = json!({"text": format!("{number} {text}")});
        program.handle.emit("TICK", data);
        assert_eq!(event_number(&witness.recv()), number);
    }
}

#[track_caller]
fn event_number(message: &Value) -> usize {
    assert!(
        message.get("event").is_some(),
        "an event is missing: {message}"
    );
    let text = message["data"]["text"].as_str().unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_client_that_reads_late_gets_every_event_in_order() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    // Above the limit for responses, below the one for events.
    let events = 3 * MAX_OUTPUT_BYTES / 4 / EVENT_BYTES;
    assert!(events * EVENT_BYTES > FULL_OUTPUT_BYTES + MAX_SOCKET_BYTES);
    emit(&program, &mut witness, 0..events);
    // Its response comes after all events, so that a missing event is noticed at once.
    slow.send(&json!({"exec-oob": "query-version", "id": "behind"}));
    for number in 0..events {
        assert_eq!(event_number(&slow.recv()), number, "an event is missing");
    }
    assert_eq!(slow.recv()["id"], "behind");
    // It gets further events.
    emit(&program, &mut witness, events..events + 1);
    assert_eq!(event_number(&slow.recv()), events);
}

#[test]
fn a_client_that_sends_much_and_reads_late_gets_every_response_and_event() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    // The responses exceed the limit: most of the requests are not read yet when the events are sent.
    let request = json!({"exec-oob": "query-qmp-schema"}).to_string();
    slow.write(request.repeat(REQUESTS).as_bytes());
    emit(&program, &mut witness, 0..EVENTS);
    slow.send(&json!({"exec-oob": "query-version", "id": "behind"}));
    let (mut answers, mut events) = (0, 0);
    loop {
        let message = slow.recv();
        if message["id"] == "behind" {
            break;
        } else if message.get("return").is_some() {
            answers += 1;
        } else {
            assert_eq!(event_number(&message), events, "an event is missing");
            events += 1;
        }
    }
    assert_eq!((answers, events), (REQUESTS, EVENTS));
}

#[test]
fn a_client_with_too_much_unread_output_is_disconnected_without_a_gap_in_events() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    let events = (MAX_OUTPUT_BYTES + MAX_SOCKET_BYTES) / EVENT_BYTES;
    emit(&program, &mut witness, 0..events);
    // Only a client that is still connected gets a response.
    let request = json!({"exec-oob": "query-version", "id": "behind"});
    let _ = slow.0.get_mut().write_all(request.to_string().as_bytes());
    let mut received = 0;
    loop {
        let mut line = String::new();
        match slow.0.read_line(&mut line) {
            Ok(_) if line.ends_with("\r\n") => {
                let message: Value = serde_json::from_str(&line).unwrap();
                assert_ne!(message["id"], "behind", "it was not disconnected");
                assert_eq!(event_number(&message), received, "an event is missing");
                received += 1;
            }
            // The end of the stream, possibly within an event.
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("after {received} events neither one more nor the end: {error}"),
        }
    }
    assert!(
        received < events,
        "it was disconnected after the last event only"
    );
    // Other clients still get events.
    emit(&program, &mut witness, events..events + 1);
}
