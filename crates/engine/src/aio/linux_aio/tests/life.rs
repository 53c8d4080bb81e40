//! Tests of making and dropping an engine.

use std::rc::Rc;

use super::*;

#[test]
fn dropping_destroys_the_context() {
    let aio = engine(4, 0);
    let destroyed = Rc::clone(&aio.kernel.destroyed);
    assert!(!destroyed.get());
    drop(aio);
    assert!(destroyed.get());
}

#[test]
fn errors_name_the_remedy() {
    let fail = |errno| {
        let mut kernel = FakeKernel::new(Vec::new());
        kernel.setup_error = Some(errno);
        LinuxAio::with_kernel(kernel, AioSettings::default())
            .err()
            .unwrap()
    };
    let limit = fail(Errno::AGAIN);
    assert!(matches!(
        limit,
        AioError::LimitReached {
            max_events: 1024,
            ..
        }
    ));
    let now = std::fs::read_to_string("/proc/sys/fs/aio-max-nr").unwrap();
    assert!(
        limit
            .to_string()
            .contains(&format!("fs.aio-max-nr = {} are taken", now.trim()))
    );
    assert!(limit.to_string().contains("sysctl fs.aio-max-nr="));
    assert_eq!(fail(Errno::NOSYS), AioError::NotSupported);
    assert_eq!(
        fail(Errno::NOMEM),
        AioError::Setup {
            max_events: 1024,
            errno: Errno::NOMEM
        }
    );
    for max_events in [0, MAX_EVENTS_LIMIT + 1, u32::MAX] {
        let settings = AioSettings {
            max_events,
            ..AioSettings::default()
        };
        let kernel = FakeKernel::new(Vec::new());
        assert_eq!(
            LinuxAio::with_kernel(kernel, settings).err(),
            Some(AioError::MaxEvents { max_events })
        );
    }
}
