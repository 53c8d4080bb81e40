//! Tests of memory that is unmapped, of resets and of reconnects while requests are in flight.

use std::os::unix::fs::FileExt;

use vfio_user::PciDevice;
use vfio_user::wire::{Header, command};

use crate::assemble::{DATA_IN, Program, When};
use crate::driver::{BUFFERS, transfer};
use crate::machine::*;
use crate::transfers::ready;
use test_support::vfio_user::{file, memory, unmap};

#[test]
fn unmapping_waits_for_the_disk_and_registers_are_answered_meanwhile() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    driver.submit(&transfer(0x28, 0, Some(1), 0, 8, BUFFERS));
    let machine = &mut driver.machine;
    let id = machine
        .rig
        .begin(command::DMA_UNMAP, 0, &unmap(0, 0, MEMORY as u64), &[]);
    assert!(machine.rig.receive().is_none(), "the disk writes to it");
    assert_eq!(machine.read8(ISTAT1), 0x02);
    machine.complete(0);
    machine.rig.turn();
    let reply = machine.rig.receive().unwrap();
    assert_eq!(
        (reply.header.id, reply.header.command),
        (id, command::DMA_UNMAP)
    );
}

#[test]
fn added_memory_does_not_affect_requests_in_flight() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    driver.machine.disks.bytes[0].fill(0x5a);
    driver.submit(&transfer(0x28, 0, Some(1), 0, 8, BUFFERS));
    let more = memory(0x1000);
    let mapped = driver.machine.rig.map(0x1000_0000, 0x1000, Some(&more));
    mapped.unwrap();
    driver.submit(&transfer(0x28, 0, Some(2), 0, 1, 0x1000_0000));
    driver.machine.finish(0);
    driver.machine.finish(0);
    assert_eq!(driver.completions().len(), 2);
    assert_eq!(driver.machine.peek(BUFFERS, 4096), [0x5a; 4096]);
    let mut there = [0; 512];
    file(&more).read_exact_at(&mut there, 0).unwrap();
    assert_eq!(there, [0x5a; 512]);
}

#[test]
fn memory_unmapped_during_collection_is_not_submitted() {
    let mut machine = ready(Machine::new(), &[0]).machine;
    machine.holds = true;
    let (message, cdb) = (RAM + 0x1000, RAM + 0x1010);
    machine.poke(message, &[0x80]);
    machine.poke(cdb, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let mut p = Program::at(RAM);
    p.command(0, (1, message), (10, cdb))
        .move_direct(DATA_IN, 256, BUFFERS)
        .int(When::Always, 1);
    p.label("rest").move_direct(DATA_IN, 256, RAM + 0x1800);
    machine.start(&p, RAM);
    assert_eq!(machine.read8(DSTAT), 0x84);
    let all = unmap(0, 0, MEMORY as u64);
    machine.rig.call(command::DMA_UNMAP, &all, &[]).unwrap();
    machine.write32(DSP, p.address("rest"));
    machine.go();
    assert!(machine.disks.waiting.is_empty(), "never asked");
}

#[test]
fn a_reset_is_answered_when_requests_are_done() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    for tag in 0..2 {
        driver.submit(&transfer(0x2a, 0, Some(tag), tag.into(), 1, BUFFERS));
    }
    let machine = &mut driver.machine;
    let id = machine.rig.begin(command::DEVICE_RESET, 0, &[], &[]);
    assert!(machine.rig.receive().is_none());
    assert_eq!(machine.rig.read(CONFIG, 4, 2).unwrap(), [0, 0]);
    machine.finish(1);
    assert!(machine.rig.receive().is_none());
    machine.finish(0);
    let Header { id: answered, .. } = machine.rig.receive().unwrap().header;
    assert_eq!(answered, id);
    assert!(!machine.irq_level());
}

#[test]
fn another_front_end_can_use_the_same_disk() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    driver.machine.poke(BUFFERS, &[0x77; 512]);
    driver.submit(&transfer(0x2a, 0, Some(1), 3, 1, BUFFERS));
    let mut machine = driver.machine;
    machine.rig.reconnect();
    assert_eq!(machine.disks.waiting.len(), 1, "it goes on");
    machine.finish(0);
    assert_eq!(machine.disks.bytes[0][3 * 512..4 * 512], [0x77; 512]);
    machine.holds = false;
    machine.plug();
    let mut driver = ready(machine, &[0]);
    driver.submit(&transfer(0x28, 0, Some(1), 3, 1, BUFFERS + 0x1000));
    assert_eq!(driver.completions()[0].status, 0);
    assert_eq!(driver.machine.peek(BUFFERS + 0x1000, 512), [0x77; 512]);
}

#[test]
fn programs_do_not_run_without_a_front_end() {
    const COUNTER: u8 = SCRATCHA;
    let mut machine = Machine::new();
    // It counts, and never ends.
    let add = 0x7800_0000 | 6 << 24 | u32::from(COUNTER) << 16 | 1 << 8;
    machine.poke32(RAM, add);
    machine.poke32(RAM + 8, 0x8008_0000);
    machine.poke32(RAM + 12, RAM);
    machine.write32(DSP, RAM);
    // A timer that will be due meanwhile.
    machine.write8(STIME1, 1);
    machine.rig.turn();
    let front_end = &machine.rig.front_end;
    front_end.shutdown(std::net::Shutdown::Both).unwrap();
    machine.rig.turn();
    assert!(!machine.rig.is_connected());
    let counter = |machine: &mut Machine| {
        let (adapter, host) = machine.rig.server.device_and_host();
        let mut byte = [0];
        adapter.read_region(host, 0, COUNTER.into(), &mut byte);
        byte[0]
    };
    let before = counter(&mut machine);
    for _ in 0..10 {
        assert_eq!(machine.adapter().deadline_ns(), None);
        machine.advance(1_000_000_000);
        let now_ns = machine.rig.now_ns;
        assert!(!machine.rig.server.do_pending_work(now_ns), "nothing to do");
        assert_eq!(counter(&mut machine), before);
    }
    // Who comes next finds it running.
    machine.rig.connect();
    machine.rig.agree();
    assert_eq!(machine.read8(ISTAT1), 0x02);
    let before = machine.read8(COUNTER);
    let counts = (0..100).any(|_| {
        machine.advance(1_000_000);
        machine.read8(COUNTER) != before
    });
    assert!(counts, "and it goes on");
}

#[test]
fn disabling_bus_mastering_causes_a_bus_fault() {
    let mut machine = Machine::new();
    machine.rig.write(CONFIG, 4, &[3, 0]).unwrap();
    machine.write32(DSP, 0x1000);
    machine.go();
    assert_eq!(machine.read8(DSTAT), 0xa0, "bus fault");
}
