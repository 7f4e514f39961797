// SPDX-License-Identifier: MIT

//! Trim notifications: a device is told when others leave it less of a budget than what is resident
//! for it.
//!
//! The kernel says so by an event in the adapter's file. As long as a device has callbacks it has a
//! thread for them, which reads events, passes on those of other devices, asks the kernel by how
//! much the budget is exceeded, and calls. Nobody has to follow: a device that exceeds its budget
//! is as right as another, and its work waits for others' in turn.

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle, ThreadId},
};

use libskua::Error;
use rustix::event::EventfdFlags;

use crate::{
    adapter::crowded,
    device::Device,
    lock,
    page_tables::PageTables,
    status::{Result, Status},
};

bitflags::bitflags! {
    /// What is to be trimmed, and when (`D3DDDI_TRIMRESIDENCYSET_FLAGS`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TrimFlags: u32 {
        /// What was not used for a while: never here, where nothing asks for that.
        const PERIODIC_TRIM = 1 << 0;
        /// The same, from the beginning again: never here.
        const RESTART_PERIODIC_TRIM = 1 << 1;
        /// So many bytes as [`TrimNotification::bytes_to_trim`] says.
        const TRIM_TO_BUDGET = 1 << 2;
    }
}

/// What a device is told (`D3DKMT_TRIMNOTIFICATION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimNotification {
    /// What is to be trimmed.
    pub flags: TrimFlags,
    /// Bytes by which the device exceeds its budget, when the kernel was asked for it.
    pub bytes_to_trim: u64,
}

type Callback = Box<dyn FnMut(TrimNotification) + Send>;

/// A callback's own lock, held while it runs; empty when it was unregistered.
type Slot = Arc<Mutex<Option<Callback>>>;

/// The callbacks that a device's client has registered, and the thread that calls them.
pub(crate) struct TrimCallbacks {
    /// Not locked while one runs.
    state: Mutex<State>,
    /// An eventfd: the thread is to look at `state`.
    changed: OwnedFd,
}

#[derive(Default)]
struct State {
    /// All that are registered, in that order.
    slots: Vec<Slot>,
    /// The kernel has said that the device is to trim.
    is_told: bool,
    /// Calls them, as long as there are any; who ends it takes this.
    thread: Option<JoinHandle<()>>,
    /// Its number, as long as it may call.
    caller: Option<ThreadId>,
    /// The device is destroyed.
    is_stopped: bool,
}

impl State {
    /// Whether a callback calls this.
    fn is_caller(&self) -> bool {
        self.caller == Some(thread::current().id())
    }
}

impl fmt::Debug for TrimCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimCallbacks").finish_non_exhaustive()
    }
}

impl TrimCallbacks {
    /// None. INSUFFICIENT_RESOURCES without a descriptor for it; NO_MEMORY.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (name, changed) = ("eventfd", rustix::event::eventfd(0, flags));
        Ok(Arc::new(Self {
            state: Mutex::default(),
            changed: changed.map_err(|errno| crowded(Error::System { name, errno }))?,
        }))
    }

    /// Has the thread look.
    fn kick(&self) {
        // At its limit it is readable already.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// Adds one, and a thread that does `calls` if there is none. NO_MEMORY; INVALID_HANDLE if the
    /// device is destroyed.
    fn add(&self, callback: Callback, calls: impl FnOnce() + Send + 'static) -> Result<Slot> {
        let slot = Arc::new(Mutex::new(Some(callback)));
        let mut state = lock(&self.state);
        if state.is_stopped {
            return Err(Status::INVALID_HANDLE);
        }
        if state.thread.is_none() {
            let thread = thread::Builder::new().name("wddm-trims".into());
            let thread = thread.spawn(calls).map_err(|_| Status::NO_MEMORY)?;
            state.caller = Some(thread.thread().id());
            state.thread = Some(thread);
        }
        state.slots.push(slot.clone());
        Ok(slot)
    }

    /// Has a callback be called no more, and waits until it does not run, unless one calls this.
    fn remove(&self, slot: &Slot) {
        lock(&self.state)
            .slots
            .retain(|other| !Arc::ptr_eq(other, slot));
        self.kick();
        if !lock(&self.state).is_caller() {
            let callback = lock(slot).take();
            drop(callback);
        }
    }

    /// Has none be called any more, and waits until none runs, unless one calls this.
    pub(crate) fn stop(&self) {
        let (slots, thread) = {
            let mut state = lock(&self.state);
            state.is_stopped = true;
            let is_caller = state.is_caller();
            let thread = state.thread.take_if(|_| !is_caller);
            (std::mem::take(&mut state.slots), thread)
        };
        self.kick();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        drop(slots);
    }

    /// The kernel has said that the device is to trim.
    pub(crate) fn tell(&self) {
        lock(&self.state).is_told = true;
        self.kick();
    }

    /// Waits until it has said so; false if there is nobody to call any more.
    fn wait(&self, tables: &PageTables) -> bool {
        loop {
            {
                let mut state = lock(&self.state);
                if state.slots.is_empty() {
                    (state.thread, state.caller) = (None, None);
                    return false;
                }
                if std::mem::take(&mut state.is_told) {
                    return true;
                }
            }
            tables.wait_for_events(&self.changed);
        }
    }

    /// Calls all; with no lock held but each one's own.
    fn call(&self, notification: TrimNotification) {
        let slots = lock(&self.state).slots.clone();
        let is_there = |slot: &Slot| {
            let slots = &lock(&self.state).slots;
            slots.iter().any(|other| Arc::ptr_eq(other, slot))
        };
        for slot in slots {
            // Another callback may have unregistered it.
            if is_there(&slot) {
                if let Some(callback) = &mut *lock(&slot) {
                    callback(notification);
                }
            }
        }
    }

    /// What the thread does for a device.
    fn call_back(&self, tables: &PageTables) {
        while self.wait(tables) {
            match tables.excess() {
                Ok(bytes_to_trim) if bytes_to_trim > 0 => self.call(TrimNotification {
                    flags: TrimFlags::TRIM_TO_BUDGET,
                    bytes_to_trim,
                }),
                _ => {}
            }
        }
    }
}

/// A callback that is registered, until this is dropped.
#[must_use = "it is unregistered when it is dropped"]
pub struct TrimRegistration {
    /// The device that is told, which it keeps.
    device: Device,
    /// Which of its callbacks this is.
    slot: Slot,
}

impl fmt::Debug for TrimRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimRegistration").finish_non_exhaustive()
    }
}

impl Device {
    /// Has a function be called when the device exceeds its budget because of others
    /// (`D3DKMTRegisterTrimNotification`), by a thread for that: it may wait, and destroy the
    /// device. Without an [`PagingQueue::make_resident`](crate::PagingQueue::make_resident) or
    /// [`Device::evict`] there is nothing to trim, and nobody is told.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if the device is destroyed; DEVICE_REMOVED; NO_MEMORY if no thread can be
    /// made.
    pub fn register_trim_notification(
        &self,
        callback: impl FnMut(TrimNotification) + Send + 'static,
    ) -> Result<TrimRegistration, Status> {
        let scheduler = self.scheduler();
        scheduler.check_alive()?;
        let (trims, tables) = (scheduler.trims.clone(), scheduler.tables().clone());
        let calls = move || trims.call_back(&tables);
        Ok(TrimRegistration {
            slot: scheduler.trims.add(Box::new(callback), calls)?,
            device: self.clone(),
        })
    }
}

impl TrimRegistration {
    /// Unregisters it (`D3DKMTUnregisterTrimNotification`): the function is not called any more. If
    /// it runs just now, this waits until it has returned, unless it is called by a callback of the
    /// device. Again it does nothing.
    pub fn unregister(&self) {
        if !self.device.is_inherited() {
            self.device.scheduler().trims.remove(&self.slot);
        }
    }
}

impl Drop for TrimRegistration {
    fn drop(&mut self) {
        self.unregister();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const TOLD: TrimNotification = TrimNotification {
        flags: TrimFlags::TRIM_TO_BUDGET,
        bytes_to_trim: 1,
    };

    #[test]
    fn who_unregisters_waits_for_a_call_under_way() {
        let callbacks = TrimCallbacks::new().unwrap();
        let (entered, enters) = mpsc::channel();
        let (leave, leaves) = mpsc::channel::<()>();
        let callback = Box::new(move |_| {
            entered.send(()).unwrap();
            leaves.recv().unwrap();
        });
        let calls = callbacks.clone();
        let slot = callbacks.add(callback, move || (0..2).for_each(|_| calls.call(TOLD)));
        let slot = slot.unwrap();
        enters.recv().unwrap();
        thread::scope(|scope| {
            let removes = scope.spawn(|| callbacks.remove(&slot));
            thread::sleep(std::time::Duration::from_millis(50));
            assert!(!removes.is_finished(), "it runs");
            leave.send(()).unwrap();
            // Its end of the channel is gone with it.
            removes.join().unwrap();
            assert!(leave.send(()).is_err());
        });
        callbacks.stop();
        assert!(enters.recv().is_err(), "it was called again");
    }

    #[test]
    fn a_callback_unregisters_itself_and_others() {
        let callbacks = TrimCallbacks::new().unwrap();
        let slots = Arc::new(Mutex::new(Vec::new()));
        let (called, calls) = mpsc::channel();
        let mut added = lock(&slots);
        for n in 0..3 {
            let (inner, all, called) = (callbacks.clone(), slots.clone(), called.clone());
            let callback = Box::new(move |told| {
                assert_eq!(told, TOLD);
                called.send(n).unwrap();
                lock(&all).iter().for_each(|slot| inner.remove(slot));
            });
            let (caller, all) = (callbacks.clone(), slots.clone());
            let slot = callbacks.add(callback, move || {
                // When all are there.
                drop(lock(&all));
                (0..2).for_each(|_| caller.call(TOLD));
            });
            added.push(slot.unwrap());
        }
        drop(added);
        assert_eq!(calls.recv(), Ok(0));
        callbacks.stop();
        assert_eq!(calls.try_iter().count(), 0);
    }

    #[test]
    fn a_callback_may_unregister_while_its_device_ends() {
        let callbacks = TrimCallbacks::new().unwrap();
        let own = Arc::new(Mutex::new(None));
        let (entered, enters) = mpsc::channel();
        let (inner, slot) = (callbacks.clone(), own.clone());
        let callback = Box::new(move |_| {
            entered.send(()).unwrap();
            while !lock(&inner.state).is_stopped {
                thread::yield_now();
            }
            lock(&slot).iter().for_each(|slot| inner.remove(slot));
        });
        let (calls, added) = (callbacks.clone(), own.clone());
        let mut slot = lock(&own);
        let added = callbacks.add(callback, move || {
            drop(lock(&added));
            calls.call(TOLD);
        });
        *slot = Some(added.unwrap());
        drop(slot);
        enters.recv().unwrap();
        // In a thread, which may be stuck.
        let (ended, ends) = mpsc::channel();
        let stops = callbacks.clone();
        thread::spawn(move || {
            stops.stop();
            ended.send(())
        });
        let minute = std::time::Duration::from_secs(60);
        assert_eq!(ends.recv_timeout(minute), Ok(()));
        let late = callbacks.add(Box::new(|_| ()), || ());
        assert_eq!(late.err(), Some(Status::INVALID_HANDLE));
    }
}
