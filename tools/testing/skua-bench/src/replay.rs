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

/// Pages of a game: in each of so many scenes two thirds of what fits is used, again and again,
/// half of it what the scene before used, the rest any of `objects`.
pub fn scenes(objects: usize, room: usize, count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let many = in_a_scene(room);
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
        for _ in 0..FRAMES {
            uses.extend(&set);
        }
    }
    uses
}

const fn in_a_scene(room: usize) -> usize {
    room * 2 / 3
}

/// How often what a scene or a room has is used while one is there.
const FRAMES: usize = 4;

/// How often an object of [`scenes`] has to be brought in at least, on an average of all such
/// sequences, by whoever does not know the future.
///
/// What is new in a scene is any object that is not in it yet, each as probable as the other. Of
/// those no more are there than fit beside the scene, whichever they are.
pub fn scenes_expected(objects: usize, room: usize, count: usize) -> f64 {
    let many = in_a_scene(room);
    let is_out = |set: usize| (objects - room) as f64 / (objects - set) as f64;
    let new: f64 = (many - many / 2..many).map(is_out).sum();
    many as f64 + (count - 1) as f64 * new
}

/// Uses at random, where one half of the uses is of one eighth of the objects.
pub fn skewed(objects: usize, count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| match random.below(2) {
            0 => random.below(objects / 8),
            _ => random.below(objects),
        })
        .collect()
}

/// How often an object of [`skewed`] has to be brought in at least, on an average of all such
/// sequences, by whoever does not know the future, but how probable each object is.
///
/// At best what is the most probable of all that was used before is there. Of these the expectation
/// is taken first; the true one of the smaller of two is no larger.
pub fn skewed_expected(objects: usize, room: usize, count: usize) -> f64 {
    let (objects, room) = (objects as f64, room as f64);
    let often = objects / 8.0;
    let (more, less) = (0.5 / often + 0.5 / objects, 0.5 / objects);
    let used = |share: f64, before: usize| 1.0 - (1.0 - share).powf(before as f64);
    let misses = |before: usize| {
        let first = often * used(more, before);
        let rest = ((objects - often) * used(less, before)).min(room - first);
        1.0 - first * more - rest * less
    };
    (0..count).map(misses).sum()
}

/// Frames that each use all of `objects`, in the same order.
pub fn in_turn(objects: usize, frames: usize) -> Vec<usize> {
    (0..frames).flat_map(|_| 0..objects).collect()
}

/// A game that goes back and forth through four rooms, so many times into another one: each uses
/// three eighths of what fits, and an eighth that all rooms use, again and again.
pub fn rooms(room: usize, visits: usize) -> Vec<usize> {
    let (common, own) = (room / 8, room * 3 / 8);
    let mut uses = Vec::new();
    for visit in 0..visits {
        let at = [0, 1, 2, 3, 2, 1][visit % 6];
        let first = common + at * own;
        for _ in 0..FRAMES {
            uses.extend((0..common).chain(first..first + own));
        }
    }
    uses
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
        for uses in [scenes(40, 12, 9, 1), skewed(40, 400, 2)] {
            let (least, age) = (fewest(&uses, 12), by_age(&uses, 12));
            assert!(least < age, "{least} {age}");
            assert!(least >= 12);
        }
    }

    #[test]
    fn a_scene_has_half_of_the_one_before() {
        let uses = scenes(100, 30, 3, 1);
        assert_eq!(uses.len(), 3 * 4 * 20);
        let (first, second) = (&uses[..20], &uses[80..100]);
        let kept = second.iter().filter(|object| first.contains(object));
        assert!(kept.count() >= 10);
    }

    /// The average of who leaves by age, in comparison with what is to be expected at best; and the
    /// same of who knows the future.
    fn average(expected: f64, room: usize, uses: impl Fn(u64) -> Vec<usize>) -> (f64, f64) {
        let of = |count: fn(&[usize], usize) -> u64| {
            let sum: u64 = (1..=64).map(|seed| count(&uses(seed << 20), room)).sum();
            sum as f64 / 64.0 / expected
        };
        (of(by_age), of(fewest))
    }

    #[test]
    fn nobody_who_knows_the_past_alone_can_expect_less() {
        let scenes = average(scenes_expected(256, 128, 12), 128, |seed| {
            scenes(256, 128, 12, seed)
        });
        let skewed = average(skewed_expected(256, 128, 1536), 128, |seed| {
            skewed(256, 1536, seed)
        });
        for (age, least) in [scenes, skewed] {
            assert!((1.0..1.1).contains(&age), "{age}");
            // So far away is what the future would tell.
            assert!(least * 1.2 < 1.0, "{least}");
        }
    }

    #[test]
    fn frames_and_rooms_come_again() {
        assert_eq!(in_turn(3, 2), [0, 1, 2, 0, 1, 2]);
        let uses = rooms(16, 7);
        assert_eq!(uses.len(), 7 * 4 * 8);
        assert_eq!(uses[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(uses[..32], uses[6 * 32..]);
        assert_eq!(uses[32..64], uses[5 * 32..6 * 32]);
        assert_eq!(uses.iter().max(), Some(&(2 + 4 * 6 - 1)));
    }
}
