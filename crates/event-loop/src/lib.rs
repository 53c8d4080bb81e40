//! IoThread: handlers, poller, timers, wake-ups, and the five phases of an iteration.
