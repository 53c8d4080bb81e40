//! The QMP client against fake monitors: messages that it accepts, and errors for sockets that are no monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use blockplane::operator::Error;
use blockplane::operator::client::Client;
use serde_json::{Map, Value, json};
use test_support::deadline::STUCK_AFTER;

const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

/// Runs `then` with the path of a socket on which a thread accepts one connection and calls `serve`.
fn with_server<T>(
    serve: impl FnOnce(UnixStream) + Send + 'static,
    then: impl FnOnce(&Path) -> T,
) -> T {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    let outcome = then(&path);
    server.join().unwrap();
    outcome
}

/// Greets and negotiates, then replies to each request with the text from `answer`, and ends where there is none.
fn monitor(mut stream: UnixStream, mut answer: impl FnMut(&Value) -> Option<String>) {
    let requests = BufReader::new(stream.try_clone().unwrap()).lines();
    writeln!(stream, "{GREETING}").unwrap();
    for request in requests {
        let request: Value = serde_json::from_str(&request.unwrap()).unwrap();
        let text = match request["execute"].as_str() {
            Some("qmp_capabilities") => Some(r#"{"return": {}}"#.to_owned()),
            _ => answer(&request),
        };
        let Some(text) = text else { return };
        write!(stream, "{text}\r\n").unwrap();
    }
}

fn connect(path: &Path) -> Result<Client, Error> {
    Client::connect(path, Some(STUCK_AFTER))
}

/// The answer of such a monitor to one command.
fn executed(
    answer: impl FnMut(&Value) -> Option<String> + Send + 'static,
    limit: Duration,
) -> Result<Value, Error> {
    let serve = |stream| monitor(stream, answer);
    with_server(serve, |path| {
        let mut client = Client::connect(path, Some(limit)).unwrap();
        client.execute("x", Map::new())
    })
}

#[test]
fn client_accepts_multiline_replies_and_interleaved_events() {
    let serve = |stream| {
        monitor(stream, |request| {
            let event = r#"{"event": "TICK", "data": {"text": "a\nb"}}"#;
            let answer = json!({"return": request["arguments"], "id": request["id"]});
            Some(format!("{event}\r\n{answer:#}\r\n{event}"))
        });
    };
    with_server(serve, |path| {
        let mut client = connect(path).unwrap();
        let arguments = Map::from_iter([("x".to_owned(), json!([1, 2]))]);
        for _ in 0..2 {
            let answer = client.execute("echo", arguments.clone()).unwrap();
            assert_eq!(answer, json!({"x": [1, 2]}));
        }
        for _ in 0..4 {
            assert_eq!(client.next_event().unwrap()["data"]["text"], "a\nb");
        }
    });
}

#[test]
fn client_joins_a_long_reply_and_tells_an_error_from_an_end_and_from_silence() {
    let long = json!({"return": "x".repeat(1 << 20)}).to_string();
    let answer = executed(move |_| Some(long.clone()), STUCK_AFTER).unwrap();
    assert_eq!(answer.as_str().map(str::len), Some(1 << 20));
    let refusal = json!({"error": {"class": "GenericError", "desc": "no"}}).to_string();
    let error = executed(move |_| Some(refusal.clone()), STUCK_AFTER).unwrap_err();
    assert_eq!(error.to_string(), "GenericError: no");
    let error = executed(|_| None, STUCK_AFTER).unwrap_err();
    assert!(matches!(error, Error::Disconnected), "{error:?}");
    let silent = || Some(String::new());
    let error = executed(move |_| silent(), Duration::from_millis(500)).unwrap_err();
    let expected = "x was not answered within 500ms";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// The error of connecting to a socket that is no monitor.
fn connect_error(limit: Duration, serve: impl FnOnce(UnixStream) + Send + 'static) -> String {
    let connect = |path: &Path| Client::connect(path, Some(limit));
    with_server(serve, |path| connect(path).unwrap_err().to_string())
}

#[test]
fn socket_that_is_no_monitor_is_reported_with_the_next_step() {
    // As a vhost-user socket: it waits for what we have to say.
    let listen = |mut stream: UnixStream| drop(std::io::copy(&mut stream, &mut std::io::sink()));
    let silent = connect_error(STUCK_AFTER, listen);
    assert!(silent.contains("vhost-user socket"), "{silent}");
    assert!(silent.contains("(nothing came in 3s)"), "{silent}");
    // A shorter time limit applies to the greeting too.
    let impatient = connect_error(Duration::from_millis(20), listen);
    assert!(impatient.contains("(nothing came in 20ms)"), "{impatient}");
    for (sent, expected) in [
        ("SSH-2.0-x\r\n", "it sent 'SSH-2.0-x'"),
        ("{\"a\": 1}\n", "is not a monitor"),
        ("NBDMAGIC", "it sent 'NBDMAGIC'"),
        ("", "closed the connection"),
    ] {
        let send = |mut stream: UnixStream| stream.write_all(sent.as_bytes()).unwrap();
        let error = connect_error(STUCK_AFTER, send);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn failed_connection_is_reported_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: PathBuf| connect(&path).unwrap_err();
    let nothing = error(folder.path().join("none"));
    assert!(matches!(nothing, Error::NoSocket(_)), "{nothing:?}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = error(file);
    assert!(matches!(file, Error::NotASocket(_)), "{file:?}");
    let dead = folder.path().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    let dead = error(dead);
    assert!(matches!(dead, Error::NotListening(_)), "{dead:?}");
    let long = error(folder.path().join("x".repeat(200)));
    assert!(matches!(long, Error::PathTooLong(_)), "{long:?}");
}
