// SPDX-License-Identifier: GPL-2.0 OR MIT

//! MSI-X vectors as the event descriptors that QEMU gave.

use std::fs::File;
use std::io::Write;
use std::sync::{PoisonError, RwLock};

use skua_gpu::interrupt::Interrupts;

/// By vector, the event descriptor to write to; `None` while the guest has none.
#[derive(Debug)]
pub(crate) struct Vectors(RwLock<Vec<Option<File>>>);

impl Vectors {
    pub(crate) fn new(count: u32) -> Self {
        Self(RwLock::new((0..count).map(|_| None).collect()))
    }

    /// Gives the vectors from `start` on these descriptors; the rest of `count` has none then.
    pub(crate) fn set(&self, start: u32, count: u32, files: Vec<File>) {
        let mut vectors = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut files = files.into_iter();
        for vector in vectors.iter_mut().skip(start as usize).take(count as usize) {
            *vector = files.next();
        }
    }
}

impl Interrupts for Vectors {
    fn raise(&self, vector: u32) {
        let vectors = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // Without a descriptor the guest has not enabled the vector: the interrupt is lost, as on
        // a bus; the status page still tells.
        if let Some(Some(file)) = vectors.get(vector as usize) {
            let mut file: &File = file;
            if let Err(error) = file.write_all(&1u64.to_ne_bytes()) {
                tracing::warn!(vector, %error, "cannot raise an interrupt");
            }
        }
    }
}
