//! Random commands, valid and invalid, generated from the daemon's schema.

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::process::Folder;
use crate::start;
use crate::undisturbed_guest::{self, BLOCKS, UndisturbedGuest};

/// A sequence that looks random, and is the same each time (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// What makes sense for a member, and a little that does not.
fn words(member: &str) -> &'static [&'static str] {
    match member {
        "node-name" => &["o", "p", "o", ""],
        "filename" => &["disk2", "disk2", "nope", "../../x"],
        "id" | "iothread" => &["e", "t", "a", "a.b.c"],
        "path" => &[
            "e.sock",
            "c.sock",
            "/objects/a",
            "/objects/t",
            "/exports/e",
            "/",
        ],
        "property" => &[
            "poll-max-ns",
            "thread-pool-max",
            "aio-max-batch",
            "cpu-affinity",
            "x",
        ],
        "command-line" => &["info block", "info iothreads -v", "info", "%s%n"],
        _ => &["o", "p", "x", "", "\u{0}", "%s%n"],
    }
}

/// The interface as the daemon describes it.
struct Schema(Vec<Value>);

impl Schema {
    fn entry(&self, name: &str) -> &Value {
        let found = self.0.iter().find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is described"))
    }

    /// A value of a type, mostly.
    fn value(&self, member: &str, of: &str, random: &mut Random, depth: usize) -> Value {
        if random.below(25) == 0 || depth > 6 {
            return random.one_of(&[
                json!(null),
                json!(true),
                json!(-1),
                json!(1e300),
                json!("x"),
                json!([]),
                json!({}),
                json!([[1]]),
                json!({"x": {"y": []}}),
                json!(u64::MAX),
            ]);
        }
        let entry = self.entry(of);
        match entry["meta-type"].as_str().unwrap() {
            "builtin" => match of {
                "str" => json!(random.one_of(words(member))),
                "int" => {
                    let numbers = [
                        0,
                        1,
                        -1,
                        2,
                        3,
                        7,
                        64,
                        511,
                        512,
                        4096,
                        65536,
                        1 << 20,
                        i64::MAX,
                        i64::MIN,
                    ];
                    json!(random.one_of(&numbers))
                }
                "bool" => json!(random.below(2) == 0),
                _ => random.one_of(&[
                    json!(0),
                    json!(64),
                    json!("0"),
                    json!([0]),
                    json!("x"),
                    json!(false),
                ]),
            },
            "enum" => {
                let values = entry["values"].as_array().unwrap();
                random.one_of(values)
            }
            "array" => {
                let element = entry["element-type"].as_str().unwrap();
                let number = random.below(4);
                (0..number)
                    .map(|_| self.value(member, element, random, depth + 1))
                    .collect()
            }
            "object" => self.object(of, random, depth).into(),
            "alternate" => {
                let members = entry["members"].as_array().unwrap();
                let member = random.one_of(members);
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
            // A descriptor's number would be the daemon's own.
            let (name, optional) = (
                member["name"].as_str().unwrap(),
                member.get("default").is_some(),
            );
            if random.below(10) < if optional { 5 } else { 9 } && name != "fd" {
                let of = member["type"].as_str().unwrap();
                let value = self.value(name, of, random, depth + 1);
                object.insert(name.to_owned(), value);
            }
        }
        let case = entry["tag"]
            .as_str()
            .and_then(|tag| object.get(tag))
            .cloned();
        let variants = entry["variants"].as_array();
        let variant = variants
            .into_iter()
            .flatten()
            .find(|variant| Some(&variant["case"]) == case.as_ref());
        if let Some(variant) = variant {
            object.extend(self.object(variant["type"].as_str().unwrap(), random, depth + 1));
        }
        if random.below(30) == 0 {
            object.insert("unknown".to_owned(), json!(1));
        }
        object
    }
}

#[test]
fn random_commands_are_answered_and_disturb_no_guest() {
    let folder = Folder::new();
    folder.image("disk", BLOCKS * 4096);
    folder.image("disk2", 1 << 20);
    let (program, mut client) = start(&folder, undisturbed_guest::LINE);
    let neighbour = UndisturbedGuest::start(&folder);
    let mut reader = Client::connect(&folder.join("qmp"));
    let schema = reader.done("query-qmp-schema", json!({}));
    let schema = Schema(schema.as_array().unwrap().clone());
    // These end the process.
    let ends = |name: &Value| name == "quit" || name == "upgrade";
    let is_said = |entry: &&Value| entry["meta-type"] == "command" && !ends(&entry["name"]);
    let commands: Vec<&Value> = schema.0.iter().filter(is_said).collect();
    let mut random = Random(4);
    let mut done = 0;
    for round in 0..4000 {
        let command = random.one_of(&commands);
        let arguments = schema.object(command["arg-type"].as_str().unwrap(), &mut random, 0);
        let name = command["name"].as_str().unwrap();
        let answer = client.ask(name, arguments.into());
        done += u32::from(answer.get("return").is_some());
        let answered = answer.get("return").is_some() || answer["error"]["desc"].is_string();
        assert!(answered, "{answer}");
        if round % 100 == 0 {
            neighbour.goes_on();
        }
    }
    // Else it was only refused.
    assert!(done > 400, "{done} commands were carried out");
    assert!(reader.done("query-block-exports", json!({})).is_array());
    neighbour.goes_on();
    neighbour.stop();
    let log = program.stop().stderr;
    assert!(!log.contains("panicked"), "{log}");
}
