//! Order of the responses to one client's pipelined requests (docs/qmp.md): in-band ones in the order of the requests, whether the
//! program or the server's thread runs the command, and out-of-band ones ahead of those that wait.

use super::*;

/// Requests that the server's thread answers, each with an id, and its response without the id.
const ANSWERED_BY_SERVER: [&str; 5] = [
    r#"{"execute": "query-version", "id": 1}"#,
    r#"{"execute": "no-such-command", "id": 2}"#,
    r#"{"execute": "count", "arguments": {"x": 1}, "id": 3}"#,
    r#"{"execute": 5, "id": 4}"#,
    r#"{"execute": "qmp_capabilities", "id": 5}"#,
];

#[test]
fn responses_of_the_server_wait_for_earlier_commands_in_the_program() {
    let mut program = Program::start();
    let mut client = program.client();
    for command in ["count", "wait"] {
        client.send(&json!({"execute": command, "id": 0}));
        for request in ANSWERED_BY_SERVER {
            client.write(request.as_bytes());
        }
        client.write(b"{'execute'}");
        // All of them are read once this is answered, and none is answered before it.
        client.check_is_served();
        program.step();
        let deferred_reply = program.state.replies.pop();
        deferred_reply.into_iter().for_each(|reply| {
            client.check_is_served();
            reply.send(Ok(json!({})));
        });
        for id in 0..=5 {
            assert_eq!(client.recv()["id"], id, "after {command}");
        }
        let error = &client.recv()["error"]["desc"];
        assert!(error.as_str().unwrap().contains("JSON"), "{error}");
    }
}

#[test]
fn a_client_with_as_many_waiting_requests_as_allowed_is_not_read() {
    let mut program = Program::start();
    let mut slow = program.client();
    slow.send(&json!({"execute": "wait"}));
    program.step();
    let request_count = slow.write_until_full(&json!({"execute": "query-version"}));
    program.client().check_is_served();
    let reply = program.state.replies.pop().unwrap();
    reply.send(Ok(json!({})));
    for _ in 0..=request_count {
        assert!(slow.recv()["return"].is_object());
    }
}
