//! An iSCSI target with one disk in memory, on a port of this host. Each connection carries its commands out one by one.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use scsi::{BusOrUnitReset, DataPhase, NexusNumber, NexusPorts, TransportId};

use super::pdu::{MAX_SEGMENT_BYTES, Pdu, opcode};
use crate::rig::{LUN, Rig};

pub const TARGET_NAME: &str = "iqn.2024-01.org.example:disk";

/// Commands that an initiator may send before it hears of the first.
const WINDOW: u32 = 64;

/// Initiators that the rig has already.
const OTHERS: u16 = 3;

struct Session {
    rig: Arc<Mutex<Rig>>,
    stream: TcpStream,
    nexus: NexusNumber,
    status_number: u32,
    expected_command: u32,
    /// Most bytes of one unit to the initiator.
    most: usize,
}

/// Serves connections until the process ends.
pub fn serve(rig: Rig) -> SocketAddr {
    let rig = Arc::new(Mutex::new(rig));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (nexus, stream) in (OTHERS..).map(NexusNumber).zip(listener.incoming()) {
            let mut session = Session {
                rig: rig.clone(),
                stream: stream.unwrap(),
                nexus,
                status_number: 1,
                expected_command: 0,
                most: 8192,
            };
            session.stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                // The end of the connection is the end of the session.
                let _ = session.serve();
                session.rig.lock().unwrap().target.detach_initiator(nexus);
            });
        }
    });
    address
}

impl Session {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let pdu = Pdu::receive(&mut self.stream)?;
            if !pdu.immediate() && pdu.opcode() != opcode::DATA_OUT {
                self.expected_command = pdu.word(24).wrapping_add(1);
            }
            match pdu.opcode() {
                opcode::LOGIN => self.login(&pdu)?,
                opcode::COMMAND => self.command(&pdu)?,
                opcode::TASK_MANAGEMENT => {
                    let function = pdu.header[1] & 0x7f;
                    let mut answer = pdu.answer(opcode::TASK_MANAGEMENT | opcode::ANSWER, 0);
                    match function {
                        // Commands are over before the next message is read: there is none to abort.
                        1 => answer.header[2] = 1,
                        5..=7 if pdu.lun() == Some(LUN) || function > 5 => {
                            self.rig.lock().unwrap().unit.reset(BusOrUnitReset::Unit);
                        }
                        5 => answer.header[2] = 2,
                        _ => {}
                    }
                    self.answer(answer)?;
                    if function == 7 {
                        return Ok(());
                    }
                }
                opcode::LOGOUT => {
                    let answer = pdu.answer(opcode::LOGOUT | opcode::ANSWER, 0);
                    return self.answer(answer);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Numbers an answer that has a status, and sends it.
    fn answer(&mut self, mut answer: Pdu) -> io::Result<()> {
        answer.set_word(24, self.status_number);
        self.status_number = self.status_number.wrapping_add(1);
        self.send(answer)
    }

    fn send(&mut self, mut pdu: Pdu) -> io::Result<()> {
        pdu.set_word(28, self.expected_command);
        pdu.set_word(32, self.expected_command.wrapping_add(WINDOW));
        pdu.send(&mut self.stream)
    }

    fn login(&mut self, pdu: &Pdu) -> io::Result<()> {
        // Logins are immediate: they number the first command.
        self.expected_command = pdu.word(24);
        let mut answer = pdu.answer(opcode::LOGIN | opcode::ANSWER, 0);
        answer.header[1] = pdu.header[1] & 0x8f;
        answer.header[8..14].copy_from_slice(&pdu.header[8..14]);
        answer.header[15] = 1;
        for (key, value) in pdu.text() {
            match key.as_str() {
                "InitiatorName" => {
                    let initiator = TransportId::Iscsi { name: value };
                    let ports = NexusPorts {
                        initiator,
                        target: 1,
                    };
                    let rig = self.rig.lock().unwrap();
                    rig.target
                        .attach_initiator_and_start_units(self.nexus, &ports);
                    answer.set_text(&[("TargetPortalGroupTag", "1")]);
                }
                "AuthMethod" | "HeaderDigest" | "DataDigest" => {
                    answer.set_text(&[(&key, "None")]);
                }
                "MaxRecvDataSegmentLength" => {
                    self.most = value.parse().unwrap_or(8192).min(MAX_SEGMENT_BYTES);
                    answer.set_text(&[(&key, &MAX_SEGMENT_BYTES.to_string())]);
                }
                "InitialR2T" | "ImmediateData" | "DataPDUInOrder" | "DataSequenceInOrder" => {
                    answer.set_text(&[(&key, "Yes")]);
                }
                "MaxOutstandingR2T" | "MaxConnections" => answer.set_text(&[(&key, "1")]),
                "ErrorRecoveryLevel" | "DefaultTime2Retain" => answer.set_text(&[(&key, "0")]),
                "DefaultTime2Wait" | "MaxBurstLength" | "FirstBurstLength" => {
                    answer.set_text(&[(&key, &value)]);
                }
                "InitiatorAlias" | "SessionType" | "TargetName" => {}
                _ => answer.set_text(&[(&key, "NotUnderstood")]),
            }
        }
        self.answer(answer)
    }

    fn command(&mut self, pdu: &Pdu) -> io::Result<()> {
        let [reads, writes] = [0x40, 0x20].map(|bit| pdu.header[1] & bit != 0);
        let expected = pdu.word(20) as usize;
        let out = match writes {
            true => self.collect(pdu, expected)?,
            false => Vec::new(),
        };
        let room = if reads { expected } else { 0 };
        let reply = {
            let mut rig = self.rig.lock().unwrap();
            rig.nexus = self.nexus;
            rig.asked.clear();
            let lun = pdu.lun().unwrap_or(u16::MAX);
            rig.exchange(lun, &pdu.header[32..48], &out, room)
        };
        let pieces = self.give(pdu, &reply.data)?;
        let mut answer = pdu.answer(opcode::COMMAND | opcode::ANSWER, 0);
        answer.header[3] = reply.status as u8;
        answer.set_word(36, pieces);
        let wanted = match reply.phase {
            DataPhase::DataIn(bytes) | DataPhase::DataOut(bytes) => bytes,
            DataPhase::Status => 0,
        };
        let expected = expected as u64;
        let residual = if wanted > expected {
            answer.header[1] |= 0x04;
            wanted - expected
        } else {
            expected - reply.transferred
        };
        if residual > 0 && wanted <= expected {
            answer.header[1] |= 0x02;
        }
        answer.set_word(44, u32::try_from(residual).unwrap_or(u32::MAX));
        if !reply.sense.is_empty() {
            let len = u16::try_from(reply.sense.len()).unwrap();
            answer.data = [&len.to_be_bytes(), &reply.sense[..]].concat();
        }
        self.answer(answer)
    }

    /// All data of a command: what came with it, and the rest in one go.
    fn collect(&mut self, pdu: &Pdu, expected: usize) -> io::Result<Vec<u8>> {
        let mut data = pdu.data.clone();
        if data.len() < expected {
            let mut ready = pdu.answer(opcode::READY_TO_TRANSFER, 0);
            ready.header[8..16].copy_from_slice(&pdu.header[8..16]);
            ready.set_word(20, 1);
            ready.set_word(24, self.status_number);
            ready.set_word(40, u32::try_from(data.len()).unwrap());
            ready.set_word(44, u32::try_from(expected - data.len()).unwrap());
            self.send(ready)?;
        }
        while data.len() < expected {
            let more = Pdu::receive(&mut self.stream)?;
            let is_data = more.opcode() == opcode::DATA_OUT && more.word(16) == pdu.word(16);
            assert!(is_data, "the suite sends one command at a time");
            data.extend(more.data);
        }
        Ok(data)
    }

    /// Data to the initiator; in how many pieces.
    fn give(&mut self, pdu: &Pdu, data: &[u8]) -> io::Result<u32> {
        let mut pieces = 0;
        let mut offset = 0;
        for piece in data.chunks(self.most) {
            let mut unit = pdu.answer(opcode::DATA_IN, 0);
            offset += piece.len();
            if offset < data.len() {
                unit.header[1] = 0;
            }
            unit.set_word(20, u32::MAX);
            unit.set_word(36, pieces);
            unit.set_word(40, u32::try_from(offset - piece.len()).unwrap());
            unit.data = piece.to_vec();
            self.send(unit)?;
            pieces += 1;
        }
        Ok(pieces)
    }
}
