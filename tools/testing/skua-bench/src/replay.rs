// SPDX-License-Identifier: MIT

//! What a sequence of uses costs at best: objects of one size, of which so many fit.

/// How often an object has to be brought in, if each time the one leaves that is used again last
/// (Belady): nobody can do with less.
pub fn fewest(uses: &[usize], room: usize) -> u64 {
    let mut next = vec![usize::MAX; uses.len()];
    let objects = uses.iter().max().map_or(0, |last| last + 1);
    let mut later = vec![usize::MAX; objects];
    for (at, object) in uses.iter().enumerate().rev() {
        next[at] = later[*object];
        later[*object] = at;
    }
    replay(uses, room, |at| std::cmp::Reverse(next[at]))
}

/// The same, if the one leaves that was used longest ago.
pub fn by_age(uses: &[usize], room: usize) -> u64 {
    replay(uses, room, |at| at)
}

/// The object that is first in the `order` of their last uses leaves.
fn replay<K: Ord>(uses: &[usize], room: usize, order: impl Fn(usize) -> K) -> u64 {
    // Which are there, and which use was the last of each.
    let mut there: Vec<(usize, usize)> = Vec::new();
    let mut brought = 0;
    for (at, object) in uses.iter().enumerate() {
        if let Some((_, last)) = there.iter_mut().find(|(it, _)| it == object) {
            *last = at;
            continue;
        }
        brought += 1;
        if there.len() >= room {
            let leaves = (0..there.len()).min_by_key(|index| order(there[*index].1));
            if let Some(index) = leaves {
                there.swap_remove(index);
            }
        }
        there.push((*object, at));
    }
    brought
}

/// Pages of a game: in each of so many scenes two thirds of what fits is used, again and again, half
/// of it what the scene before used, the rest any of `objects`.
pub fn scenes(objects: usize, room: usize, count: usize) -> Vec<usize> {
    let mut random = Random(1);
    let many = room * 2 / 3;
    let mut set: Vec<usize> = Vec::new();
    let mut uses = Vec::new();
    for _ in 0..count {
        set.drain(..set.len() / 2);
        while set.len() < many {
            let object = random.below(objects);
            if !set.contains(&object) {
                set.push(object);
            }
        }
        for _ in 0..4 {
            uses.extend(&set);
        }
    }
    uses
}

/// Uses at random, where one half of the uses is of one eighth of the objects.
pub fn skewed(objects: usize, count: usize) -> Vec<usize> {
    let mut random = Random(2);
    (0..count)
        .map(|_| match random.below(2) {
            0 => random.below(objects / 8),
            _ => random.below(objects),
        })
        .collect()
}

/// The same numbers each time (Knuth's MMIX generator).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // CAST: 31 bits.
        (self.0 >> 33) as usize % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_does_not_fit() {
        let uses: Vec<usize> = (0..12).map(|n| n % 3).collect();
        assert_eq!(by_age(&uses, 2), 12);
        // 0 1 2, then each second one.
        assert_eq!(fewest(&uses, 2), 7);
        assert_eq!(fewest(&uses, 3), 3);
    }

    #[test]
    fn nobody_does_with_less() {
        for uses in [scenes(40, 12, 9), skewed(40, 400)] {
            let (least, age) = (fewest(&uses, 12), by_age(&uses, 12));
            assert!(least < age, "{least} {age}");
            assert!(least >= 12);
        }
    }

    #[test]
    fn a_scene_has_half_of_the_one_before() {
        let uses = scenes(100, 30, 3);
        assert_eq!(uses.len(), 3 * 4 * 20);
        let (first, second) = (&uses[..20], &uses[80..100]);
        let kept = second.iter().filter(|object| first.contains(object));
        assert!(kept.count() >= 10);
    }
}
