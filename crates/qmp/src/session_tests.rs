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
    let round = ObjectType::with_members(vec![Member::required("radius", Type::Int)]);
    let below = vec![Type::Str, Type::Named("Shape")];
    let drawn = ObjectType::with_members(vec![Member::required("kind", Type::Named("Kind"))]);
    Interface::new_with_common_commands(
        ProgramVersion {
            package: "test 1".to_owned(),
            version: [1, 2, 3],
        },
        vec![
            ("Kind", TypeDefinition::Enum(vec!["round", "flat"])),
            ("Shape", TypeDefinition::Object(shape.clone())),
            ("Round", TypeDefinition::Object(round)),
            ("Below", TypeDefinition::Alternate(below)),
        ],
        vec![Command {
            name: "draw",
            arguments: shape,
            returns: None,
            run: CommandHandler::InBand(|(), _| Ok(json!({}))),
        }],
        vec![Event {
            name: "DRAWN",
            data: drawn,
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
        SessionAction::Respond(value) => match value.get("error") {
            Some(error) => {
                let id = value.get("id").map_or(String::new(), |id| format!(" {id}"));
                let [class, text] = ["class", "desc"].map(|key| error[key].as_str().unwrap());
                format!("{class}{id}: {text}")
            }
            None => value.to_string(),
        },
        SessionAction::Forward(request) => format!("forward {}", request.command),
    }
}

/// Compares what has come of lines. Each of a transcript is followed by its effect; the class of most errors is left out.
#[track_caller]
fn check(session: &mut Session, transcript: &str) {
    let interface = interface();
    let lines: Vec<&str> = transcript.trim().lines().map(str::trim).collect();
    for pair in lines.chunks(2) {
        let effect = feed(session, &interface, pair[0]);
        let effect = effect.strip_prefix("GenericError: ").unwrap_or(&effect);
        assert_eq!(effect, pair[1], "{}", pair[0]);
    }
}

fn negotiated(capabilities: &str) -> Session {
    let mut session = Session::default();
    let line =
        format!(r#"{{"execute":"qmp_capabilities","arguments":{{"enable":[{capabilities}]}}}}"#);
    check(&mut session, &format!("{line}\n{{\"return\":{{}}}}"));
    session
}

#[test]
fn commands_are_refused_before_the_negotiation() {
    let mut session = Session::default();
    check(
        &mut session,
        r#"
        {"execute":"draw"}
        CommandNotFound: Expecting capabilities negotiation with 'qmp_capabilities'
        {"execute":"qmp_capabilities","arguments":{"enable":["x"]}}
        Parameter 'enable[0]' does not accept value 'x'
        "#,
    );
    assert!(!session.wants_qmp_events());
    check(
        &mut session,
        r#"
        {"execute":"qmp_capabilities","id":{"a":1}}
        {"return":{},"id":{"a":1}}
        {"execute":"qmp_capabilities"}
        CommandNotFound: Capabilities negotiation is already complete, command ignored
        {"execute":"nope"}
        CommandNotFound: The command nope has not been found
        {"execute":"draw","arguments":{"kind":"flat"}}
        forward draw
        "#,
    );
    assert!(session.wants_qmp_events());
}

#[test]
fn only_immediate_commands_run_out_of_band_and_only_if_it_was_negotiated() {
    check(
        &mut negotiated(""),
        r#"
        {"exec-oob":"query-version","id":1}
        GenericError 1: QMP input member 'exec-oob' is unexpected
        "#,
    );
    check(
        &mut negotiated(r#""oob""#),
        r#"
        {"exec-oob":"query-version","id":1}
        {"return":{"qemu":{"micro":3,"minor":2,"major":1},"package":"test 1"},"id":1}
        {"exec-oob":"draw","arguments":{"kind":"flat"}}
        The command draw does not support OOB
        "#,
    );
}

#[test]
fn arguments_of_other_types_are_refused() {
    check(
        &mut negotiated(""),
        "
        {'execute':'draw','arguments':{}}
        Parameter 'kind' is missing
        {'execute':'draw','arguments':{'kind':'x'}}
        Parameter 'kind' does not accept value 'x'
        {'execute':'draw','arguments':{'kind':1}}
        Invalid parameter type for 'kind', expected: string
        {'execute':'draw','arguments':{'kind':'flat','x':1}}
        Parameter 'x' is unexpected
        {'execute':'draw','arguments':{'kind':'round'}}
        Parameter 'radius' is missing
        {'execute':'draw','arguments':{'kind':'flat','radius':1}}
        Parameter 'radius' is unexpected
        {'execute':'draw','arguments':{'kind':'round','radius':1.5}}
        Invalid parameter type for 'radius', expected: integer
        {'execute':'draw','arguments':{'kind':'flat','sizes':1}}
        Invalid parameter type for 'sizes', expected: array
        {'execute':'draw','arguments':{'kind':'flat','sizes':[1,'a']}}
        Invalid parameter type for 'sizes[1]', expected: integer
        {'execute':'draw','arguments':{'kind':'flat','below':7}}
        Invalid parameter type for 'below', expected: Below
        {'execute':'draw','arguments':{'kind':'flat','limits':[-1,18446744073709551615,'a']}}
        Parameter 'limits[2]' expects uint64
        {'execute':'draw','arguments':{'kind':'flat','limits':[18446744073709551616]}}
        Parameter 'limits[0]' expects uint64
        {'execute':'draw','arguments':{'kind':'flat','below':{'kind':'flat','below':{'kind':'y'}}}}
        Parameter 'below.below.kind' does not accept value 'y'
        {'execute':'draw','arguments':{'kind':'round','radius':18446744073709551615,'sizes':[-1]}}
        forward draw
        {'execute':'draw','arguments':{'kind':'flat','below':'name'}}
        forward draw
        {'execute':'draw','arguments':{'kind':'flat','below':{'kind':'round','radius':1}}}
        forward draw
        ",
    );
}

/// The texts are QEMU's.
#[test]
fn a_session_goes_on_after_malformed_input() {
    check(
        &mut negotiated(""),
        r#"
        {"a":1,"a":2}
        JSON parse error, duplicate key at line 1 column 13
        %&$
        JSON parse error, stray '%'
        [1]
        QMP input must be a JSON object
        {}
        QMP input lacks member 'execute'
        {"arguments":{}}
        QMP input lacks member 'execute'
        {"execute":5,"id":[7]}
        GenericError [7]: QMP input member 'execute' must be a string
        {"exec-oob":5}
        QMP input member 'exec-oob' must be a string
        {"execute":"x","exec-oob":"x"}
        QMP input member 'execute' clashes with 'exec-oob'
        {"execute":"x","arguments":[]}
        QMP input member 'arguments' must be an object
        {"execute":"x","foo":1}
        QMP input member 'foo' is unexpected
        {'execute':'draw','arguments':{'kind':'flat'}}
        forward draw
        "#,
    );
}
