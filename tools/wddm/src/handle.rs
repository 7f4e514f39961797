// SPDX-License-Identifier: MIT

//! Handles: how a C interface names objects (`D3DKMT_HANDLE`).
//!
//! A [`Handle`] is 32 bits, never zero: the number of a slot in the table, and the slot's
//! *generation*, which grows whenever the slot's object is destroyed. So a handle that outlived its
//! object names nothing, and not the object that took its place.
//!
//! ```text
//!     31          20 19                    0
//!    ┌──────────────┬───────────────────────┐
//!    │  generation  │  slot, counted from 1 │
//!    └──────────────┴───────────────────────┘
//! ```
//!
//! A generation has 12 bits and starts again some day. To make that day late, a slot is used again
//! only when [`SPARE`] others were freed after it: a stale handle names an object again only after
//! more than a million others were destroyed. When no slot is left that was never used, those that
//! are free are used at once: with almost a million objects it may be after 4096.

use std::collections::{HashSet, VecDeque};

use crate::status::{Result, Status};

/// Bits of the slot's number.
const SLOT_BITS: u32 = 20;
/// Most objects that have a name at a time.
const SLOTS: usize = (1 << SLOT_BITS) - 1;
/// Free slots that are kept back before one is used again.
pub const SPARE: usize = 256;

/// Names an object of a [`crate::Process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u32);

impl Handle {
    /// The handle as the C interface has it.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Any number as a handle; whether it names something, the table knows.
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    const fn new(slot: usize, generation: u32) -> Self {
        // CAST: the slot is at most SLOTS.
        Self((generation << SLOT_BITS) | (slot as u32 + 1))
    }

    const fn slot(self) -> Option<usize> {
        // CAST: 20 bits.
        ((self.0 & SLOTS as u32) as usize).checked_sub(1)
    }

    const fn generation(self) -> u32 {
        self.0 >> SLOT_BITS
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// How many objects it has had, as far as 12 bits go.
    generation: u32,
    /// The object; `None` where the slot is free.
    object: Option<T>,
}

/// Objects by their handles.
#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    /// A handle has the index and the generation.
    slots: Vec<Slot<T>>,
    /// The slot that was freed first is used first.
    free: VecDeque<usize>,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }
}

impl<T> HandleTable<T> {
    /// Gives an object a name that no living object has.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if a million have names.
    pub(crate) fn insert(&mut self, object: T) -> Result<Handle> {
        let used = if self.free.len() > SPARE || self.slots.len() >= SLOTS {
            self.free.pop_front()
        } else {
            None
        };
        let slot = match used {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(Slot {
                    generation: 0,
                    object: None,
                });
                self.slots.len() - 1
            }
            None => return Err(Status::INSUFFICIENT_RESOURCES),
        };
        let entry = self.slots.get_mut(slot).ok_or(Status::UNSUCCESSFUL)?;
        entry.object = Some(object);
        Ok(Handle::new(slot, entry.generation))
    }

    /// The object that `handle` names.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if there is none.
    pub(crate) fn get(&self, handle: Handle) -> Result<&T> {
        handle
            .slot()
            .and_then(|slot| self.slots.get(slot))
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.object.as_ref())
            .ok_or(Status::INVALID_HANDLE)
    }

    /// As [`HandleTable::get`], to change it.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Result<&mut T> {
        handle
            .slot()
            .and_then(|slot| self.slots.get_mut(slot))
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.object.as_mut())
            .ok_or(Status::INVALID_HANDLE)
    }

    /// Takes the object that `handle` names out of the table: the handle names nothing from then
    /// on.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if it names nothing.
    pub(crate) fn remove(&mut self, handle: Handle) -> Result<T> {
        let number = handle.slot().ok_or(Status::INVALID_HANDLE)?;
        let slot = self
            .slots
            .get_mut(number)
            .filter(|slot| slot.generation == handle.generation())
            .ok_or(Status::INVALID_HANDLE)?;
        let object = slot.object.take().ok_or(Status::INVALID_HANDLE)?;
        slot.generation = (slot.generation + 1) & (u32::MAX >> SLOT_BITS);
        self.free.push_back(number);
        Ok(object)
    }

    /// Takes the name of an object away, and those of all below it: of which it is the parent, and
    /// so on. The objects are the caller's to drop. Looks at the table once for each level.
    ///
    /// # Errors
    ///
    /// INVALID_HANDLE if it names nothing.
    pub(crate) fn remove_tree(
        &mut self,
        root: Handle,
        parent: impl Fn(&T) -> Option<Handle>,
    ) -> Result<Vec<T>> {
        let mut taken = vec![self.remove(root)?];
        let mut parents = HashSet::from([root]);
        while !parents.is_empty() {
            parents = self
                .iter()
                .filter(|(_, object)| parent(object).is_some_and(|p| parents.contains(&p)))
                .map(|(handle, _)| handle)
                .collect();
            for child in &parents {
                taken.push(self.remove(*child)?);
            }
        }
        Ok(taken)
    }

    /// The handles that are in use, with what they name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots.iter().enumerate().filter_map(|(number, slot)| {
            let object = slot.object.as_ref()?;
            Some((Handle::new(number, slot.generation), object))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_names_nothing() {
        let mut table = HandleTable::default();
        let handle = table.insert('a').unwrap();
        assert_ne!(handle.value(), 0);
        for value in [0, 1 << 20, 0xfff0_0000, u32::MAX] {
            let handle = Handle::from_value(value);
            assert_eq!(table.get(handle), Err(Status::INVALID_HANDLE));
            assert_eq!(table.remove(handle), Err(Status::INVALID_HANDLE));
        }
        assert_eq!(table.get(handle), Ok(&'a'));
    }

    #[test]
    fn a_stale_handle_names_nothing_for_a_million_objects() {
        let mut table = HandleTable::default();
        let stale = table.insert(0).unwrap();
        table.remove(stale).unwrap();
        for n in 0..1_000_000 {
            let handle = table.insert(n).unwrap();
            assert_eq!(table.get(stale), Err(Status::INVALID_HANDLE), "after {n}");
            table.remove(handle).unwrap();
        }
    }

    #[test]
    fn a_tree_goes_as_a_whole_in_one_look_for_each_level() {
        let mut table = HandleTable::default();
        let root = table.insert(None).unwrap();
        let other = table.insert(None).unwrap();
        let middle = [(); 3].map(|()| table.insert(Some(root)).unwrap());
        let leaves = 1000;
        for n in 0..leaves {
            table.insert(Some(middle[n % 2])).unwrap();
        }
        let spared = table.insert(Some(other)).unwrap();
        let looks = std::cell::Cell::new(0);
        let taken = table.remove_tree(root, |parent| {
            looks.set(looks.get() + 1);
            *parent
        });
        assert_eq!(taken.map(|taken| taken.len()), Ok(1 + 3 + leaves));
        assert!(looks.get() <= 3 * (leaves + 6), "{} looks", looks.get());
        let left: HashSet<_> = table.iter().map(|(handle, _)| handle).collect();
        assert_eq!(left, HashSet::from([other, spared]));
        let gone = table.remove_tree(root, |parent| *parent);
        assert_eq!(gone, Err(Status::INVALID_HANDLE));
    }

    proptest! {
        #[test]
        fn it_is_a_map(operations in prop::collection::vec(
            (0..3_u8, any::<u16>(), any::<prop::sample::Index>()), 1..2000,
        )) {
            let mut table = HandleTable::default();
            let mut live: HashMap<Handle, u16> = HashMap::new();
            let mut dead: Vec<Handle> = Vec::new();
            for (what, object, index) in operations {
                if what < 2 || live.is_empty() {
                    let handle = table.insert(object).unwrap();
                    prop_assert!(handle.value() != 0 && !dead.contains(&handle));
                    prop_assert_eq!(live.insert(handle, object), None);
                } else {
                    let handle = *live.keys().nth(index.index(live.len())).unwrap();
                    prop_assert_eq!(table.remove(handle).ok(), live.remove(&handle));
                    dead.push(handle);
                }
            }
            for (handle, object) in &live {
                prop_assert_eq!(table.get(*handle), Ok(object));
            }
            for handle in dead {
                prop_assert_eq!(table.get(handle), Err(Status::INVALID_HANDLE));
                prop_assert_eq!(table.remove(handle), Err(Status::INVALID_HANDLE));
            }
            let mut all: Vec<_> = table.iter().map(|(handle, object)| (handle, *object)).collect();
            let mut expected: Vec<_> = live.into_iter().collect();
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }
}
