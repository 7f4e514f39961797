// SPDX-License-Identifier: GPL-2.0 OR MIT

//! In which segment an object is made, comes to or is brought, and what makes room there.

use super::*;

impl Gpu {
    /// Makes room for `pages` pages in all, if it can be made.
    pub(super) fn make_room(&mut self, pages: u64, need: Need, level: Level) -> Checked<bool> {
        self.look();
        self.memory.level = Some(level);
        let before = self.memory.objects.clone();
        let missing = pages.saturating_sub(self.pages.free_pages().0);
        let made = make_room(&mut self.memory, need, missing);
        let left = core::mem::take(&mut self.memory.left);
        self.check_left(&before, &left, need, missing)?;
        let numbers: Vec<u64> = left.iter().map(|object| object.number).collect();
        self.out.extend(left);
        for number in numbers {
            // Whether or not it is locked: under its address the CPU finds it elsewhere.
            self.evict(number, false)?;
            self.settle(number)?;
        }
        // There is room if, and only if, it could be made.
        prop_assert_eq!(made, Ok(self.pages.free_pages().0 >= pages));
        Ok(made == Ok(true))
    }

    /// Checks who has left, of those who were there `before`.
    pub(super) fn check_left(
        &self,
        before: &[Object],
        left: &[Object],
        need: Need,
        missing: u64,
    ) -> Checked {
        let may_leave = |object: &Object| may_leave(object, need, self.memory.level());
        let bytes = |objects: &[Object]| objects.iter().map(|object| object.bytes).sum::<u64>();
        let may = before.iter().filter(|object| may_leave(object));
        if may.map(|object| object.bytes).sum::<u64>() < missing {
            prop_assert!(left.is_empty(), "{left:?} left in vain");
            return Ok(());
        }
        prop_assert!(bytes(left) >= missing, "{left:?}, not {missing} bytes");
        check_choice(left, before, may_leave, |gone| {
            missing.saturating_sub(bytes(gone))
        })
    }

    /// Whether so many pages of VRAM are free, or others leave for `need`, as the documentation has
    /// it.
    pub(super) fn has_room(&self, pages: u64, need: Need, level: Level) -> bool {
        let objects = self.memory.objects.iter();
        let may = objects.filter(|object| may_leave(object, need, level));
        let supply: u64 = may.map(|object| object.bytes).sum();
        self.pages.free_pages().0 + supply >= pages
    }

    /// Which segment of `order` what is made, or comes back for work, gets, as the documentation
    /// has it: the first with room, or, if it may not be in system memory, that where some is made.
    pub(super) fn place(
        &mut self,
        order: &[Segment],
        pages: u64,
        level: Level,
        needs: &[Need],
    ) -> Option<Segment> {
        self.look();
        let free = order.iter().find(|segment| match segment {
            Segment::Vram => self.has_room(pages, Need::Prefers, level),
            Segment::Aperture => self.has_piece(pages),
            Segment::System => true,
        });
        let has_room = |segment: &&Segment| match segment {
            Segment::Aperture => has_piece(&self.in_window(), pages, Object::may_leave_aperture),
            _ => needs.iter().any(|need| self.has_room(pages, *need, level)),
        };
        let forced = [Segment::Aperture, Segment::Vram];
        let mut forced = forced.iter().filter(|segment| order.contains(segment));
        free.or_else(|| forced.find(has_room)).copied()
    }

    /// Has what was made resident be where it rather is to be, as far as there is room.
    pub(super) fn move_in(&mut self, number: u64) -> Checked {
        self.look();
        let object = self.find(number).clone();
        let (now, bytes, level) = (object.segment(), object.bytes, object.level());
        // The documentation: the first that has room, of those before the place where it is.
        let order = object.state.sets.order.iter();
        let may = |it: &&Segment| **it != Segment::Vram || !object.is_held_out();
        let before = order.take_while(|it| **it != now).filter(may);
        let room = before.copied().find(|segment| match segment {
            Segment::Vram => self.has_room(bytes, Need::Prefers, level),
            Segment::Aperture => now != Segment::System || self.has_piece(bytes),
            Segment::System => true,
        });
        let expected = match room {
            Some(Segment::Aperture) if now != Segment::System => now,
            Some(Segment::System) | None => now,
            Some(segment) => segment,
        };
        let sets = object.sets();
        for segment in sets.order().take_while(|it| sets.prefers(*it, now)) {
            let has_come = match segment {
                Segment::Vram if object.is_held_out() => false,
                Segment::Vram => {
                    let has_room = self.make_room(bytes, Need::Prefers, level)?;
                    if has_room {
                        self.come(number)?;
                    }
                    has_room
                }
                Segment::Aperture if now == Segment::System => {
                    self.come_to_aperture(number, Need::Prefers)?
                }
                _ => break,
            };
            if has_come {
                break;
            }
        }
        prop_assert_eq!(self.find(number).segment(), expected, "{:?}", object);
        Ok(())
    }

    /// Makes an object in the first segment with room, and clears it.
    pub(super) fn make(&mut self, pages: u64, sets: Sets, level: Level) -> Checked {
        let expected = self.place(&sets.order, pages, level, &[Need::Needs]);
        let mut object = object(self.number(), pages);
        let number = object.number;
        object.rank = Rank::Kept(level);
        object.state.words = vec![0; pages as usize];
        object.state.sets = sets;
        object.can_be_elsewhere = !object.needs_vram();
        let own = self.content.pages(pages);
        let mut made = None;
        for Attempt { segment, need } in object.sets().attempts() {
            let site = &mut object.state.site;
            match segment {
                Segment::Vram if self.make_room(pages, need, level)? => {
                    let (blocks, dirty) = self.alloc(pages)?;
                    self.content.clear(&dirty);
                    site.blocks = blocks;
                }
                Segment::Aperture => {
                    site.window = self.map(own, need)?;
                    site.pages = site.window.map(|_| own);
                }
                Segment::System => site.pages = Some(own),
                Segment::Vram => (),
            }
            if site.place() != NOWHERE {
                made = Some(segment);
                break;
            }
        }
        if object.state.site.pages.is_none() {
            self.content.give_back(own);
        }
        if made.is_some() {
            self.put(object);
        }
        prop_assert_eq!(made, expected, "{}", number);
        Ok(())
    }

    /// What work of `client` needs stays, but for what may leave VRAM for the aperture: that does,
    /// unless `is_either`, and who needs the room may be there, too.
    pub(super) fn hold_own(&mut self, client: usize, is_either: bool) {
        let is_own = |object: &&mut Object| object.is_resident_for(client) && object.needs_vram();
        for object in self.all_mut().filter(is_own) {
            let elsewhere = !is_either && object.may_be_in(Segment::Aperture);
            if object.hold != Hold::Pinned {
                object.hold = Hold::Turn { elsewhere };
            }
        }
    }

    /// Brings an object that is out to the first segment with room, for work of `client`, whose
    /// own may have to leave VRAM for that; whether it has come.
    pub(super) fn bring_in(&mut self, number: u64, client: usize) -> Checked<bool> {
        let object = self.find(number).clone();
        let may = |segment: &Segment| *segment != Segment::Vram || !object.is_held_out();
        let order = object.state.sets.order.iter().copied().filter(may);
        let order: Vec<Segment> = order.collect();
        let (bytes, level) = (object.bytes, Level::Minimum);
        self.hold_own(client, object.may_be_in(Segment::Aperture));
        let expected = self.place(&order, bytes, level, &[Need::Needs, Need::Own]);
        let mut has_come = false;
        for Attempt { segment, need } in object.sets().attempts() {
            has_come = match segment {
                Segment::Vram if object.is_held_out() => false,
                Segment::Vram => {
                    let has_room = self.make_room(bytes, need, level)?
                        || need == Need::Needs && self.make_room(bytes, Need::Own, level)?;
                    if has_room {
                        self.come(number)?;
                    }
                    has_room
                }
                _ => self.come_to_aperture(number, need)?,
            };
            if has_come {
                break;
            }
        }
        let place = has_come.then(|| self.find(number).segment());
        prop_assert_eq!(place, expected, "{:?}", object);
        Ok(has_come)
    }

    /// Brings in all that `client` has resident and work does not reach; whether all has come.
    pub(super) fn bring_all_in(&mut self, client: usize) -> Checked<bool> {
        let mut least = usize::MAX;
        loop {
            let out = self.all().filter(|object| object.is_resident_for(client));
            let out: Vec<u64> = out
                .filter(|object| object.is_out())
                .map(|object| object.number)
                .collect();
            if out.is_empty() || out.len() >= least {
                return Ok(out.is_empty());
            }
            least = out.len();
            for number in out {
                if !self.bring_in(number, client)? {
                    break;
                }
            }
        }
    }
}
