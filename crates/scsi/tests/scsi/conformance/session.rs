//! One connection of an iSCSI initiator: logs in, and carries its commands out one by one.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use scsi::{
    AdapterStep, BusOrUnitReset, DataPhase, NexusNumber, NexusPorts, Resume, TargetView, Task,
    TransportId, Waker,
};

use super::pdu::{MAX_SEGMENT_BYTES, Pdu, opcode};
use super::server::{LUN, Server, TARGET_NAME};

/// Commands that an initiator may send before it hears of the first.
const WINDOW: u32 = 64;

struct Wake(Sender<()>);

impl Resume for Wake {
    fn schedule_resume(&self, _token: u64) {
        let _ = self.0.send(());
    }
}

pub struct Session {
    server: Arc<Server>,
    stream: TcpStream,
    nexus: NexusNumber,
    view: TargetView,
    task: Task,
    woken: Receiver<()>,
    status_number: u32,
    expected_command: u32,
    /// Most bytes of one unit to the initiator.
    most: usize,
}

impl Session {
    pub fn run(server: Arc<Server>, stream: TcpStream, nexus: NexusNumber) {
        let (sender, woken) = channel();
        let waker = Waker {
            resume: Arc::new(Wake(sender)),
            token: 0,
        };
        let mut session = Session {
            view: TargetView::new(server.target.clone()),
            server,
            stream,
            nexus,
            task: Task::new(waker),
            woken,
            status_number: 1,
            expected_command: 0,
            most: 8192,
        };
        // The end of the connection is the end of the session.
        let _ = session.serve();
        session.server.target.detach_initiator(nexus);
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let pdu = Pdu::receive(&mut self.stream)?;
            if !pdu.immediate() && pdu.opcode() != opcode::DATA_OUT {
                self.expected_command = pdu.word(24).wrapping_add(1);
            }
            match pdu.opcode() {
                opcode::LOGIN => self.login(&pdu)?,
                opcode::COMMAND => self.command(&pdu)?,
                opcode::NOP_OUT if pdu.word(16) != u32::MAX => {
                    let mut answer = pdu.answer(opcode::NOP_OUT | opcode::ANSWER, 0);
                    answer.data.clone_from(&pdu.data);
                    answer.set_word(20, u32::MAX);
                    self.answer(answer)?;
                }
                opcode::NOP_OUT => {}
                opcode::TEXT => {
                    let mut answer = pdu.answer(opcode::TEXT | opcode::ANSWER, 0);
                    answer.set_word(20, u32::MAX);
                    let address = format!("{},1", self.stream.local_addr()?);
                    answer.set_text(&[("TargetName", TARGET_NAME), ("TargetAddress", &address)]);
                    self.answer(answer)?;
                }
                opcode::TASK_MANAGEMENT => {
                    let function = pdu.header[1] & 0x7f;
                    let mut answer = pdu.answer(opcode::TASK_MANAGEMENT | opcode::ANSWER, 0);
                    match function {
                        // Commands are over before the next message is read: there is none to abort.
                        1 => answer.header[2] = 1,
                        5..=7 if pdu.lun() == Some(LUN) || function > 5 => {
                            self.server.unit.reset(BusOrUnitReset::Unit);
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
                    self.server
                        .target
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
        let (reads, writes) = (pdu.header[1] & 0x40 != 0, pdu.header[1] & 0x20 != 0);
        let expected = pdu.word(20) as usize;
        let lun = pdu.lun().unwrap_or(u16::MAX);
        let cdb = &pdu.header[32..48];
        let phase = self.task.receive(&mut self.view, lun, self.nexus, cdb);
        let (bytes, mut memory) = match phase {
            DataPhase::DataOut(bytes) if writes => (bytes, self.collect(pdu, expected)?),
            DataPhase::DataIn(bytes) if reads => (bytes, vec![0; expected]),
            DataPhase::DataIn(bytes) | DataPhase::DataOut(bytes) => (bytes, Vec::new()),
            DataPhase::Status => (0, Vec::new()),
        };
        self.carry_out(&mut memory);
        let moved = usize::try_from(self.task.transferred_bytes()).unwrap();
        let pieces = if matches!(phase, DataPhase::DataIn(_)) {
            self.give(pdu, &memory[..moved.min(memory.len())])?
        } else {
            0
        };
        let mut answer = pdu.answer(opcode::COMMAND | opcode::ANSWER, 0);
        answer.header[3] = self.task.status() as u8;
        answer.set_word(36, pieces);
        let (wanted, expected) = (bytes, expected as u64);
        let residual = if wanted > expected {
            answer.header[1] |= 0x04;
            wanted - expected
        } else {
            expected - self.task.transferred_bytes()
        };
        if residual > 0 && wanted <= expected {
            answer.header[1] |= 0x02;
        }
        answer.set_word(44, u32::try_from(residual).unwrap_or(u32::MAX));
        let sense = self.task.sense();
        if !sense.is_empty() {
            answer
                .data
                .extend(u16::try_from(sense.len()).unwrap().to_be_bytes());
            answer.data.extend(sense);
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
        let mut early = Vec::new();
        while data.len() < expected {
            let more = Pdu::receive(&mut self.stream)?;
            if more.opcode() == opcode::DATA_OUT && more.word(16) == pdu.word(16) {
                data.extend(more.data);
            } else {
                early.push(more);
            }
        }
        assert!(early.is_empty(), "the suite sends one command at a time");
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

    fn carry_out(&mut self, memory: &mut [u8]) {
        let mut list: Vec<libc::iovec> = memory
            .chunks_mut(4096)
            .map(|piece| libc::iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: piece.len(),
            })
            .collect();
        let count = u32::try_from(list.len()).unwrap();
        // SAFETY: memory and list stay until the task is finished, below.
        let mut step = unsafe { self.task.run(list.as_mut_ptr(), count, memory.len() as u64) };
        loop {
            step = match step {
                AdapterStep::Finished => return,
                AdapterStep::Submit(request) => {
                    let result = self.server.node(request);
                    self.task.on_step_completed(result)
                }
                AdapterStep::Wait => loop {
                    self.woken.recv().unwrap();
                    if let Some(step) = self.task.on_resumed() {
                        break step;
                    }
                },
                AdapterStep::Call => {
                    let call = self.task.requested_disk_call().unwrap();
                    let server = &self.server;
                    let done = call.run_with_allocations(|at, len, most| {
                        Ok(server.allocations(at, len, most))
                    });
                    self.task.on_step_completed(done)
                }
                // No request of any initiator is in flight.
                AdapterStep::SettlePreempted => self.task.on_step_completed(Ok(())),
            }
        }
    }
}
