// SPDX-License-Identifier: MIT

//! Trim notifications: a device is told when others leave it less of a budget than what is resident
//! for it.
//!
//! The kernel says so by an event in the adapter's file, which any device's attendant reads and
//! passes on to that of the device. That asks the kernel by how much the budget
//! is exceeded, and calls back. Nobody has to follow: a device that exceeds its budget is as right
//! as another, and its work waits for others' in turn.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
    thread::{self, ThreadId},
};

use crate::{
    device::Device,
    lock,
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
#[derive(Default)]
pub(crate) struct TrimCallbacks {
    /// All that are registered, in that order. Not locked while one runs.
    slots: Mutex<Vec<Slot>>,
    /// The thread that calls.
    caller: OnceLock<ThreadId>,
}

impl fmt::Debug for TrimCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimCallbacks").finish_non_exhaustive()
    }
}

impl TrimCallbacks {
    fn add(&self, callback: Callback) -> Slot {
        let slot = Arc::new(Mutex::new(Some(callback)));
        lock(&self.slots).push(slot.clone());
        slot
    }

    /// Has a callback be called no more, and waits until it does not run, unless this is it.
    fn remove(&self, slot: &Slot) {
        lock(&self.slots).retain(|other| !Arc::ptr_eq(other, slot));
        if !self.is_caller() {
            let callback = lock(slot).take();
            drop(callback);
        }
    }

    /// The thread that this is called on is the one that calls back.
    pub(crate) fn set_caller(&self) {
        let _ = self.caller.set(thread::current().id());
    }

    pub(crate) fn is_caller(&self) -> bool {
        self.caller.get() == Some(&thread::current().id())
    }

    /// Calls all; with no lock held but each one's own.
    pub(crate) fn call(&self, notification: TrimNotification) {
        let slots = lock(&self.slots).clone();
        for slot in slots {
            // Another callback may have unregistered it.
            if lock(&self.slots)
                .iter()
                .any(|other| Arc::ptr_eq(other, &slot))
            {
                if let Some(callback) = &mut *lock(&slot) {
                    callback(notification);
                }
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
    /// (`D3DKMTRegisterTrimNotification`), by the device's own thread: what it calls in its turn
    /// may wait for room, and destroy the device, but is not to wait for what that thread does:
    /// updates of addresses, and the end of an allocation that one of them maps. Without an
    /// [`PagingQueue::make_resident`](crate::PagingQueue::make_resident) or [`Device::evict`] there
    /// is nothing to trim, and nobody is told.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if the device is destroyed; DEVICE_REMOVED; NO_MEMORY if no thread can be
    /// made.
    pub fn register_trim_notification(
        &self,
        callback: impl FnMut(TrimNotification) + Send + 'static,
    ) -> Result<TrimRegistration, Status> {
        self.scheduler().attend_trims()?;
        Ok(TrimRegistration {
            slot: self.scheduler().trims.add(Box::new(callback)),
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
        let callbacks = Arc::new(TrimCallbacks::default());
        let (entered, enters) = mpsc::channel();
        let (leave, leaves) = mpsc::channel::<()>();
        let slot = callbacks.add(Box::new(move |_| {
            entered.send(()).unwrap();
            leaves.recv().unwrap();
        }));
        let caller = {
            let callbacks = callbacks.clone();
            thread::spawn(move || {
                callbacks.set_caller();
                callbacks.call(TOLD);
                callbacks.call(TOLD);
            })
        };
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
        caller.join().unwrap();
        assert!(enters.recv().is_err(), "it was called again");
    }

    #[test]
    fn a_callback_unregisters_itself_and_others() {
        let callbacks = Arc::new(TrimCallbacks::default());
        callbacks.set_caller();
        let slots = Arc::new(Mutex::new(Vec::new()));
        let (called, calls) = mpsc::channel();
        for n in 0..3 {
            let (inner, all, called) = (callbacks.clone(), slots.clone(), called.clone());
            let slot = callbacks.add(Box::new(move |told| {
                assert_eq!(told, TOLD);
                called.send(n).unwrap();
                lock(&all).iter().for_each(|slot| inner.remove(slot));
            }));
            lock(&slots).push(slot);
        }
        callbacks.call(TOLD);
        callbacks.call(TOLD);
        assert_eq!(calls.try_iter().collect::<Vec<_>>(), [0]);
    }
}
