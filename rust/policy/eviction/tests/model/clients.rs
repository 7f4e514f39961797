// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What clients ask for.

use super::*;

impl Gpu {
    /// What of VRAM the clients have made resident.
    pub(super) fn wanted(&self) -> [u64; CLIENTS] {
        core::array::from_fn(|client| {
            let own = self.all().filter(|object| object.is_resident_for(client));
            own.map(|object| object.bytes).sum()
        })
    }

    pub(super) fn budget(&self, client: usize) -> u64 {
        let wanted = self.wanted().into_iter().enumerate();
        let others = wanted.filter(|(other, _)| *other != client);
        fair_share(PAGES, others.map(|(_, wanted)| wanted))
    }

    /// Makes some resident for `client`, or none; brings them in, as far as there is room.
    pub(super) fn make_resident(
        &mut self,
        client: usize,
        some: &BTreeSet<u64>,
        beyond: bool,
    ) -> Checked {
        let is_new = |object: &&Object| !object.is_resident_for(client);
        let those = || self.all().filter(|object| some.contains(&object.number));
        let more: u64 = those().filter(is_new).map(|object| object.bytes).sum();
        let bytes = self.wanted()[client] + more;
        let is_refused = bytes > self.budget(client) && more > 0 && !beyond;
        if those().any(Object::is_offered) || is_refused || bytes > PAGES {
            return Ok(());
        }
        for object in self.live().filter(|object| some.contains(&object.number)) {
            object.state.claims[client] += 1;
        }
        some.iter().try_for_each(|number| self.move_in(*number))
    }

    /// Gives `engine` work with all that `client` has resident, if that can be where work reaches
    /// it.
    pub(super) fn submit(&mut self, engine: usize, client: usize) -> Checked {
        let work = self.number();
        if self.engines[engine].is_full() {
            let refused = self.engines[engine].push(work);
            prop_assert_eq!(refused, Err(PushError::Full(work)));
            return Ok(());
        }
        let holds = self.all().map(|object| (object.number, object.hold));
        let holds: BTreeMap<u64, Hold> = holds.collect();
        let has_come = self.bring_all_in(client)?;
        for object in self.all_mut() {
            object.hold = holds[&object.number];
        }
        if has_come {
            let own = self.all().filter(|object| object.is_resident_for(client));
            let own = own.map(|object| object.number).collect();
            self.work.insert(work, own);
            prop_assert!(self.engines[engine].push(work).is_ok());
        }
        Ok(())
    }

    /// The CPU reads a page of an object, or writes it.
    pub(super) fn access(&mut self, number: u64, page: u64, is_write: bool) -> Checked {
        let object = self.find(number);
        if object.is_offered() {
            return Ok(());
        }
        // A fault waits for a move.
        self.settle(number)?;
        let object = self.find(number);
        let page = page % object.bytes;
        let (user, is_locked) = (number * PAGES + page, object.state.is_locked);
        let word = object.state.words[page as usize];
        if is_write {
            self.drop_copy(number);
        }
        let site = &self.find(number).state.site;
        let (vram, pages) = (site.vram().nth(page as usize), site.pages);
        let at = match vram {
            Some(page) => {
                let at = self.show_cpu(Shown { page, user }, is_locked)?;
                Address::Vram(self.device.aperture.borrow()[&at])
            }
            // Row 1.22: its pages, by whatever way the GPU finds them.
            None => Address::Bus(pages.expect("system pages").address(page)),
        };
        prop_assert_eq!(self.content.get(at), Some(word));
        if is_write {
            self.write(number, page, at);
        }
        Ok(())
    }

    /// Has the CPU see a page of VRAM; the page of the host aperture that shows it.
    fn show_cpu(&mut self, shown: Shown, is_locked: bool) -> Checked<u32> {
        let user = shown.user;
        let (at, old) = reveal(&mut self.window, &self.device, shown);
        if let Some(old) = old {
            prop_assert_eq!(self.mapped.remove(&old.user), Some(at));
        }
        self.mapped.insert(user, at);
        self.window.hold(at, is_locked);
        // No page is shown twice, shows two, or is behind the last one.
        let other = Shown { page: PAGES, user };
        for other in [(at, other), (WINDOW, other), ((at + 1) % WINDOW, shown)] {
            prop_assert_eq!(self.window.show(other.0, other.1), Err(Taken));
        }
        Ok(at)
    }

    pub(super) fn change(&mut self, number: u64, change: Change) -> Checked {
        match change {
            // Until what is unmapped is given up it may be written.
            Change::Bind(false) => self.wait_for(number)?,
            Change::Lock(_) | Change::Reclaim => self.settle(number)?,
            _ => (),
        }
        let object = self.find(number);
        let is_used = object.state.is_locked || object.state.claims != [0; CLIENTS];
        let (place, is_offered) = (object.place(), object.is_offered());
        match change {
            Change::Bind(true) if !is_offered => self.drop_copy(number),
            Change::Offer(_) if !is_used => self.drop_copy(number),
            Change::Shrink if place == VRAM => self.drop_copy(number),
            Change::Shrink if place == SYSTEM => {
                let way = self.relocate(number, Site::default())?;
                prop_assert_eq!(way, is_offered.then_some(Way::Discarded));
            }
            _ => (),
        }
        let pages = match (change, place) {
            // What is gone is zero.
            (Change::Reclaim, NOWHERE) => Some(self.content.pages(self.find(number).bytes)),
            _ => None,
        };
        let object = self.find_mut(number);
        let state = &mut object.state;
        match change {
            Change::Hold(hold) => object.hold = hold,
            Change::Level(level) if !is_offered => object.rank = Rank::Kept(level),
            Change::Expect(next_use) => object.next_use = next_use,
            Change::UseByWork(age) => object.used_since = age,
            Change::Lock(is) => state.is_locked = is && !is_offered,
            Change::Bind(is) if !is_offered => {
                state.is_bound = is;
                state.writes += u64::from(is);
            }
            Change::Offer(offer) if !is_used => {
                object.rank = Rank::Offered(offer);
                state.arrived = None;
            }
            Change::Reclaim if is_offered => {
                object.rank = Rank::Kept(Level::Normal);
                state.is_discarded = false;
                state.site.pages = pages.or(state.site.pages);
            }
            Change::Shrink => state.arrived = None,
            Change::Destroy => {
                (object.hold, state.is_dying) = (Hold::Pinned, true);
                state.claims = [0; CLIENTS];
            }
            _ => (),
        }
        let is_locked = state.is_locked;
        let vram: Vec<u64> = state.site.vram().collect();
        for page in vram {
            if let Some(at) = self.window.find(page) {
                self.window.hold(at, is_locked);
            }
        }
        Ok(())
    }

    /// Takes back once that `client` has made these resident, if it has.
    pub(super) fn evict_for(&mut self, client: usize, some: &BTreeSet<u64>) {
        let those = self.live().filter(|object| some.contains(&object.number));
        let those: Vec<&mut Object> = those.collect();
        if those.iter().all(|object| object.is_resident_for(client)) {
            for object in those {
                object.state.claims[client] -= 1;
            }
        }
    }

    /// What prefers VRAM comes there, if there is room.
    pub(super) fn come_back(&mut self, number: usize) -> Checked {
        let free = self.pages.free_pages().0;
        let Some(object) = self.one(number).filter(|object| object.bytes <= free) else {
            return Ok(());
        };
        let (number, now) = (object.number, object.segment());
        let mut before = object.state.sets.order.iter().take_while(|it| **it != now);
        let is_better = before.any(|it| *it == Segment::Vram);
        prop_assert_eq!(object.sets().prefers(Segment::Vram, now), is_better);
        if is_better {
            self.come(number)?;
        }
        Ok(())
    }

    /// An object leaves VRAM, or the aperture, if it may.
    pub(super) fn move_out(&mut self, number: usize, is_late: bool) -> Checked {
        let can = |object: &&mut Object| object.hold != Hold::Pinned;
        let Some(object) = self.one(number).filter(can) else {
            return Ok(());
        };
        let number = object.number;
        match object.place() {
            // What has not arrived does not leave.
            place @ (VRAM | APERTURE) if object.state.is_moving => {
                let bytes = object.bytes;
                let own = object.state.site.pages.filter(|_| place == APERTURE);
                let pages = own.unwrap_or_else(|| self.content.pages(bytes));
                let site = Site {
                    pages: Some(pages),
                    ..Site::default()
                };
                prop_assert_eq!(self.relocate(number, site)?, None);
                Ok(())
            }
            VRAM => self.evict(number, is_late),
            APERTURE if object.may_leave_aperture() => self.leave_aperture(number),
            _ => Ok(()),
        }
    }
}
