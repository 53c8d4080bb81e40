//! Random commands, valid and invalid, generated from the daemon's schema.

use serde_json::{Map, Value, json};
use test_support::verifying::random::Random;

use crate::client::Client;
use crate::{EXPORT_OF_UNDISTURBED_GUEST, start_undisturbed_guest, start_with_images};

fn one_of<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())].clone()
}

/// What makes sense for a member, and a little that does not.
fn words(member: &str) -> &'static [&'static str] {
    match member {
        "node-name" => &["o", "p", "o", ""],
        "filename" => &["disk2", "disk2", "nope", "../../x"],
        "id" | "iothread" => &["e", "t", "a", "a.b.c"],
        "path" => &["e.sock", "c.sock", "/objects/a", "/exports/e", "/"],
        "property" => &["poll-max-ns", "aio-max-batch", "cpu-affinity", "x"],
        "command-line" => &["info block", "info iothreads -v", "info", "%s%n"],
        _ => &["o", "p", "x", "", "\u{0}", "%s%n"],
    }
}

const INTEGERS: [i64; 12] = [
    0,
    1,
    -1,
    2,
    7,
    64,
    511,
    512,
    65536,
    1 << 20,
    i64::MAX,
    i64::MIN,
];

/// The interface as the daemon describes it.
struct Schema(Vec<Value>);

impl Schema {
    fn entry(&self, name: &str) -> &Value {
        let found = self.0.iter().find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is described"))
    }

    /// A value of a type, mostly.
    fn value(&self, member: &str, of: &str, random: &mut Random, depth: usize) -> Value {
        if random.one_in(25) || depth > 6 {
            let wrong =
                json!([null, true, -1, 1e300, "x", [], {}, [[1]], {"x": {"y": []}}, u64::MAX]);
            return one_of(random, wrong.as_array().unwrap());
        }
        let entry = self.entry(of);
        match entry["meta-type"].as_str().unwrap() {
            "builtin" => match of {
                "str" => json!(one_of(random, words(member))),
                "int" => json!(one_of(random, &INTEGERS)),
                "bool" => json!(random.one_in(2)),
                _ => {
                    let any = json!([0, 64, "0", [0], "x", false]);
                    one_of(random, any.as_array().unwrap())
                }
            },
            "enum" => one_of(random, entry["values"].as_array().unwrap()),
            "array" => {
                let element = entry["element-type"].as_str().unwrap();
                let number = random.below(4);
                (0..number)
                    .map(|_| self.value(member, element, random, depth + 1))
                    .collect()
            }
            "object" => self.object(of, random, depth).into(),
            "alternate" => {
                let member = one_of(random, entry["members"].as_array().unwrap());
                self.value("", member["type"].as_str().unwrap(), random, depth + 1)
            }
            other => panic!("{other}"),
        }
    }

    /// A random object of the type `of`, mostly with the members that it needs.
    fn object(&self, of: &str, random: &mut Random, depth: usize) -> Map<String, Value> {
        let entry = self.entry(of);
        let mut object = Map::new();
        for member in entry["members"].as_array().unwrap() {
            let name = member["name"].as_str().unwrap();
            let often = if member.get("default").is_some() {
                5
            } else {
                9
            };
            // A descriptor's number would be the daemon's own.
            if random.below(10) < often && name != "fd" {
                let of = member["type"].as_str().unwrap();
                let value = self.value(name, of, random, depth + 1);
                object.insert(name.to_owned(), value);
            }
        }
        let case = entry["tag"].as_str().and_then(|tag| object.get(tag));
        let mut variants = entry["variants"].as_array().into_iter().flatten();
        if let Some(variant) = variants.find(|variant| Some(&variant["case"]) == case) {
            object.extend(self.object(variant["type"].as_str().unwrap(), random, depth + 1));
        }
        if random.one_in(30) {
            object.insert("unknown".to_owned(), json!(1));
        }
        object
    }
}

#[test]
fn random_commands_are_answered_and_disturb_no_guest() {
    let images = ["disk", "disk2"];
    let (folder, program, mut client) = start_with_images(&images, EXPORT_OF_UNDISTURBED_GUEST);
    let guest = start_undisturbed_guest(&folder);
    let mut reader = Client::connect(&folder.join("qmp"));
    let schema = reader.execute("query-qmp-schema");
    let schema = Schema(schema.as_array().unwrap().clone());
    // These end the process.
    let ends = |name: &Value| name == "quit" || name == "upgrade";
    let is_said = |entry: &&Value| entry["meta-type"] == "command" && !ends(&entry["name"]);
    let commands: Vec<&Value> = schema.0.iter().filter(is_said).collect();
    let mut random = Random(4);
    let mut done = 0;
    for round in 0..4000 {
        let command = one_of(&mut random, &commands);
        let arguments = schema.object(command["arg-type"].as_str().unwrap(), &mut random, 0);
        let name = command["name"].as_str().unwrap();
        let answer = client.ask(name, arguments.into());
        done += u32::from(answer.get("return").is_some());
        let answered = answer.get("return").is_some() || answer["error"]["desc"].is_string();
        assert!(answered, "{answer}");
        if round % 100 == 0 {
            guest.goes_on(name);
        }
    }
    // Else it was only refused.
    assert!(done > 400, "{done} commands were carried out");
    assert!(reader.execute("query-block-exports").is_array());
    guest.goes_on("all commands");
    guest.stop();
    let log = program.stop().stderr;
    assert!(!log.contains("panicked"), "{log}");
}
