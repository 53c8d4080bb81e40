//! What an iothread can be set to while it works. Nearly all of it takes effect in its next iteration.

use options::live::Live;
use options::{IothreadOptions, ObjectOptions, Problem};
use qmp::Error;
use serde_json::{Value, json};

use super::errors::refused;
use super::property::{Class, Property, Tuned};
use crate::Failure;
use crate::objects::{Iothread, polling};

impl Tuned for Iothread {
    type Options = IothreadOptions;

    fn class(&self) -> &'static Class<Self> {
        &IOTHREAD
    }

    fn options(&self) -> &IothreadOptions {
        &self.options
    }

    fn checked(&self, name: &str, value: &Value) -> Result<IothreadOptions, Error> {
        // The one bounds the other.
        let mut options = json!({
            "qom-type": "iothread",
            "id": "checked",
            "thread-pool-min": self.options.thread_pool_min,
            "thread-pool-max": self.options.thread_pool_max,
        });
        // The empty list of CPUs is the default, and on a command line nobody would write it.
        if *value != json!([]) {
            options[name] = value.clone();
        }
        match Live::default().object(&options.to_string()) {
            Ok(ObjectOptions::Iothread(new)) => Ok(new),
            Err(Problem::Conflict { reason }) => Err(Error::generic(format!(
                "bad thread-pool-min/thread-pool-max values: {reason}"
            ))),
            Err(problem) => Err(refused(&problem)),
        }
    }
}

pub(super) const IOTHREAD: Class<Iothread> = Class {
    name: "iothread",
    properties: PROPERTIES,
};

const PROPERTIES: &[Property<Iothread, IothreadOptions>] = &[
    Property::fixed("type", "string", |_| "iothread".into()),
    Property::live(
        "poll-max-ns",
        "int",
        |options| options.poll_max_ns.into(),
        |iothread, new| {
            iothread.options.poll_max_ns = new.poll_max_ns;
            poll_anew(iothread)
        },
    ),
    Property::live(
        "poll-grow",
        "int",
        |options| options.poll_grow.into(),
        |iothread, new| {
            iothread.options.poll_grow = new.poll_grow;
            poll_anew(iothread)
        },
    ),
    Property::live(
        "poll-shrink",
        "int",
        |options| options.poll_shrink.into(),
        |iothread, new| {
            iothread.options.poll_shrink = new.poll_shrink;
            poll_anew(iothread)
        },
    ),
    Property::live(
        "poll-cpu-max",
        "int",
        |options| options.poll_cpu_max.into(),
        |iothread, new| {
            iothread.options.poll_cpu_max = new.poll_cpu_max;
            poll_anew(iothread)
        },
    ),
    Property::live(
        "aio-max-batch",
        "int",
        |options| options.aio_max_batch.into(),
        |iothread, new| {
            iothread.thread.set_aio_max_batch(new.aio_max_batch)?;
            iothread.options.aio_max_batch = new.aio_max_batch;
            Ok(())
        },
    ),
    Property::live(
        "aio-max-events",
        "int",
        |options| options.aio_max_events.into(),
        |iothread, new| {
            iothread.thread.set_aio_max_events(new.aio_max_events)?;
            iothread.options.aio_max_events = new.aio_max_events;
            Ok(())
        },
    ),
    Property::live(
        "thread-pool-min",
        "int",
        |options| options.thread_pool_min.into(),
        set_thread_pool,
    ),
    Property::live(
        "thread-pool-max",
        "int",
        |options| options.thread_pool_max.into(),
        set_thread_pool,
    ),
    Property::live(
        "cpu-affinity",
        "list",
        |options| options.cpu_affinity.clone().into(),
        |iothread, new| {
            iothread.thread.set_cpu_affinity(&new.cpu_affinity)?;
            iothread.options.cpu_affinity = new.cpu_affinity;
            Ok(())
        },
    ),
];

fn poll_anew(iothread: &Iothread) -> Result<(), Failure> {
    Ok(iothread.thread.set_polling(polling(&iothread.options))?)
}

fn set_thread_pool(iothread: &mut Iothread, new: IothreadOptions) -> Result<(), Failure> {
    let Iothread { options, thread } = iothread;
    let set = thread.set_thread_pool(new.thread_pool_min, new.thread_pool_max);
    if let Err(error) = set {
        // The threads of a minimum that cannot be had are not wanted any more.
        thread.set_thread_pool(options.thread_pool_min, options.thread_pool_max)?;
        return Err(error.into());
    }
    options.thread_pool_min = new.thread_pool_min;
    options.thread_pool_max = new.thread_pool_max;
    Ok(())
}
