//! The QMP client against fake monitors: messages that it accepts, and errors for sockets that are no monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use blockplane::operator::Error;
use blockplane::operator::client::Client;
use serde_json::{Map, Value, json};

const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
/// Far above what anything here needs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

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

/// Greets and negotiates, then replies to each request with the text from `answer`.
fn monitor(stream: UnixStream, mut answer: impl FnMut(&Value) -> String) {
    let mut requests = BufReader::new(stream.try_clone().unwrap()).lines();
    let say = |text: &str| {
        (&stream)
            .write_all(format!("{text}\r\n").as_bytes())
            .unwrap()
    };
    say(GREETING);
    for request in requests.by_ref() {
        let request: Value = serde_json::from_str(&request.unwrap()).unwrap();
        if request["execute"] == "qmp_capabilities" {
            say(r#"{"return": {}}"#);
        } else {
            say(&answer(&request));
        }
    }
}

fn connect(path: &Path) -> Result<Client, Error> {
    Client::connect(path, Some(STUCK_AFTER))
}

#[test]
fn client_accepts_multiline_replies_and_interleaved_events() {
    let serve = |stream| {
        monitor(stream, |request| {
            let event = r#"{"event": "TICK", "data": {"text": "a\nb"}}"#;
            let answer = json!({"return": request["arguments"], "id": request["id"]});
            format!("{event}\r\n{answer:#}\r\n{event}")
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
fn client_joins_a_reply_that_arrives_in_pieces() {
    let serve = |stream: UnixStream| {
        let whole = json!({"return": "x".repeat(1 << 20)}).to_string();
        monitor(stream, |_| whole.clone());
    };
    with_server(serve, |path| {
        let answer = connect(path).unwrap().execute("long", Map::new()).unwrap();
        assert_eq!(answer.as_str().map(str::len), Some(1 << 20));
    });
}

#[test]
fn error_reply_is_shown_as_class_and_description() {
    let serve = |stream| {
        monitor(stream, |_| {
            json!({"error": {"class": "GenericError", "desc": "no"}}).to_string()
        });
    };
    with_server(serve, |path| {
        let error = connect(path).unwrap().execute("x", Map::new()).unwrap_err();
        assert_eq!(error.to_string(), "GenericError: no");
    });
}

#[test]
fn client_distinguishes_disconnect_from_timeout() {
    let serve = |stream: UnixStream| {
        (&stream)
            .write_all(format!("{GREETING}\n{{\"return\": {{}}}}\n").as_bytes())
            .unwrap();
        let mut requests = BufReader::new(stream).lines();
        for _ in ["qmp_capabilities", "x"] {
            requests.next().unwrap().unwrap();
        }
    };
    let error = with_server(serve, |path| {
        let error = connect(path).unwrap().execute("x", Map::new());
        error.unwrap_err()
    });
    assert!(matches!(error, Error::Disconnected), "{error:?}");

    let serve = |stream: UnixStream| {
        (&stream)
            .write_all(format!("{GREETING}\n{{\"return\": {{}}}}\n").as_bytes())
            .unwrap();
        // Until the client disconnects.
        for request in BufReader::new(stream).lines() {
            drop(request.unwrap());
        }
    };
    let error = with_server(serve, |path| {
        let mut client = Client::connect(path, Some(Duration::from_millis(500))).unwrap();
        client.execute("x", Map::new()).unwrap_err()
    });
    assert!(
        error
            .to_string()
            .starts_with("x was not answered within 500ms"),
        "{error}"
    );
}

#[test]
fn socket_that_is_no_monitor_is_reported_with_the_next_step() {
    let no_monitor =
        |serve: fn(UnixStream)| with_server(serve, |path| connect(path).unwrap_err().to_string());
    // As a vhost-user socket: it waits for what we have to say.
    let listen = |mut stream: UnixStream| drop(std::io::copy(&mut stream, &mut std::io::sink()));
    let silent = no_monitor(listen);
    assert!(silent.contains("vhost-user socket"), "{silent}");
    assert!(silent.contains("(nothing came in 3s)"), "{silent}");
    // A shorter time limit applies to the greeting too.
    let impatient = with_server(listen, |path| {
        let error = Client::connect(path, Some(Duration::from_millis(20)));
        error.unwrap_err().to_string()
    });
    assert!(impatient.contains("(nothing came in 20ms)"), "{impatient}");
    let other = no_monitor(|mut stream| stream.write_all(b"SSH-2.0-x\r\n").unwrap());
    assert!(other.contains("it sent 'SSH-2.0-x'"), "{other}");
    let json = no_monitor(|mut stream| stream.write_all(b"{\"a\": 1}\n").unwrap());
    assert!(json.contains("is not a monitor"), "{json}");
    let unended = no_monitor(|mut stream| stream.write_all(b"NBDMAGIC").unwrap());
    assert!(unended.contains("it sent 'NBDMAGIC'"), "{unended}");
    let closed = no_monitor(drop);
    assert!(closed.contains("closed the connection"), "{closed}");
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
