// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What holds after every step.

use super::*;

impl Gpu {
    /// Checks everything.
    pub(super) fn check(&self) -> Checked {
        let mut numbers: Vec<u64> = self.all().map(|object| object.number).collect();
        numbers.sort_unstable();
        prop_assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        let holders = Holders::of(&self.memory).expect("no error");
        let users = self.users()?;
        let used = users.iter().flatten().count() as u64;
        prop_assert_eq!(self.pages.free_pages().0, PAGES - used);
        let there = self.memory.objects.iter().map(|object| object.bytes);
        prop_assert_eq!(holders.sums().iter().sum::<u64>(), there.sum::<u64>());
        self.check_segment()?;
        self.check_content()?;
        self.check_budgets()?;
        self.check_work()?;
        self.check_host_aperture(&users)
    }

    /// Where objects are or will be, and what they leave.
    fn sites(&self) -> impl Iterator<Item = (u64, &Site)> {
        let sites = self.all().map(|object| (object.number, &object.state.site));
        let left = self.moves.iter().map(|moving| (moving.number, &moving.old));
        sites.chain(left)
    }

    /// Who has each page of VRAM: by [`Shown::user`], if anybody; nobody has one that another has.
    fn users(&self) -> Checked<Vec<Option<u64>>> {
        let mut users = vec![None; PAGES as usize];
        for object in &self.memory.objects {
            prop_assert_eq!(object.state.site.vram().count() as u64, object.bytes);
        }
        for (number, site) in self.sites() {
            for (user, page) in (number * PAGES..).zip(site.vram()) {
                prop_assert_eq!(users[page as usize].replace(user), None);
            }
        }
        Ok(users)
    }

    /// Each object in the aperture segment has a piece of it for itself, which shows its pages and
    /// no others; the rest shows nothing.
    fn check_segment(&self) -> Checked {
        let mut shown = BTreeMap::new();
        for object in &self.aperture.objects {
            let window = object.state.site.window.map(|range| range.pages.0);
            prop_assert_eq!(window, Some(object.bytes));
        }
        for (_, site) in self.sites() {
            let Some((range, pages)) = site.window.zip(site.pages) else {
                continue;
            };
            for (page, piece) in (range.start.0..).zip(pages.pieces()) {
                prop_assert!((OWN..SEGMENT).contains(&page));
                prop_assert_eq!(shown.insert(page, (piece.start, true)), None);
            }
        }
        prop_assert_eq!(self.segment.used().0, shown.len() as u64);
        prop_assert_eq!(&*self.device.gart.borrow(), &shown);
        let holders = Holders::of(&self.aperture).expect("no error");
        let there = self.aperture.objects.iter().map(|object| object.bytes);
        prop_assert_eq!(holders.sums().iter().sum::<u64>(), there.sum::<u64>());
        Ok(())
    }

    /// The GPU finds what was written last. Nothing is lost that nobody has offered, and who
    /// reclaims is told what is. System pages are what objects are in, and copies.
    fn check_content(&self) -> Checked {
        let pages = self.sites().filter_map(|(_, site)| site.pages);
        let pages: BTreeMap<u64, u64> = pages.map(|it| (it.address(0), it.count)).collect();
        for object in self.all() {
            let is_gone = object.state.is_discarded;
            prop_assert!(object.is_offered() || !is_gone, "{object:?}");
            prop_assert_eq!(object.place() == NOWHERE, is_gone, "{:?}", object);
            for (page, word) in (0..).zip(&object.state.words).filter(|_| !is_gone) {
                let found = self.content.get(self.address(object, page));
                prop_assert_eq!(found, Some(*word), "page {} of {:?}", page, object);
            }
        }
        prop_assert_eq!(self.content.system_pages(), pages.values().sum::<u64>());
        Ok(())
    }

    /// If all who are told to trim do, all fits; who is told exceeds its budget by as much.
    fn check_budgets(&self) -> Checked {
        let wanted = self.wanted();
        let level = level(PAGES, wanted.into_iter());
        prop_assert!(wanted.iter().map(|wanted| wanted.min(&level)).sum::<u64>() <= PAGES);
        for (client, wanted) in wanted.into_iter().enumerate() {
            let excess = wanted.saturating_sub(self.budget(client));
            prop_assert_eq!(excess, wanted.saturating_sub(level));
        }
        Ok(())
    }

    /// What work in flight uses is where it reaches that; what was destroyed is there only as long
    /// as work uses it.
    fn check_work(&self) -> Checked {
        let in_flight = self.engines.iter().flat_map(InFlight::iter);
        let in_flight: BTreeSet<u64> = in_flight.map(|(_, work)| *work).collect();
        prop_assert!(in_flight.iter().eq(self.work.keys()));
        for queue in &self.engines {
            prop_assert!(queue.iter().is_sorted_by(|one, next| one < next));
        }
        let used: BTreeSet<u64> = self.work.values().flatten().copied().collect();
        for object in used.iter().map(|number| self.find(*number)) {
            prop_assert!(!object.is_out(), "{object:?}");
        }
        let mut dying = self.all().filter(|object| object.state.is_dying);
        prop_assert!(dying.all(|it| it.state.is_moving || used.contains(&it.number)));
        Ok(())
    }

    /// Each page of the host aperture that shows something shows the CPU what it has mapped there,
    /// and what the CPU has locked is taken last.
    fn check_host_aperture(&self, users: &[Option<u64>]) -> Checked {
        let shown = self.device.aperture.borrow();
        prop_assert_eq!(shown.len(), self.window.used() as usize);
        prop_assert_eq!(shown.len(), self.mapped.len());
        for (at, page) in &*shown {
            prop_assert!(*at < WINDOW);
            prop_assert_eq!(self.window.find(*page), Some(*at));
            let user = users[*page as usize].expect("what nobody has is not shown");
            prop_assert_eq!(self.mapped.get(&user), Some(at));
            let is_locked = self.find(user / PAGES).state.is_locked;
            prop_assert_eq!(self.window.is_held(*at), is_locked);
        }
        let is_held = |at: &u32| self.window.is_held(*at);
        match self.window.next() {
            Some((at, None)) => prop_assert!(at < WINDOW && !shown.contains_key(&at)),
            Some((at, old)) => {
                prop_assert_eq!(shown.len(), WINDOW as usize);
                prop_assert_eq!(shown.get(&at).copied(), old.map(|old| old.page));
                prop_assert!(!is_held(&at) || shown.keys().all(is_held));
            }
            None => prop_assert!(false, "it has pages"),
        }
        Ok(())
    }
}
