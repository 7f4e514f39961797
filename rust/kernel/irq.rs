// SPDX-License-Identifier: GPL-2.0

//! The interrupt vectors of a PCI device with a threaded handler for each.
//!
//! # Model
//!
//! [`pci::Device::alloc_irq_vectors`] and [`irq::ThreadedRegistration`] exist, but the second
//! borrows from the first, so that no structure can hold both, and making the second is `unsafe`.
//! [`Interrupts`] owns both: dropped, it first removes the handlers, waiting for those that run,
//! and then gives the vectors back.
//!
//! C header: `include/linux/interrupt.h`, `include/linux/pci.h`.

use core::ptr;
use kernel::{
    device::Bound,
    irq::{
        Flags,
        ThreadedHandler,
        ThreadedRegistration, //
    },
    pci::{
        self,
        IrqType,
        IrqTypes,
        IrqVectorRegistration, //
    },
    prelude::*, //
};

/// MSI-X vectors `0..n` and their handlers.
///
/// # Examples
///
/// ```ignore
/// let count = fault_vector(engines) + 1;
/// // SAFETY: It is dropped at unbind, which `'a` ends with.
/// let interrupts = unsafe { Interrupts::new(pdev, count, c"skua", |vector| Handler { vector }) }?;
/// ```
///
/// # Invariants
///
/// `handlers` borrow from `vectors`, which is not moved out of its box and is dropped after them
/// (fields are dropped in the order of their declaration).
pub(super) struct Interrupts<'a, T: ThreadedHandler + 'a> {
    /// One for each vector, in their order.
    handlers: KVec<Pin<KBox<ThreadedRegistration<'a, T>>>>,
    /// Freed behind the handlers.
    _vectors: KBox<IrqVectorRegistration<'a>>,
}

impl<'a, T: ThreadedHandler + 'a> Interrupts<'a, T> {
    /// Allocates `count` MSI-X vectors of `pdev` and registers `make(i)` for vector `i`.
    ///
    /// From then on handlers are called. `ENOSPC` if the device has fewer vectors.
    ///
    /// # Safety
    ///
    /// The result must be dropped before `'a` ends.
    pub(super) unsafe fn new(
        pdev: &'a pci::Device<Bound>,
        count: u32,
        name: &'static CStr,
        mut make: impl FnMut(u32) -> T,
    ) -> Result<Self> {
        let types = IrqTypes::default().with(IrqType::MsiX);
        let vectors = KBox::new(pdev.alloc_irq_vectors(count, count, types)?, GFP_KERNEL)?;
        // SAFETY: The box is not moved out of and lives longer than what borrows from it: on an
        // early return locals are dropped in reverse order, `handlers` first, and in `Self` by the
        // order of its fields. `'a` is not longer than the device is bound.
        let borrowed: &'a IrqVectorRegistration<'a> = unsafe { &*ptr::from_ref(&*vectors) };

        let mut handlers = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
        for index in 0..count {
            let vector = borrowed.index(usize::try_from(index)?)?;
            let handler = make(index);
            // SAFETY: It is dropped with `handlers`: here, or with `Self`, by the safety
            // requirements.
            let registration = unsafe {
                ThreadedRegistration::new(vector.into(), Flags::TRIGGER_NONE, name, Ok(handler))
            };
            handlers.push(KBox::pin_init(registration, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        // INVARIANT: As just made.
        Ok(Self {
            handlers,
            _vectors: vectors,
        })
    }

    /// Waits until no handler runs that was called before.
    pub(super) fn synchronize(&self) {
        for handler in &self.handlers {
            handler.synchronize();
        }
    }
}
