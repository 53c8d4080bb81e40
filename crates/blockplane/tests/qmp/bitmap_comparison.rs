//! Commands for dirty bitmaps, answered as by qemu-storage-daemon: results, states and error texts.
//!
//! Left out are commands at which its versions crash: a merge of no bitmaps, and a transaction that fails after an action `disable`.

use crate::client::command;
use crate::qemu_comparison::assert_same_answers;
use serde_json::{Value, json};

/// Commands in this order; `LONG` is a name of 1023 bytes.
const SCRIPT: &str = r#"qmp_capabilities
blockdev-add driver=null-co node-name=n size=2147483648
blockdev-add driver=null-co node-name=small size=1048576
blockdev-add driver=file node-name=ro filename=disk read-only=true
query-named-block-nodes
block-dirty-bitmap-add node=n name=
block-dirty-bitmap-add node=nope name=b
block-dirty-bitmap-add node=n
block-dirty-bitmap-add node=n name=b x=1
block-dirty-bitmap-add node=n name=b granularity=1000
block-dirty-bitmap-add node=n name=b granularity=256
block-dirty-bitmap-add node=n name=b granularity=4294967296
block-dirty-bitmap-add node=n name=b granularity=-1
block-dirty-bitmap-add node=n name=g granularity=2147483648
block-dirty-bitmap-add node=n name=b
block-dirty-bitmap-add node=n name=b
block-dirty-bitmap-add node=n name=LONG
block-dirty-bitmap-add node=n name=LONGl
block-dirty-bitmap-add node=n name=d granularity=512 disabled=true
block-dirty-bitmap-add node=n name=p persistent=true
block-dirty-bitmap-add node=ro name=q
block-dirty-bitmap-add node=small name=s
query-named-block-nodes
block-dirty-bitmap-remove node=n name=nope
block-dirty-bitmap-remove node=nope name=b
block-dirty-bitmap-remove node=n
block-dirty-bitmap-clear node=n name=nope
block-dirty-bitmap-clear node=nope name=b
block-dirty-bitmap-clear node=n
block-dirty-bitmap-enable node=n name=nope
block-dirty-bitmap-enable node=nope name=b
block-dirty-bitmap-enable node=n
block-dirty-bitmap-disable node=n name=nope
block-dirty-bitmap-disable node=nope name=b
block-dirty-bitmap-disable node=n
block-dirty-bitmap-enable node=n name=d
block-dirty-bitmap-enable node=n name=d
block-dirty-bitmap-disable node=n name=b
block-dirty-bitmap-disable node=n name=b
block-dirty-bitmap-clear node=n name=b
block-dirty-bitmap-clear node=ro name=q
query-named-block-nodes
block-dirty-bitmap-merge node=n target=b bitmaps=["d"]
block-dirty-bitmap-merge node=n target=b bitmaps=["d","nope"]
block-dirty-bitmap-merge node=n target=nope bitmaps=["d"]
block-dirty-bitmap-merge node=n target=b bitmaps=["b"]
block-dirty-bitmap-merge node=n target=b bitmaps=[{"node":"n","name":"d"},"g"]
block-dirty-bitmap-merge node=n target=b bitmaps=[{"node":"small","name":"s"}]
block-dirty-bitmap-merge node=n target=b bitmaps=[{"node":"nope","name":"s"}]
block-dirty-bitmap-merge node=n target=b bitmaps=[{"node":"small","name":"x"}]
block-dirty-bitmap-merge node=n target=b bitmaps=d
transaction
transaction actions=[]
transaction actions=[{"type":"abort","data":{}}]
transaction actions=[{"type":"block-dirty-bitmap-clear"}]
transaction: clear node=n
transaction: clear node=n name=b x=1
transaction: clear node=n name=nope
transaction: add node=n name=t; add node=n name=b
transaction: add node=n name=t; clear node=n name=nope
query-named-block-nodes
transaction: add node=n name=t; remove node=n name=t
query-named-block-nodes
transaction: add node=n name=t; merge node=n target=t bitmaps=["b","d"]; clear node=n name=b; enable node=n name=b
query-named-block-nodes
transaction: remove node=n name=t; add node=n name=t
transaction: remove node=n name=t; clear node=n name=t
query-named-block-nodes
transaction actions=[{"type":"block-dirty-bitmap-clear","data":{"node":"n","name":"b"}}] properties.completion-mode=individual
block-dirty-bitmap-remove node=n name=t
block-dirty-bitmap-remove node=n name=t
query-named-block-nodes
quit"#;

/// Commands with other texts in older versions.
const NEWER: &str = r#"blockdev-add driver=file node-name=r filename=disk read-only=true
block-dirty-bitmap-add node=r name=p persistent=true
transaction actions=[{"type":"block-dirty-bitmap-clear","data":{"node":"r","name":"b"}}] properties.completion-mode=grouped"#;

/// A command, or a transaction: each action is the end of its name, and its data.
fn parse(line: &str) -> (String, Value) {
    let Some(actions) = line.strip_prefix("transaction: ") else {
        return command(line);
    };
    let actions = actions.split("; ").map(|action| {
        let (kind, data) = command(action);
        json!({"type": format!("block-dirty-bitmap-{kind}"), "data": data})
    });
    let actions: Vec<Value> = actions.collect();
    ("transaction".to_owned(), json!({"actions": actions}))
}

#[test]
fn replies_to_commands_for_bitmaps_match_qemu_storage_daemon() {
    assert_same_answers(|version| {
        let script = SCRIPT.replace("LONG", &"l".repeat(1023));
        let newer = version.starts_with("11.").then_some(NEWER);
        let (first, others) = script.split_once('\n').unwrap();
        let lines = [first].into_iter().chain(newer).chain([others]);
        lines.flat_map(str::lines).map(parse).collect()
    });
}
