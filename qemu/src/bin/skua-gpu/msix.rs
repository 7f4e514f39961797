// SPDX-License-Identifier: GPL-2.0 OR MIT

//! MSI-X vectors as the eventfds that QEMU hands over.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use skua_gpu::interrupt::Interrupts;

/// The eventfd of each vector; a vector without one is silent.
#[derive(Debug, Default)]
pub(crate) struct Msix {
    vectors: Mutex<Vec<Option<File>>>,
}

impl Msix {
    /// Gives vectors from `start` on their eventfds; `None` takes one away.
    pub(crate) fn assign(&self, start: u32, fds: impl IntoIterator<Item = Option<File>>) {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, fd) in (start as usize..).zip(fds) {
            if index >= vectors.len() {
                vectors.resize_with(index + 1, || None);
            }
            vectors[index] = fd;
        }
    }

    /// Takes all eventfds away.
    pub(crate) fn clear(&self) {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        vectors.clear();
    }
}

impl Interrupts for Msix {
    fn raise(&self, vector: u32) {
        let vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(fd)) = vectors.get(vector as usize) {
            // An eventfd takes one at once unless it holds 2^64 - 2: then it is raised anyway.
            let mut fd = fd;
            if let Err(error) = fd.write_all(&1u64.to_ne_bytes()) {
                tracing::warn!(vector, %error, "an interrupt was not delivered");
            }
        }
    }
}
