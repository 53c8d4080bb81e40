//! Clients that do not read for a while: what is promised of events (docs/qmp.md, "What a client can cost").

use std::io::ErrorKind;

use super::*;
use qmp::limits::{FULL_OUTPUT_BYTES, MAX_OUTPUT_BYTES};

/// Bytes of an event, nearly all of them its text.
const EVENT_BYTES: usize = 10_000;
/// More than the sockets between a client and the server hold.
const MAX_SOCKET_BYTES: usize = 1 << 20;
/// Of a client that asks before it reads.
const REQUESTS: usize = 1000;
const EVENTS: usize = 100;

/// Emits numbered events. When this returns the server has dealt with all of them, since `witness` has heard the last.
fn emit(program: &Program, witness: &mut Client, numbers: std::ops::Range<usize>) {
    let text = "x".repeat(EVENT_BYTES);
    for number in numbers {
        let data = json!({"text": format!("{number} {text}")});
        program.handle.emit("TICK", data);
        assert_eq!(event_number(&witness.hear()), number);
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
fn a_client_that_reads_late_hears_every_event_in_order() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    // Beyond the bound for answers, below the one for events.
    let events = 3 * MAX_OUTPUT_BYTES / 4 / EVENT_BYTES;
    assert!(events * EVENT_BYTES > FULL_OUTPUT_BYTES + MAX_SOCKET_BYTES);
    emit(&program, &mut witness, 0..events);
    // Its answer comes behind all of them: an event that is missing is found at once.
    slow.send(&json!({"exec-oob": "query-version", "id": "behind"}));
    for number in 0..events {
        assert_eq!(event_number(&slow.hear()), number, "an event is missing");
    }
    assert_eq!(slow.hear()["id"], "behind");
    // It is as good as any other client again.
    emit(&program, &mut witness, events..events + 1);
    assert_eq!(event_number(&slow.hear()), events);
}

#[test]
fn a_client_that_asks_and_reads_late_hears_every_answer_and_event() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    // Their answers are more than what is kept for it: most of them are not read yet when events come on top.
    let request = json!({"exec-oob": "query-qmp-schema"}).to_string();
    slow.write(request.repeat(REQUESTS).as_bytes());
    emit(&program, &mut witness, 0..EVENTS);
    slow.send(&json!({"exec-oob": "query-version", "id": "behind"}));
    let (mut answers, mut events) = (0, 0);
    loop {
        let message = slow.hear();
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
fn a_client_with_too_much_unread_is_disconnected_and_hears_no_event_behind_a_gap() {
    let program = Program::start();
    let mut slow = program.client();
    let mut witness = program.client();
    let events = (MAX_OUTPUT_BYTES + MAX_SOCKET_BYTES) / EVENT_BYTES;
    emit(&program, &mut witness, 0..events);
    // Only a client that is still connected is answered.
    let request = json!({"exec-oob": "query-version", "id": "behind"});
    let _ = slow.0.get_mut().write_all(request.to_string().as_bytes());
    let mut heard = 0;
    loop {
        let mut line = String::new();
        match slow.0.read_line(&mut line) {
            Ok(_) if line.ends_with("\r\n") => {
                let message: Value = serde_json::from_str(&line).unwrap();
                assert_ne!(message["id"], "behind", "it was not disconnected");
                assert_eq!(event_number(&message), heard, "an event is missing");
                heard += 1;
            }
            // The end, possibly within an event.
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("after {heard} events neither one more nor the end: {error}"),
        }
    }
    assert!(
        heard < events,
        "it was disconnected behind the last event only"
    );
    // Who reads notices nothing.
    emit(&program, &mut witness, events..events + 1);
}
