//! The virtio block device as a pure state machine.
