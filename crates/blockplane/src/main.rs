//! A storage daemon that gives virtual machines their disks.

fn main() {}
