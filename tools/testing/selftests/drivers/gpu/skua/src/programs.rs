// SPDX-License-Identifier: MIT

//! The programs, each a family of tests. rustfmt finds them by these lines: those of a macro would
//! not do.

mod adapter_reset;
mod aperture;
mod aperture_cached;
mod aperture_large;
mod aperture_segment;
mod aperture_strict;
mod bad_input;
mod bo;
mod clean;
mod clearer;
mod coarsest;
mod context;
mod context_allocations;
mod coredump;
mod crash;
mod cycles;
mod deaf;
mod debugfs;
mod destroy;
mod device;
mod dmem;
mod evict;
mod fail_nth;
mod fail_nth_aperture;
mod fault;
mod fdinfo;
mod first_programs;
mod hangs;
mod hotplug;
mod insomnia;
mod iommu;
mod isolation;
mod kernel_tools;
mod levels;
mod libskua;
mod lies;
mod limits;
mod lock;
mod matrix;
mod mmap;
mod monitored_fence;
mod offer;
mod overcommit;
mod paging;
mod pci;
mod prime;
mod priority;
mod query;
mod residency;
mod schedule;
mod segment_sets;
mod server_loss;
mod server_loss_busy;
mod server_loss_reset;
mod shared_engine;
mod shares;
mod shrink;
mod small_bar;
mod stopped;
mod submit;
mod suspend;
mod suspend_to_ram;
mod sync;
mod trace;
mod two_gpus;
mod unplug;
mod unpreempted_device;
mod unpreempted_driver;
mod vm_bind;
mod watchdog;
mod wddm;
mod wddm_memory;
mod wddm_memory_no_bar;
mod wddm_memory_small_bar;

use std::process::ExitCode;

macro_rules! table {
    ($($program:ident)*) => {
        &[$((stringify!($program), $program::main)),*]
    };
}

/// A name and the `main` of that.
type Program = (&'static str, fn() -> ExitCode);

pub(crate) const ALL: &[Program] = table![
    adapter_reset
    aperture
    aperture_cached
    aperture_large
    aperture_segment
    aperture_strict
    bad_input
    bo
    clean
    clearer
    coarsest
    context
    context_allocations
    coredump
    crash
    cycles
    deaf
    debugfs
    destroy
    device
    dmem
    evict
    fail_nth
    fail_nth_aperture
    fault
    fdinfo
    first_programs
    hangs
    hotplug
    insomnia
    iommu
    isolation
    kernel_tools
    levels
    libskua
    lies
    limits
    lock
    matrix
    mmap
    monitored_fence
    offer
    overcommit
    paging
    pci
    prime
    priority
    query
    residency
    schedule
    segment_sets
    server_loss
    server_loss_busy
    server_loss_reset
    shared_engine
    shares
    shrink
    small_bar
    stopped
    submit
    suspend
    suspend_to_ram
    sync
    trace
    two_gpus
    unplug
    unpreempted_device
    unpreempted_driver
    vm_bind
    watchdog
    wddm
    wddm_memory
    wddm_memory_no_bar
    wddm_memory_small_bar
];
