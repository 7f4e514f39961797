// SPDX-License-Identifier: MIT

//! Recording commands where the GPU reads them.
//!
//! A [`CommandBuffer`] is mapped memory that the GPU sees at an address, and a position in it.
//! Each method appends one command of section 7 of the hardware manual, encoded by
//! [`skua_spec::command`]. Operands are not checked here: that is the engine's work, and what
//! breaks a rule faults the context.
//!
//! Addresses are GPU virtual addresses in the address space of the context that runs the commands.

use skua_spec::command::{Command, Dispatch, Draw};

use crate::{
    bo::{Bo, BoFlags},
    error::{Error, Result},
    mapping::Mapping,
    vm::{Access, Vm},
};

/// Commands in memory that CPU and GPU share.
#[derive(Debug)]
pub struct CommandBuffer {
    /// Kept mapped for the buffer's life.
    memory: Mapping,
    /// Where the GPU fetches the first command.
    va: u64,
    /// Bytes of commands that are recorded, a multiple of 8.
    bytes: usize,
    /// Bytes of the buffer, a multiple of 4096.
    capacity: usize,
}

impl CommandBuffer {
    /// Makes a command buffer of `size` bytes in system memory and maps it at `va`, for the GPU to
    /// read only. Both are multiples of 4096.
    ///
    /// The mapping in the address space stays when the command buffer is dropped.
    ///
    /// # Errors
    ///
    /// As [`Bo::create`], [`Bo::map`] and [`Vm::map`].
    pub fn create(vm: &Vm, va: u64, size: u64) -> Result<Self> {
        let device = vm.device();
        let bo = Bo::create_in(vm, size, device.system(), BoFlags::CPU_ACCESS)?;
        vm.map(&bo, va, Access::Read)?;
        Ok(Self::new(bo.map()?, va))
    }

    /// Records into memory that the GPU sees at `va`.
    pub fn new(memory: Mapping, va: u64) -> Self {
        // What a submission's 32-bit size can name.
        let capacity = memory.len().min(u32::MAX as usize & !7);
        Self {
            memory,
            va,
            bytes: 0,
            capacity,
        }
    }

    /// GPU virtual address of the first command.
    pub const fn va(&self) -> u64 {
        self.va
    }

    /// Bytes of the commands recorded: a multiple of 8, below 2^32.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that it records into.
    pub const fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Starts anew. The GPU must be done with what was recorded.
    pub fn reset(&mut self) -> &mut Self {
        self.bytes = 0;
        self
    }

    /// Does nothing for `words` words, header included: an even number from 2 on.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn nop(&mut self, words: u16) -> Result<&mut Self> {
        self.push(&Command::Nop { words })
    }

    /// Writes a 32-bit pattern to `bytes` bytes; all but the pattern are multiples of 4.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn fill(&mut self, address: u64, bytes: u64, pattern: u32) -> Result<&mut Self> {
        self.push(&Command::Fill {
            pattern,
            address,
            bytes,
        })
    }

    /// Adds COPY: bytes of any alignment, also onto each other.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn copy(&mut self, source: u64, destination: u64, bytes: u64) -> Result<&mut Self> {
        self.push(&Command::Copy {
            source,
            destination,
            bytes,
        })
    }

    /// Copies `rows` rows of `bytes` bytes; each side is an address and the bytes from a row to the
    /// next.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn copy_2d(
        &mut self,
        (source, source_pitch): (u64, u32),
        (destination, destination_pitch): (u64, u32),
        bytes: u32,
        rows: u32,
    ) -> Result<&mut Self> {
        self.push(&Command::Copy2d {
            source,
            destination,
            bytes,
            source_pitch,
            destination_pitch,
            rows,
        })
    }

    /// Runs a compute program.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn dispatch(&mut self, dispatch: &Dispatch) -> Result<&mut Self> {
        self.push(&Command::Dispatch(*dispatch))
    }

    /// Draws triangles, running a program for each pixel.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn draw(&mut self, draw: &Draw) -> Result<&mut Self> {
        self.push(&Command::Draw(*draw))
    }

    /// Waits until the 64-bit value at `address`, a multiple of 8, is at least `value`.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn wait(&mut self, address: u64, value: u64) -> Result<&mut Self> {
        self.push(&Command::Wait { address, value })
    }

    /// Writes a 64-bit value to `address`, a multiple of 8, when all before is done and visible.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn signal(&mut self, address: u64, value: u64) -> Result<&mut Self> {
        self.push(&Command::Signal { address, value })
    }

    /// Sets a register of the context, 0 to 15, which keeps the value from submission to
    /// submission.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn set_register(&mut self, index: u32, value: u64) -> Result<&mut Self> {
        self.push(&Command::SetRegister { index, value })
    }

    /// Writes what a register of the context, 0 to 15, holds to `address`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn store_register(&mut self, index: u32, address: u64) -> Result<&mut Self> {
        self.push(&Command::StoreRegister { index, address })
    }

    /// Drops what the engine keeps of programs, and orders the accesses before it before those
    /// behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn flush_cache(&mut self) -> Result<&mut Self> {
        self.push(&Command::FlushCache)
    }

    /// Appends any command, those too that the engine refuses in a buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Full`]; nothing is appended then.
    pub fn push(&mut self, command: &Command) -> Result<&mut Self> {
        let encoded = command.encode();
        let words = encoded.words();
        let bytes = match command {
            // Longer than what encode() returns: the header tells.
            Command::Nop { words } => usize::from(*words) * 4,
            _ => words.len() * 4,
        };
        self.check(bytes)?;
        let mut rest = bytes / 4;
        let mut at = self.bytes;
        let words = &words[..words.len().min(rest)];
        self.memory.copy_from_slice(at, words)?;
        at += words.len() * 4;
        rest -= words.len();
        // What was recorded here before would be found by who dumps the buffer.
        self.memory.fill(at, rest, 0_u32)?;
        self.bytes += bytes;
        Ok(self)
    }

    /// Appends words as they are, for what is no command.
    ///
    /// # Errors
    ///
    /// [`Error::Full`]; nothing is appended then.
    pub fn words(&mut self, words: &[u32]) -> Result<&mut Self> {
        let bytes = words.len().saturating_mul(4);
        self.check(bytes)?;
        self.memory.copy_from_slice(self.bytes, words)?;
        self.bytes += bytes;
        Ok(self)
    }

    fn check(&self, bytes: usize) -> Result<()> {
        let left = self.capacity - self.bytes;
        if bytes > left {
            return Err(Error::Full { bytes, left });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use skua_spec::command::{Blend, Rectangle, MAX_ARGUMENTS, MAX_DRAW_ARGUMENTS};

    use super::*;
    use crate::sys::Map;

    fn buffer(pages: usize) -> CommandBuffer {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let len = pages * 4096;
        rustix::fs::ftruncate(&file, len as u64).unwrap();
        let map = Map::new(file.as_fd(), 0, len, true).unwrap();
        CommandBuffer::new(Mapping::new(map), 0x10_0000)
    }

    fn recorded(buffer: &CommandBuffer) -> Vec<u32> {
        let mut words = vec![0; buffer.bytes() / 4];
        buffer.memory().copy_to_slice(0, &mut words).unwrap();
        words
    }

    fn command() -> impl Strategy<Value = Command> {
        let address = (0_u64..1 << 40).prop_map(|a| a * 8);
        prop_oneof![
            (1_u16..300).prop_map(|n| Command::Nop { words: n * 2 }),
            (any::<u32>(), address.clone(), 0_u64..1 << 30).prop_map(|(pattern, address, n)| {
                Command::Fill {
                    pattern,
                    address,
                    bytes: n * 4,
                }
            }),
            (address.clone(), address.clone(), 0_u64..1 << 40).prop_map(
                |(source, destination, bytes)| Command::Copy {
                    source,
                    destination,
                    bytes,
                }
            ),
            (address.clone(), address.clone(), 0_u32..999, 0_u32..99).prop_map(
                |(source, destination, bytes, rows)| Command::Copy2d {
                    source,
                    destination,
                    bytes,
                    source_pitch: 1000,
                    destination_pitch: 2000,
                    rows,
                }
            ),
            (address.clone(), any::<u64>())
                .prop_map(|(address, value)| Command::Wait { address, value }),
            (address.clone(), any::<u64>())
                .prop_map(|(address, value)| Command::Signal { address, value }),
            (0_u32..16, any::<u64>())
                .prop_map(|(index, value)| Command::SetRegister { index, value }),
            (0_u32..16, address.clone())
                .prop_map(|(index, address)| Command::StoreRegister { index, address }),
            Just(Command::FlushCache),
            (address.clone(), 0_u16..100, any::<bool>(), 0_usize..=13).prop_map(
                |(address, at, indexed, n)| {
                    let mut arguments = [0; MAX_DRAW_ARGUMENTS];
                    arguments[..n * 2].fill(at.into());
                    Command::Draw(Draw {
                        program: address,
                        program_bytes: 64,
                        blend: Blend::Over,
                        attributes: 3,
                        vertices: address,
                        vertex_count: 9,
                        triangles: 3,
                        indices: indexed.then_some(address),
                        target: address,
                        pitch: 1024,
                        scissor: Rectangle {
                            left: at,
                            top: at,
                            right: 101,
                            bottom: 102,
                        },
                        arguments,
                        argument_count: n * 2,
                    })
                }
            ),
            (address, 0_usize..=MAX_ARGUMENTS / 2, any::<u32>()).prop_map(|(program, n, word)| {
                let mut arguments = [0; MAX_ARGUMENTS];
                arguments[..n * 2].fill(word);
                Command::Dispatch(Dispatch {
                    program,
                    program_bytes: 64,
                    shared_bytes: 128,
                    groups: [3, 2, 1],
                    threads: [8, 8, 1],
                    arguments,
                    argument_count: n * 2,
                })
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_recorded_is_what_the_engine_decodes(
            commands in proptest::collection::vec(command(), 0..20),
        ) {
            let mut buffer = buffer(16);
            buffer.memory().fill(0, 16 * 512, u64::MAX).unwrap();
            for command in &commands {
                buffer.push(command).unwrap();
            }
            let words = recorded(&buffer);
            let mut at = 0;
            for command in &commands {
                let (decoded, len) = Command::decode(&words[at..]).unwrap();
                prop_assert_eq!(&decoded, command);
                at += len;
            }
            prop_assert_eq!(at, words.len());
        }
    }

    #[test]
    fn methods_are_their_commands() {
        let mut buffer = buffer(1);
        buffer.fill(0x1000, 64, 7).unwrap();
        buffer.copy(1, 2, 3).unwrap();
        buffer.copy_2d((0x10, 20), (0x20, 30), 10, 4).unwrap();
        buffer.wait(8, 9).unwrap().signal(16, 10).unwrap();
        buffer.set_register(15, 1 << 40).unwrap();
        buffer.store_register(3, 24).unwrap();
        buffer.flush_cache().unwrap().nop(4).unwrap();
        let words = recorded(&buffer);
        let mut at = 0;
        let mut commands = Vec::new();
        while at < words.len() {
            let (command, len) = Command::decode(&words[at..]).unwrap();
            commands.push(command);
            at += len;
        }
        assert_eq!(
            commands[..2],
            [
                Command::Fill {
                    pattern: 7,
                    address: 0x1000,
                    bytes: 64
                },
                Command::Copy {
                    source: 1,
                    destination: 2,
                    bytes: 3
                },
            ]
        );
        let registers = [
            Command::SetRegister {
                index: 15,
                value: 1 << 40,
            },
            Command::StoreRegister {
                index: 3,
                address: 24,
            },
        ];
        assert_eq!(commands[5..7], registers);
        assert_eq!(commands.len(), 9);
    }

    #[test]
    fn a_full_buffer_takes_nothing() {
        let mut buffer = buffer(1);
        buffer.nop(1020).unwrap();
        assert_eq!(
            buffer.fill(0, 0, 0).err(),
            Some(Error::Full {
                bytes: 24,
                left: 16
            })
        );
        assert_eq!(buffer.bytes(), 4080);
        buffer.nop(4).unwrap();
        assert!(buffer.words(&[0; 2]).is_err());
        buffer.reset().words(&[1, 2]).unwrap();
        assert_eq!(recorded(&buffer), [1, 2]);
    }
}
