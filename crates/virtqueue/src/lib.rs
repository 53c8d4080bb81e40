//! Virtqueues over checked guest memory.
