//! Messages of a session, one by one.

use super::*;
use crate::{Command, Event, Member, ObjectType, ProgramVersion, Type, TypeDefinition, Variants};

fn interface() -> Interface<()> {
    let shape = ObjectType {
        members: vec![
            Member::required("kind", Type::Named("Kind")),
            Member::optional("sizes", Type::List(Box::new(Type::Int))),
            Member::optional("limits", Type::List(Box::new(Type::Unsigned))),
            Member::optional("below", Type::Named("Below")),
        ],
        variants: Some(Variants {
            tag: "kind",
            cases: vec![("round", "Round")],
        }),
    };
    Interface::new_with_common_commands(
        ProgramVersion {
            package: "test 1".to_owned(),
            version: [1, 2, 3],
        },
        vec![
            ("Kind", TypeDefinition::Enum(vec!["round", "flat"])),
            ("Shape", TypeDefinition::Object(shape.clone())),
            (
                "Round",
                TypeDefinition::Object(ObjectType::with_members(vec![Member::required(
                    "radius",
                    Type::Int,
                )])),
            ),
            (
                "Below",
                TypeDefinition::Alternate(vec![Type::Str, Type::Named("Shape")]),
            ),
        ],
        vec![Command {
            name: "draw",
            arguments: shape,
            returns: None,
            run: CommandHandler::InBand(|(), _| Ok(json!({}))),
        }],
        vec![Event {
            name: "DRAWN",
            data: ObjectType::with_members(vec![Member::required("kind", Type::Named("Kind"))]),
        }],
    )
}

/// The effect of a line: the response as text, or the name of the command that is forwarded.
fn feed(session: &mut Session, interface: &Interface<()>, line: &str) -> String {
    let line = format!("{line}\n");
    let mut bytes = line.as_bytes();
    let request = session.next_request(&mut bytes).unwrap();
    assert!(session.next_request(&mut bytes).is_none(), "{line}");
    match session.run(interface, request) {
        SessionAction::Respond(value) => match value["error"]["desc"].as_str() {
            Some(text) => format!("{}: {text}", value["error"]["class"].as_str().unwrap()),
            None => value.to_string(),
        },
        SessionAction::Forward(request) => format!("forward {}", request.command),
    }
}

#[track_caller]
fn check(session: &mut Session, lines: &[(&str, &str)]) {
    let interface = interface();
    for (line, expected) in lines {
        assert_eq!(feed(session, &interface, line), *expected, "{line}");
    }
}

fn negotiated(capabilities: &str) -> Session {
    let mut session = Session::default();
    let line =
        format!(r#"{{"execute":"qmp_capabilities","arguments":{{"enable":[{capabilities}]}}}}"#);
    check(&mut session, &[(&line, r#"{"return":{}}"#)]);
    session
}

#[test]
fn commands_are_refused_before_the_negotiation() {
    let mut session = Session::default();
    check(
        &mut session,
        &[
            (
                r#"{"execute":"draw"}"#,
                "CommandNotFound: Expecting capabilities negotiation with 'qmp_capabilities'",
            ),
            (
                r#"{"execute":"qmp_capabilities","arguments":{"enable":["x"]}}"#,
                "GenericError: Parameter 'enable[0]' does not accept value 'x'",
            ),
        ],
    );
    assert!(!session.wants_qmp_events());
    check(
        &mut session,
        &[
            (
                r#"{"execute":"qmp_capabilities","id":{"a":1}}"#,
                r#"{"return":{},"id":{"a":1}}"#,
            ),
            (
                r#"{"execute":"qmp_capabilities"}"#,
                "CommandNotFound: Capabilities negotiation is already complete, command ignored",
            ),
            (
                r#"{"execute":"nope"}"#,
                "CommandNotFound: The command nope has not been found",
            ),
            (
                r#"{"execute":"draw","arguments":{"kind":"flat"}}"#,
                "forward draw",
            ),
        ],
    );
    assert!(session.wants_qmp_events());
}

#[test]
fn only_immediate_commands_run_out_of_band_and_only_if_it_was_negotiated() {
    let line = r#"{"exec-oob":"query-version","id":1}"#;
    let version =
        r#"{"return":{"qemu":{"micro":3,"minor":2,"major":1},"package":"test 1"},"id":1}"#;
    check(
        &mut negotiated(""),
        &[(
            line,
            "GenericError: QMP input member 'exec-oob' is unexpected",
        )],
    );
    check(
        &mut negotiated(r#""oob""#),
        &[
            (line, version),
            (
                r#"{"exec-oob":"draw","arguments":{"kind":"flat"}}"#,
                "GenericError: The command draw does not support OOB",
            ),
        ],
    );
}

#[test]
fn arguments_of_other_types_are_refused() {
    let mut session = negotiated("");
    for (arguments, expected) in [
        ("{}", "Parameter 'kind' is missing"),
        (
            r#"{"kind":"x"}"#,
            "Parameter 'kind' does not accept value 'x'",
        ),
        (
            r#"{"kind":1}"#,
            "Invalid parameter type for 'kind', expected: string",
        ),
        (r#"{"kind":"flat","x":1}"#, "Parameter 'x' is unexpected"),
        (r#"{"kind":"round"}"#, "Parameter 'radius' is missing"),
        (
            r#"{"kind":"flat","radius":1}"#,
            "Parameter 'radius' is unexpected",
        ),
        (
            r#"{"kind":"round","radius":1.5}"#,
            "Invalid parameter type for 'radius', expected: integer",
        ),
        (
            r#"{"kind":"flat","sizes":1}"#,
            "Invalid parameter type for 'sizes', expected: array",
        ),
        (
            r#"{"kind":"flat","sizes":[1,"a"]}"#,
            "Invalid parameter type for 'sizes[1]', expected: integer",
        ),
        (
            r#"{"kind":"flat","limits":[-1,18446744073709551615,"a"]}"#,
            "Parameter 'limits[2]' expects uint64",
        ),
        (
            r#"{"kind":"flat","limits":[18446744073709551616]}"#,
            "Parameter 'limits[0]' expects uint64",
        ),
        (
            r#"{"kind":"flat","below":{"kind":"flat","below":{"kind":"y"}}}"#,
            "Parameter 'below.below.kind' does not accept value 'y'",
        ),
        (
            r#"{"kind":"flat","below":7}"#,
            "Invalid parameter type for 'below', expected: Below",
        ),
    ] {
        let line = format!(r#"{{"execute":"draw","arguments":{arguments}}}"#);
        check(
            &mut session,
            &[(&line, &format!("GenericError: {expected}"))],
        );
    }
    for arguments in [
        r#"{"kind":"round","radius":18446744073709551615,"sizes":[-1]}"#,
        r#"{"kind":"flat","below":"name"}"#,
        r#"{"kind":"flat","below":{"kind":"round","radius":1}}"#,
    ] {
        let line = format!(r#"{{"execute":"draw","arguments":{arguments}}}"#);
        check(&mut session, &[(&line, "forward draw")]);
    }
}

#[test]
fn a_session_goes_on_after_malformed_input() {
    check(
        &mut negotiated(""),
        &[
            (
                "{\"a\":1,\"a\":2}",
                "GenericError: JSON parse error, duplicate key at line 1 column 13",
            ),
            ("%&$", "GenericError: JSON parse error, stray '%'"),
            ("[]", "GenericError: QMP input must be a JSON object"),
            (
                r#"{'execute':'draw','arguments':{'kind':'flat'}}"#,
                "forward draw",
            ),
        ],
    );
}

#[test]
fn the_schema_describes_the_types_that_are_checked() {
    let interface = interface();
    let schema = interface.schema();
    let entries = schema.as_array().unwrap();
    let find = |name: &str| {
        let mut found = entries.iter().filter(|entry| entry["name"] == name);
        let entry = found.next().unwrap_or_else(|| panic!("no {name}"));
        assert!(found.next().is_none(), "{name} twice");
        entry
    };
    let draw = find("draw");
    assert_eq!(draw["meta-type"], "command");
    assert_eq!(draw.get("allow-oob"), None);
    assert_eq!(find("query-version")["allow-oob"], true);
    assert_eq!(
        find(draw["ret-type"].as_str().unwrap())["members"],
        json!([])
    );
    let arguments = find(draw["arg-type"].as_str().unwrap());
    assert_eq!(
        *arguments,
        json!({
            "name": "draw-arg",
            "meta-type": "object",
            "members": [
                {"name": "kind", "type": "Kind"},
                {"name": "sizes", "type": "[int]", "default": null},
                {"name": "limits", "type": "[int]", "default": null},
                {"name": "below", "type": "Below", "default": null},
            ],
            "tag": "kind",
            "variants": [{"case": "round", "type": "Round"}],
        })
    );
    assert_eq!(find("Kind")["values"], json!(["round", "flat"]));
    assert_eq!(find("[int]")["element-type"], "int");
    assert_eq!(find("DRAWN")["meta-type"], "event");
    // Every type that is referred to is described.
    for entry in entries {
        for key in ["arg-type", "ret-type", "element-type"] {
            if let Some(name) = entry.get(key) {
                find(name.as_str().unwrap());
            }
        }
        for key in ["members", "variants"] {
            for part in entry
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                if let Some(name) = part.get("type") {
                    find(name.as_str().unwrap());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "Nowhere is not defined")]
fn an_undefined_type_panics() {
    let command = Command {
        name: "x",
        arguments: ObjectType::with_members(vec![Member::required(
            "a",
            Type::list_of_named("Nowhere"),
        )]),
        returns: None,
        run: CommandHandler::InBand(|(), _| Ok(json!({}))),
    };
    let product = ProgramVersion {
        package: String::new(),
        version: [0; 3],
    };
    let _ = Interface::new_with_common_commands(product, vec![], vec![command], vec![]);
}
