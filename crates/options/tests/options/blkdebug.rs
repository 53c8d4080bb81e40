//! `--blockdev driver=blkdebug`: options of faults.

use options::{
    BlkdebugOptions, Directive, Driver, InjectAction, InjectErrorRule, Invocation, IoType, NodeRef,
    parse,
};

fn read(rest: &str) -> Result<(NodeRef, BlkdebugOptions), String> {
    let text = format!("blkdebug,node-name=b,{rest}");
    let words = ["--blockdev", "null-co,node-name=n", "--blockdev", &text];
    match parse(words.into_iter().map(Into::into)) {
        Ok(Invocation::Daemon(mut daemon)) => match daemon.directives.pop() {
            Some(Directive::Blockdev(options)) => match options.driver {
                Driver::Blkdebug { image, injected } => Ok((image, injected)),
                other => panic!("{other:?}"),
            },
            other => panic!("not a node: {other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn injected(rest: &str) -> BlkdebugOptions {
    let read = read(&format!("image=n{rest}"));
    read.unwrap_or_else(|error| panic!("{error}")).1
}

const ALWAYS: InjectErrorRule = InjectErrorRule {
    event: None,
    iotype: None,
    sectors: None,
    times: None,
    one_in: 1,
    action: InjectAction::Error(5),
};

#[test]
fn keys_of_qemu_have_the_same_meaning() {
    assert_eq!(injected(""), BlkdebugOptions::default());
    let text = ",inject-error.0.event=read_aio,inject-error.1.iotype=write-zeroes,inject-error.1.errno=28,\
                inject-error.1.sector=8,inject-error.1.once=on,inject-error.1.immediately=on,inject-error.1.event=none";
    let expected = [
        InjectErrorRule {
            event: Some(IoType::Read),
            ..ALWAYS
        },
        InjectErrorRule {
            iotype: Some(IoType::WriteZeroes),
            sectors: Some((8, 1)),
            times: Some(1),
            action: InjectAction::Error(28),
            ..ALWAYS
        },
    ];
    assert_eq!(injected(text).errors, expected);
}

#[test]
fn keys_that_qemu_lacks_extend_its_own() {
    let text = ",seed=7,inject-error.0.action=delay,inject-error.0.delay-ns=100,inject-error.0.one-in=10,\
                inject-error.1.action=hang,inject-error.1.sector=0,inject-error.1.sectors=16,inject-error.1.times=3,\
                inject-error.2.action=short,inject-error.2.errno=28,inject-error.3.action=torn,inject-error.3.bytes=1k";
    let expected = [
        InjectErrorRule {
            action: InjectAction::Delay(100),
            one_in: 10,
            ..ALWAYS
        },
        InjectErrorRule {
            action: InjectAction::Hang,
            sectors: Some((0, 16)),
            times: Some(3),
            ..ALWAYS
        },
        InjectErrorRule {
            action: InjectAction::Short(512, 28),
            ..ALWAYS
        },
        InjectErrorRule {
            action: InjectAction::Torn(1024),
            ..ALWAYS
        },
    ];
    let BlkdebugOptions { errors, seed } = injected(text);
    assert_eq!((errors.as_slice(), seed), (&expected[..], 7));
}

#[test]
fn a_node_below_that_is_written_inside_inherits_settings() {
    let text = "image.driver=null-co,image.size=1M,read-only=on";
    let Ok((NodeRef::Inline(image), _)) = read(text) else {
        panic!("written in place");
    };
    assert!(image.settings.read_only && image.node_name.starts_with('#'));
}
