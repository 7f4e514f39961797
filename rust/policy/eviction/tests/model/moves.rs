// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the driver does for an object to move, and what becomes of its content.

use super::*;

/// A move that is under way.
pub(super) struct Moving {
    /// The number of the object that moves.
    pub(super) number: u64,
    /// Where it is until then.
    pub(super) old: Site,
    pub(super) new: Site,
    pub(super) way: Way,
}

impl Gpu {
    /// The moves of an object that are under way, in the order begun.
    pub(super) fn moves_of(&self, number: u64) -> impl Iterator<Item = &Moving> {
        self.moves.iter().filter(move |it| it.number == number)
    }

    /// The first of these is over, if there is any.
    pub(super) fn end_move_of(&mut self, number: u64) -> Checked {
        let at = self.moves.iter().position(|it| it.number == number);
        let Some(Moving { old, new, way, .. }) = at.and_then(|at| self.moves.remove(at)) else {
            return Ok(());
        };
        if way == Way::Copied {
            let leaves = old.place() == VRAM;
            let (there, out) = if leaves { (&old, &new) } else { (&new, &old) };
            let pages = out.pages.expect("system pages");
            self.content.copy(&there.blocks, pages, leaves);
        }
        let is_moving = self.moves_of(number).next().is_some();
        self.find_mut(number).state.is_moving = is_moving;
        self.give_back(old, number)
    }

    /// All of these are over.
    pub(super) fn settle(&mut self, number: u64) -> Checked {
        while self.find(number).state.is_moving {
            self.end_move_of(number)?;
        }
        Ok(())
    }

    /// The device is reset, and with it all work ends. What was in VRAM is zero, and what was to be
    /// copied from there; what comes there is still where it was.
    pub(super) fn reset_adapter(&mut self) {
        for engine in &mut self.engines {
            engine.remove_if(|_, _| true, |_, work| drop(self.work.remove(&work)));
        }
        self.content.lose_vram();
        let is_there = |object: &&Object| self.site_of(object).place() == VRAM;
        let there = self.all().filter(is_there).map(|object| object.number);
        for number in there.collect::<Vec<u64>>() {
            let state = &mut self.find_mut(number).state;
            state.words.fill(0);
            if !state.is_moving {
                state.site.is_lost = true;
                state.arrived = None;
            }
        }
    }
    /// All that has a piece of the aperture segment, and as it was what is about to leave its own.
    pub(super) fn in_window(&self) -> Vec<Object> {
        let leaving = self.moves.iter().map(|moving| {
            let mut object = self.find(moving.number).clone();
            object.state.site = moving.old.clone();
            object
        });
        let all = self.all().cloned().chain(leaving);
        let is_shown = |object: &Object| object.state.site.window.is_some();
        all.filter(is_shown).collect()
    }

    /// Whether a piece of so many pages is free there.
    pub(super) fn has_piece(&self, pages: u64) -> bool {
        has_piece(&self.in_window(), pages, |_| false)
    }

    /// Has the window show `pages`, where it has a piece for them.
    pub(super) fn show(&mut self, pages: Pages) -> Checked<Option<PageRange>> {
        let has_piece = self.has_piece(pages.count);
        let range = self.segment.alloc(PageCount(pages.count));
        prop_assert_eq!(range.is_ok(), has_piece);
        let Ok(range) = range else {
            prop_assert_eq!(range, Err(BuddyError::NoSpace));
            return Ok(None);
        };
        let pieces = &mut pages.pieces();
        let told = self
            .device
            .map_aperture_segment(APERTURE_SEGMENT, range, pieces, true);
        prop_assert!(told.is_ok());
        Ok(Some(range))
    }

    /// The same, where others may have to leave for who has no other place.
    pub(super) fn map(&mut self, pages: Pages, need: Need) -> Checked<Option<PageRange>> {
        let shown = self.show(pages)?;
        if shown.is_some() || need != Need::Needs {
            return Ok(shown);
        }
        self.look();
        let plan = aperture_segment::Plan::new(self.segment.window(), PageCount(pages.count));
        let before = self.in_window();
        self.aperture
            .begin(self.segment.plan(plan.expect("memory")));
        let made = aperture_segment::make_room(&mut self.aperture, pages.count);
        let gone = self.aperture.end(before);
        let made = made == Ok(true);
        gone.check(pages.count, made)?;
        let numbers: Vec<u64> = gone.left.iter().map(|object| object.number).collect();
        self.out.extend(gone.left);
        for number in numbers {
            self.leave_aperture(number)?;
            self.settle(number)?;
        }
        let shown = self.show(pages)?;
        prop_assert_eq!(shown.is_some(), made);
        Ok(shown)
    }

    /// These pages, which were the object's, are given back if it is not in them any more, nor
    /// moves from or to them.
    pub(super) fn give_back_pages(&mut self, number: u64, pages: Pages) {
        let is_theirs = |it: &Moving| [it.old.pages, it.new.pages].contains(&Some(pages));
        let is_moving = self.moves_of(number).any(is_theirs);
        let object = self.all().find(|object| object.number == number);
        match object.is_some_and(|object| object.state.site.pages == Some(pages)) {
            true => (),
            false if is_moving => self.content.set_stale(pages),
            false => self.content.give_back(pages),
        }
    }

    /// What an object is not in any more is free.
    pub(super) fn give_back(&mut self, site: Site, number: u64) -> Checked {
        for page in site.vram() {
            let Some(at) = self.window.find(page) else {
                continue;
            };
            let shown = self.window.hide(at);
            let mapped = shown.and_then(|shown| self.mapped.remove(&shown.user));
            prop_assert_eq!(mapped, Some(at));
            let told = self.device.unmap_cpu_host_aperture(VRAM_SEGMENT, &[at]);
            prop_assert!(told.is_ok());
        }
        for block in site.blocks {
            prop_assert_eq!(self.pages.free(block), Ok(()));
        }
        if let Some(range) = site.window {
            let told = self.device.unmap_aperture_segment(APERTURE_SEGMENT, range);
            prop_assert!(told.is_ok());
            prop_assert_eq!(self.segment.free(range), Ok(()));
        }
        if let Some(pages) = site.pages {
            self.give_back_pages(number, pages);
        }
        Ok(())
    }

    /// Has an object begin to move, or stay if it may not, when work with it is over.
    pub(super) fn relocate(&mut self, number: u64, mut new: Site) -> Checked<Option<Way>> {
        let object = self.find(number);
        let old = object.state.site.clone();
        let (from, to) = (old.place(), new.place());
        let pages = new.pages.filter(|_| to != VRAM);
        if to == VRAM && keeps_copy(object.state.is_bound, self.is_too_much) {
            new.pages = old.pages;
        }
        let way = way(&relocation::Facts {
            from,
            to,
            has_copy: from == VRAM && old.pages.is_some(),
            is_lost: from == VRAM && old.is_lost,
            same_pages: pages.is_some() && pages == old.pages,
            is_stale: pages.is_some_and(|pages| !self.content.has(pages)),
            is_settled: !object.state.is_moving,
            is_offered: object.is_offered(),
            is_held_out: object.is_held_out(),
            is_arriving: object.state.is_moving && from == VRAM,
        });
        let Some(way) = way else {
            self.give_back(new, number)?;
            return Ok(None);
        };
        self.wait_for(number)?;
        let lists = &mut self.lists();
        let place = |list: &mut Vec<Object>| {
            let at = list.iter().position(|object| object.number == number)?;
            Some(list.remove(at))
        };
        let object = lists.iter_mut().find_map(|list| place(list));
        let mut object = object.expect("it is there");
        let moving = Moving {
            number,
            old,
            new: new.clone(),
            way,
        };
        self.moves.push_back(moving);
        object.state.site = new;
        object.state.is_moving = true;
        if way == Way::Discarded {
            object.state.is_discarded = true;
            object.state.words.fill(0);
        }
        self.put(object);
        Ok(Some(way))
    }

    /// Files an object by where it is, as used last.
    pub(super) fn put(&mut self, object: Object) {
        let [memory, aperture, out] = self.lists();
        let list = match object.place() {
            VRAM => memory,
            APERTURE => aperture,
            _ => out,
        };
        list.push(object);
    }

    /// What is elsewhere comes to VRAM, where there is room, unless it may not.
    pub(super) fn come(&mut self, number: u64) -> Checked {
        let object = self.find(number);
        // Row 0.21: not what is locked where it is out. Nor what is to take nobody's room.
        let may = !object.state.is_locked && !object.is_offered();
        let (blocks, _) = self.alloc(object.bytes)?;
        let site = Site {
            blocks,
            ..Site::default()
        };
        let way = self.relocate(number, site)?;
        prop_assert_eq!(way, may.then_some(Way::Copied));
        let is_too_much = self.is_too_much;
        let state = &mut self.find_mut(number).state;
        let keeps = may && !state.is_bound && !is_too_much;
        state.arrived = keeps.then_some(state.writes);
        Ok(())
    }

    /// The same, to the aperture; whether it has come.
    pub(super) fn come_to_aperture(&mut self, number: u64, need: Need) -> Checked<bool> {
        let pages = self.find(number).state.site.pages.expect("system pages");
        let Some(window) = self.map(pages, need)? else {
            return Ok(false);
        };
        let site = Site {
            pages: Some(pages),
            window: Some(window),
            ..Site::default()
        };
        prop_assert_eq!(self.relocate(number, site)?, Some(Way::Stays));
        Ok(true)
    }

    /// What leaves the aperture stays in its pages.
    pub(super) fn leave_aperture(&mut self, number: u64) -> Checked {
        let site = Site {
            pages: self.find(number).state.site.pages,
            ..Site::default()
        };
        prop_assert_eq!(self.relocate(number, site)?, Some(Way::Stays));
        Ok(())
    }

    /// Where what leaves VRAM with these pages goes: the first of its eviction set with room.
    pub(super) fn exit(&mut self, number: u64, pages: Pages) -> Checked<Site> {
        let mut site = Site {
            pages: Some(pages),
            ..Site::default()
        };
        for segment in self.find(number).sets().exits() {
            if segment != Segment::Aperture {
                break;
            }
            site.window = self.show(pages)?;
            if site.window.is_some() {
                break;
            }
        }
        Ok(site)
    }

    /// Where what leaves VRAM goes, as the documentation has it.
    fn expected_exit(&self, object: &Object) -> relocation::Place {
        let Sets {
            order, eviction, ..
        } = &object.state.sets;
        let may_go = |it: &&Segment| eviction.is_empty() || eviction.contains(it);
        let exits = order.iter().filter(|it| **it != Segment::Vram);
        let exit = exits.filter(may_go).find(|it| match it {
            Segment::Aperture => self.has_piece(object.bytes),
            _ => true,
        });
        match exit {
            Some(Segment::Aperture) => APERTURE,
            _ => SYSTEM,
        }
    }

    /// Has an object leave VRAM; perhaps the CPU writes it after its copy was looked for.
    pub(super) fn evict(&mut self, number: u64, is_late: bool) -> Checked {
        let site = &self.find(number).state.site;
        if let Some(copy) = site.pages.filter(|_| site.is_lost) {
            // Who has looked before the device was reset.
            let new = self.exit(number, copy)?;
            prop_assert_eq!(self.relocate(number, new)?, None);
            self.drop_copy(number);
        }
        let object = self.find(number).clone();
        let (expected, to) = match (object.is_offered(), object.is_clean()) {
            (true, _) => (Some(Way::Discarded), NOWHERE),
            // What it was to go to is nobody's then.
            (false, true) if is_late => (None, VRAM),
            (false, true) => (Some(Way::Clean), self.expected_exit(&object)),
            (false, false) => (Some(Way::Copied), self.expected_exit(&object)),
        };
        let new = match object.state.site.pages {
            None if object.is_offered() => Site::default(),
            Some(copy) => self.exit(number, copy)?,
            None => {
                let pages = self.content.pages(object.bytes);
                self.exit(number, pages)?
            }
        };
        if is_late {
            self.access(number, 0, true)?;
        }
        let way = self.relocate(number, new)?;
        prop_assert_eq!(way, expected, "{:?}", object);
        prop_assert_eq!(self.find(number).place(), to, "{:?}", object);
        Ok(())
    }
}
