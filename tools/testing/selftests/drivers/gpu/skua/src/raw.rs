// SPDX-License-Identifier: MIT

//! System calls as they are: no retry, no check, no opinion. These tests are about what the kernel
//! makes of an argument, so that nothing between them and the kernel may mend it.

use std::ffi::c_void;
use std::mem::size_of;
use std::os::fd::AsFd;

pub use libskua::raw::{argument_size, with_size};
pub use nix::errno::Errno;
pub use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitStatus};

/// Calls an ioctl. Addresses in the argument are the kernel's to check; those that it writes
/// through are those of memory that the caller lends it for the call, or of none.
///
/// # Errors
///
/// The errno.
///
/// # Panics
///
/// If the number says that the argument is larger than it is.
pub fn ioctl<T>(fd: impl AsFd, number: u32, argument: &mut T) -> Result<(), Errno> {
    ioctl_value(fd, number, argument).map(drop)
}

/// The same for an ioctl that returns a number.
///
/// # Errors
///
/// The errno.
///
/// # Panics
///
/// If the number says that the argument is larger than it is.
#[expect(unsafe_code, reason = "a system call")]
pub fn ioctl_value<T>(fd: impl AsFd, number: u32, argument: &mut T) -> Result<i32, Errno> {
    assert!(argument_size(number) <= size_of::<T>());
    let argument = std::ptr::from_mut(argument).cast();
    // SAFETY: the kernel reads and writes at most as many bytes of the argument as its number
    // says, which are there.
    unsafe { libskua::raw::ioctl(fd.as_fd(), number, argument) }.map_err(errno)
}

fn errno(errno: libskua::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Calls an ioctl with an address that need not be one.
///
/// # Errors
///
/// The errno.
#[expect(unsafe_code, reason = "a system call")]
pub fn ioctl_at(fd: impl AsFd, number: u32, address: u64) -> Result<(), Errno> {
    // CAST: the same on the architectures that the driver knows.
    let argument = std::ptr::without_provenance_mut::<c_void>(address as usize);
    // SAFETY: the address is one of no memory of this process, or the kernel's own: nothing can be
    // written there.
    unsafe { libskua::raw::ioctl(fd.as_fd(), number, argument) }
        .map(drop)
        .map_err(errno)
}

/// Runs a function in a forked child, which has this process' memory mappings; whether it returned
/// true. A child that dies of a signal did not.
///
/// # Panics
///
/// If there can be no child.
pub fn in_child(function: impl FnOnce() -> bool) -> bool {
    Child::start(function).wait()
}

/// Whether a forked child, which has this process' memory mappings, dies of a signal in a function.
///
/// # Panics
///
/// If there can be no child.
pub fn dies_of<R>(signal: Signal, function: impl FnOnce() -> R) -> bool {
    let child = Child::start(|| {
        function();
        true
    });
    matches!(child.end(), WaitStatus::Signaled(_, of, _) if of == signal)
}

/// A forked child that runs a function.
#[derive(Debug)]
#[must_use = "it is to be waited for"]
pub struct Child(nix::unistd::Pid);

impl Child {
    /// Starts one, which has this process' memory mappings.
    ///
    /// # Panics
    ///
    /// If there can be no child.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn start(function: impl FnOnce() -> bool) -> Self {
        use nix::unistd::{fork, ForkResult};
        // SAFETY: a test is single-threaded where it forks, so that the child finds no lock taken.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Child => std::process::exit(i32::from(!function())),
            ForkResult::Parent { child } => Self(child),
        }
    }

    /// Kills it, wherever it is.
    ///
    /// # Panics
    ///
    /// If that cannot be.
    pub fn kill(&self) {
        nix::sys::signal::kill(self.0, Signal::SIGKILL).expect("kill");
    }

    /// Waits for its end; whether the function returned true.
    ///
    /// # Panics
    ///
    /// If it cannot be waited for.
    pub fn wait(self) -> bool {
        matches!(self.end(), WaitStatus::Exited(_, 0))
    }

    fn end(self) -> WaitStatus {
        let status = waitpid(self.0, None).expect("waitpid");
        if !matches!(status, WaitStatus::Exited(_, 0)) {
            println!("the child: {status:?}");
        }
        status
    }
}

/// Calls a function during which signals come that interrupt system calls: one comes to nothing if
/// the function is not in a call yet. The next takes twice as long each time, so that who calls
/// again gets to sleep.
///
/// # Panics
///
/// If the timer cannot be set.
#[expect(unsafe_code, reason = "a system call")]
pub fn with_alarm<R>(mut after: std::time::Duration, function: impl FnOnce() -> R) -> R {
    use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet};
    use std::sync::mpsc::{channel, RecvTimeoutError};
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGALRM, &action) }.expect("sigaction");
    let this = nix::sys::pthread::pthread_self();
    let (under_way, end) = channel::<()>();
    let timer = std::thread::spawn(move || {
        while end.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            nix::sys::pthread::pthread_kill(this, Signal::SIGALRM)?;
            after *= 2;
        }
        Ok::<(), Errno>(())
    });
    let result = function();
    drop(under_way);
    timer.join().expect("the timer").expect("pthread_kill");
    result
}
