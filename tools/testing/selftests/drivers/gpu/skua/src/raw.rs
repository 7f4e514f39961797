// SPDX-License-Identifier: MIT

//! System calls as they are: no retry, no check, no opinion. These tests are about what the kernel
//! makes of an argument, so that nothing between them and the kernel may mend it.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

pub use nix::errno::Errno;

/// The bytes that an ioctl's number says its argument has.
pub const fn argument_size(number: u32) -> usize {
    ((number >> 16) & 0x3fff) as usize
}

/// An ioctl's number with another size of its argument.
pub const fn with_size(number: u32, size: usize) -> u32 {
    // CAST: sizes of arguments are below 2^14.
    (number & !(0x3fff << 16)) | (((size & 0x3fff) as u32) << 16)
}

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
    // SAFETY: the kernel reads and writes at most as many bytes of the argument as its number
    // says, which are there.
    let result = unsafe {
        nix::libc::ioctl(
            fd.as_fd().as_raw_fd(),
            number.into(),
            std::ptr::from_mut(argument),
        )
    };
    Errno::result(result)
}

/// Calls an ioctl with an address that need not be one.
///
/// # Errors
///
/// The errno.
#[expect(unsafe_code, reason = "a system call")]
pub fn ioctl_at(fd: impl AsFd, number: u32, address: u64) -> Result<(), Errno> {
    // SAFETY: the address is one of no memory of this process, or the kernel's own: nothing can be
    // written there.
    let result = unsafe { nix::libc::ioctl(fd.as_fd().as_raw_fd(), number.into(), address) };
    Errno::result(result).map(|_| ())
}

/// Runs a function in a forked child, which has this process' memory mappings; whether it returned
/// true. A child that dies of a signal did not.
///
/// # Panics
///
/// If there can be no child.
#[expect(unsafe_code, reason = "a system call")]
pub fn in_child(function: impl FnOnce() -> bool) -> bool {
    use nix::sys::wait::{waitpid, WaitStatus};
    use nix::unistd::{fork, ForkResult};
    // SAFETY: a test is single-threaded where it forks, so that the child finds no lock taken.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => std::process::exit(i32::from(!function())),
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("waitpid");
            if !matches!(status, WaitStatus::Exited(_, 0)) {
                println!("the child: {status:?}");
            }
            matches!(status, WaitStatus::Exited(_, 0))
        }
    }
}

/// Calls a function during which a signal comes that interrupts system calls.
///
/// # Panics
///
/// If the timer cannot be set.
#[expect(unsafe_code, reason = "a system call")]
pub fn with_alarm<R>(after: std::time::Duration, function: impl FnOnce() -> R) -> R {
    use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGALRM, &action) }.expect("sigaction");
    let this = nix::sys::pthread::pthread_self();
    let timer = std::thread::spawn(move || {
        std::thread::sleep(after);
        nix::sys::pthread::pthread_kill(this, Signal::SIGALRM)
    });
    let result = function();
    timer.join().expect("the timer").expect("pthread_kill");
    result
}
