// SPDX-License-Identifier: MIT

//! A client ready to run work: an address space, a context on each engine, room for commands.

use std::cell::Cell;
use std::ops::Deref;

use skua_spec::command::{Command, Dispatch, MAX_ARGUMENTS};
use skua_uapi::*;

use crate::client::{map, signal, Client, Place};
use crate::mapping::Mapping;
use crate::raw::Errno;

/// Virtual address of the slots for commands.
const COMMANDS: u64 = 1 << 30;
/// Bytes of commands of one job at most.
const SLOT: u64 = 4096;
/// Jobs that can be under way.
const SLOTS: u64 = 512;
/// Virtual address of the first buffer.
const BUFFERS: u64 = 1 << 32;
/// Their alignment, so that pages of all sizes are possible.
const ALIGNMENT: u64 = 2 << 20;

/// An engine, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Graphics and compute.
    Compute,
    /// Copy and paging.
    Copy,
}

impl Engine {
    /// The two kinds of engine of the default GPU.
    pub const ALL: [Self; 2] = [Self::Compute, Self::Copy];

    /// Its number in the uAPI's list of kinds.
    pub fn kind(self) -> u32 {
        match self {
            Self::Compute => DRM_SKUA_ENGINE_COMPUTE,
            Self::Copy => DRM_SKUA_ENGINE_COPY,
        }
    }
}

/// A buffer object that is bound, and mapped by the CPU.
#[derive(Debug)]
pub struct Buffer {
    /// GEM's, of the rig's client.
    pub handle: u32,
    /// First GPU virtual address of the buffer.
    pub va: u64,
    /// In bytes.
    pub size: u64,
    /// The CPU's mapping of the whole buffer.
    pub cpu: Mapping,
}

/// Work that was accepted, ended or not.
#[derive(Debug)]
pub struct Job<'a> {
    client: &'a Client,
    /// The binary syncobj that it signals.
    pub syncobj: u32,
}

impl Job<'_> {
    /// The client whose syncobj the job signals.
    pub fn client(&self) -> &Client {
        self.client
    }

    /// Waits for its end; a fault is the errno of its fence.
    ///
    /// # Errors
    ///
    /// What its fence says; ETIMEDOUT if it does not end.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Errno> {
        self.client.wait(self.syncobj)
    }

    /// Whether it has ended.
    #[track_caller]
    pub fn has_ended(&self) -> bool {
        self.client.has_signalled(self.syncobj)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // The device may be gone.
        let _ = self.client.syncobj_destroy(self.syncobj);
    }
}

/// A client ready to run work.
#[derive(Debug)]
pub struct Rig {
    /// The client that the ids below are of.
    client: Client,
    /// Has the commands and every buffer of the rig.
    pub vm: u32,
    /// A context on the compute engine.
    pub compute: u32,
    /// A context on the copy engine.
    pub copy: u32,
    /// A slot for each job, used in turn.
    commands: Mapping,
    /// Slots taken so far.
    slot: Cell<u64>,
    /// Address for the next buffer.
    next: Cell<u64>,
}

impl Deref for Rig {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// A rig on the first GPU.
    #[track_caller]
    pub fn new() -> Self {
        Self::of(Client::new())
    }

    /// A rig of a client.
    #[track_caller]
    pub fn of(client: Client) -> Self {
        Self::of_device(client, 0)
    }

    /// A rig of a client's device.
    #[track_caller]
    pub fn of_device(client: Client, device: u32) -> Self {
        let vm = client.vm_create_for(device).expect("VM_CREATE");
        let context = |engine: Engine| {
            client
                .context_create(vm, client.engine(engine.kind()))
                .expect("CONTEXT_CREATE")
        };
        let (compute, copy) = (context(Engine::Compute), context(Engine::Copy));
        let handle = client.bo(Place::System, SLOTS * SLOT);
        client
            .bind_and_wait(vm, &[map(handle, 0, COMMANDS, SLOTS * SLOT)])
            .expect("VM_BIND of the commands");
        let commands = client.map(handle);
        Self {
            client,
            vm,
            compute,
            copy,
            commands,
            slot: Cell::new(0),
            next: Cell::new(BUFFERS),
        }
    }

    /// With the save areas of its contexts, which the first work of each takes.
    #[track_caller]
    pub fn having_worked(self) -> Self {
        for engine in Engine::ALL {
            assert_eq!(
                self.run(engine, &[Command::Nop { words: 2 }]),
                Ok(()),
                "{engine:?}"
            );
        }
        self
    }

    /// The context on an engine.
    pub fn context(&self, engine: Engine) -> u32 {
        match engine {
            Engine::Compute => self.compute,
            Engine::Copy => self.copy,
        }
    }

    /// Another context on an engine.
    #[track_caller]
    pub fn new_context(&self, engine: Engine) -> u32 {
        self.context_create(self.vm, self.engine(engine.kind()))
            .expect("CONTEXT_CREATE")
    }

    /// The same, with its save area.
    #[track_caller]
    pub fn context_having_worked(&self, engine: Engine) -> u32 {
        let context = self.new_context(engine);
        let work = self.start_in(context, &[Command::Nop { words: 2 }]);
        assert_eq!(work.wait(), Ok(()));
        context
    }

    /// Addresses that nothing is bound at.
    pub fn reserve(&self, size: u64) -> u64 {
        let va = self.next.get();
        // A hole behind each, so that nothing is found there by mistake.
        self.next
            .set(va + size.next_multiple_of(ALIGNMENT) + ALIGNMENT);
        va
    }

    /// A buffer in one place, bound and mapped.
    #[track_caller]
    pub fn buffer(&self, place: Place, size: u64) -> Buffer {
        self.bound(self.bo(place, size), size)
    }

    /// A buffer object, bound and mapped.
    #[track_caller]
    pub fn bound(&self, handle: u32, size: u64) -> Buffer {
        let cpu = self.map(handle);
        let va = self.bound_at_will(handle, size);
        Buffer {
            handle,
            va,
            size,
            cpu,
        }
    }

    /// A buffer object bound somewhere; where.
    #[track_caller]
    pub fn bound_at_will(&self, handle: u32, size: u64) -> u64 {
        let va = self.reserve(size);
        self.bind_and_wait(self.vm, &[map(handle, 0, va, size)])
            .unwrap_or_else(|errno| panic!("VM_BIND of {size:#x} bytes: {errno}"));
        va
    }

    /// Whether something of this rig may be bound at an address.
    pub fn uses(&self, va: u64) -> bool {
        (COMMANDS..COMMANDS + SLOTS * SLOT).contains(&va)
            || (BUFFERS..self.next.get()).contains(&va)
    }

    /// Writes commands where the GPU finds them.
    #[track_caller]
    pub fn write(&self, commands: &[Command]) -> drm_skua_buffer {
        let words: Vec<u32> = commands
            .iter()
            .flat_map(|command| command.encode().words().to_vec())
            .collect();
        self.write_words(&words)
    }

    /// Writes words where the GPU finds them as commands.
    #[track_caller]
    pub fn write_words(&self, words: &[u32]) -> drm_skua_buffer {
        let size = u32::try_from(size_of_val(words)).expect("a size");
        assert!(u64::from(size) <= SLOT, "{size} bytes of commands");
        let offset = self.slot.get() % SLOTS * SLOT;
        self.slot.set(self.slot.get() + 1);
        self.commands
            .write_words(usize::try_from(offset).expect("an offset"), words);
        drm_skua_buffer {
            va: COMMANDS + offset,
            size,
            flags: 0,
        }
    }

    /// Submits commands to an engine.
    #[track_caller]
    pub fn start(&self, engine: Engine, commands: &[Command]) -> Job<'_> {
        self.start_in(self.context(engine), commands)
    }

    /// Submits commands to a context.
    #[track_caller]
    pub fn start_in(&self, context: u32, commands: &[Command]) -> Job<'_> {
        self.start_after(context, commands, &[])
            .unwrap_or_else(|errno| panic!("SUBMIT: {errno}"))
    }

    /// Submits commands to a context behind what `syncs` wait for; they may signal, too.
    ///
    /// # Errors
    ///
    /// The errno of SUBMIT.
    #[track_caller]
    pub fn start_after(
        &self,
        context: u32,
        commands: &[Command],
        syncs: &[drm_skua_sync],
    ) -> Result<Job<'_>, Errno> {
        let job = Job {
            client: &self.client,
            syncobj: self.syncobj(),
        };
        let mut syncs = syncs.to_vec();
        syncs.push(signal(job.syncobj));
        let buffers = match commands {
            [] => vec![],
            commands => vec![self.write(commands)],
        };
        self.submit(context, &buffers, &syncs)?;
        Ok(job)
    }

    /// Runs commands to their end.
    ///
    /// # Errors
    ///
    /// What their fence says.
    #[track_caller]
    pub fn run(&self, engine: Engine, commands: &[Command]) -> Result<(), Errno> {
        self.start(engine, commands).wait()
    }

    /// A buffer with a program.
    #[track_caller]
    pub fn program(&self, instructions: &[u64]) -> Buffer {
        let size = size_of_val(instructions) as u64;
        let buffer = self.buffer(Place::System, size.next_multiple_of(4096));
        for (n, instruction) in instructions.iter().enumerate() {
            buffer.cpu.write(8 * n, *instruction);
        }
        buffer
    }
}

/// A freshly bound device does all kinds of work for a new client.
#[track_caller]
pub fn expect_working() {
    let rig = Rig::new();
    for place in Place::ALL {
        let (source, target) = (rig.buffer(place, 64 << 10), rig.buffer(place, 64 << 10));
        source.cpu.expect("new memory", |_| 0);
        for engine in Engine::ALL {
            assert_eq!(
                rig.run(
                    engine,
                    &[
                        fill(5, source.va, 64 << 10),
                        copy(source.va, target.va, 64 << 10)
                    ]
                ),
                Ok(())
            );
            target.cpu.expect("a copy", |_| 5 << 32 | 5);
            target.cpu.fill(|_| 0);
        }
    }
}

/// A dispatch of one thread.
pub fn dispatch(program: &Buffer, instructions: &[u64], arguments: &[u32]) -> Command {
    dispatch_at(program.va, instructions, arguments)
}

/// [`dispatch`] of a program by its address.
pub fn dispatch_at(program: u64, instructions: &[u64], arguments: &[u32]) -> Command {
    let mut padded = [0; MAX_ARGUMENTS];
    padded[..arguments.len()].copy_from_slice(arguments);
    Command::Dispatch(Dispatch {
        program,
        // CAST: at most 64 KiB.
        program_bytes: size_of_val(instructions) as u32,
        shared_bytes: 0,
        groups: [1; 3],
        threads: [1; 3],
        arguments: padded,
        argument_count: arguments.len().next_multiple_of(2),
    })
}

/// Fills with a 32-bit pattern.
pub fn fill(pattern: u32, address: u64, bytes: u64) -> Command {
    Command::Fill {
        pattern,
        address,
        bytes,
    }
}

/// COPY; of any alignment.
pub fn copy(source: u64, destination: u64, bytes: u64) -> Command {
    Command::Copy {
        source,
        destination,
        bytes,
    }
}

/// SIGNAL: 64 bits, behind all before it.
pub fn write(address: u64, value: u64) -> Command {
    Command::Signal { address, value }
}

/// Waits until there is at least this value.
pub fn wait_value(address: u64, value: u64) -> Command {
    Command::Wait { address, value }
}
