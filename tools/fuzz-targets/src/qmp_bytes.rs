//! Monitors: any bytes of a client, in any pieces.
//!
//! Whatever it has sent, a client that begins anew (byte 0xFF) and asks something sound gets its answer; and all that it
//! gets are JSON documents of the kinds that there are, one in a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use qmp::{
    Command, CommandHandler, Endpoint, Interface, Member, ObjectType, ProgramVersion, Server,
    ServerHandle, Type, TypeDefinition, Variants,
};
use serde_json::{Value, json};

/// Commands of all kinds of arguments, which answer what they were given.
fn interface() -> Interface<()> {
    let object = |members| TypeDefinition::Object(ObjectType::with_members(members));
    let point = object(vec![
        Member::required("x", Type::Int),
        Member::optional("y", Type::Unsigned),
    ]);
    let either = TypeDefinition::Alternate(vec![Type::Str, Type::Named("Point")]);
    let definitions = vec![
        ("Color", TypeDefinition::Enum(vec!["red", "green", "blue"])),
        ("Point", point),
        ("Red", object(vec![Member::required("name", Type::Str)])),
        ("Either", either),
    ];
    let arguments = ObjectType {
        members: vec![
            Member::required("color", Type::Named("Color")),
            Member::optional("points", Type::list_of_named("Point")),
            Member::optional("either", Type::Named("Either")),
            Member::optional("flag", Type::Bool),
            Member::optional("any", Type::Any),
        ],
        variants: Some(Variants {
            tag: "color",
            cases: vec![("red", "Red")],
        }),
    };
    let paint = Command {
        name: "paint",
        arguments,
        returns: Some(Type::Any),
        run: CommandHandler::InBand(|(), arguments| Ok(Value::Object(arguments.clone()))),
    };
    let later = Command {
        name: "later",
        arguments: ObjectType::default(),
        returns: None,
        run: CommandHandler::Deferred(|(), _, reply| reply.send(Ok(json!({})))),
    };
    let product = ProgramVersion {
        package: "fuzz".to_owned(),
        version: [1, 0, 0],
    };
    Interface::new_with_common_commands(product, definitions, vec![paint, later], vec![])
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let handle = ServerHandle::new().expect("a descriptor");
        // The program is at hand.
        let deliver = |call: qmp::CommandCall<()>| call.run(&mut ());
        Server::spawn(handle, Arc::new(interface()), deliver).expect("a thread")
    })
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let pretty = bytes.first().is_some_and(|byte| byte & 1 != 0);
    let _clients = server().open_monitor(Endpoint::Connected(theirs), false);
    let mut answers = BufReader::new(ours.try_clone().expect("a descriptor"));
    let mut client = ours;
    // In two pieces.
    let (one, other) = bytes.split_at(bytes.len() / if pretty { 2 } else { 1 });
    client.write_all(one).expect("it is read");
    client.write_all(other).expect("it is read");
    let end = b"\xff{'execute':'qmp_capabilities'}{'execute':'query-version','id':'the end'}";
    client.write_all(end).expect("it is read");
    let mut line = String::new();
    loop {
        line.clear();
        answers.read_line(&mut line).expect("text");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        let kinds = ["QMP", "return", "error"];
        let kind = kinds.iter().find(|kind| answer.get(**kind).is_some());
        match *kind.expect("an answer of a kind that there is") {
            "error" => {
                let text = answer["error"]["desc"].as_str().expect("a text");
                assert!(!text.is_empty() && answer["error"]["class"].is_string());
            }
            "return" if answer.get("id") == Some(&json!("the end")) => return,
            _ => {}
        }
    }
}
