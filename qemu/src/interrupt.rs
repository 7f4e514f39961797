// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts (manual section 1): one MSI-X vector for each engine and one for faults.

/// Where the device's interrupts go.
pub trait Interrupts: Send + Sync {
    /// Raises `vector`. Called on the engines' threads, who hold the bus; must not wait.
    fn raise(&self, vector: u32);
}
