//! Seeded, stratified samples of a labelled list.

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;

use swinq_model::Draws;

use super::labels::Labels;

/// Draws `limit` of the positions `0..len` without replacement, in random order and as evenly over the
/// classes as their sizes allow. Empty `labels` count as one class.
pub(super) fn stratified(labels: &Labels, len: usize, limit: usize, seed: u64) -> Vec<usize> {
    let mut draws = Draws::new(seed);
    let limit = limit.min(len);
    let class_of = |position| if labels.is_empty() { 0 } else { labels.get(position) };
    let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
    (0..len).for_each(|position| *sizes.entry(class_of(position)).or_default() += 1);
    let quotas = quotas(&sizes.values().copied().collect::<Vec<_>>(), limit, &mut draws);
    let mut drawn: HashMap<u32, Class> = HashMap::new();
    let mut sample = vec![0; limit];
    let mut slot = 0;
    for ((class, size), quota) in sizes.into_iter().zip(quotas) {
        let mut places: Vec<(usize, usize)> =
            front(&mut draws, size, quota).into_iter().zip(slot..).collect();
        slot += quota;
        places.sort_unstable();
        drawn.insert(class, Class { seen: 0, places: places.into_iter().peekable() });
    }
    // The second pass finds the positions of the drawn members of each class. Lists of positions of all
    // classes would need more memory than the labels.
    for position in 0..len {
        let Some(class) = drawn.get_mut(&class_of(position)) else { continue };
        if let Some((_, slot)) = class.places.next_if(|(member, _)| *member == class.seen) {
            sample[slot] = position;
        }
        class.seen += 1;
    }
    draws.shuffle(&mut sample);
    sample
}

/// The drawn members of a class.
struct Class {
    /// Members of the class before the current position.
    seen: usize,
    /// Drawn members, as numbers within the class in ascending order, and their slots in the sample.
    places: Peekable<std::vec::IntoIter<(usize, usize)>>,
}

/// The first `count` items of `0..len` after [`Draws::shuffle_front`]. A small part of a long range takes
/// little memory.
fn front(draws: &mut Draws, len: usize, count: usize) -> Vec<usize> {
    if count > len / 8 {
        let mut all: Vec<usize> = (0..len).collect();
        draws.shuffle_front(&mut all, count);
        all.truncate(count);
        return all;
    }
    // The items that are not at their own place.
    let mut moved: HashMap<usize, usize> = HashMap::new();
    let mut chosen = Vec::with_capacity(count);
    for i in 0..count {
        let j = i + if i + 1 < len { draws.below(len - i) } else { 0 };
        let [here, there] = [i, j].map(|place| moved.get(&place).copied().unwrap_or(place));
        moved.insert(j, here);
        chosen.push(there);
    }
    chosen
}

/// Number of images to draw from each class, `total` in all: the same number from each class, or all of a
/// smaller class, and one more from classes drawn at random.
fn quotas(sizes: &[usize], total: usize, draws: &mut Draws) -> Vec<usize> {
    let drawn_at = |level: usize| sizes.iter().map(|size| size.min(&level)).sum::<usize>();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    // Bisect for the highest level (images per class) that does not exceed the total, which grows with the
    // level.
    let (mut level, mut above) = (0, largest + 1);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        if drawn_at(middle) <= total { level = middle } else { above = middle }
    }
    let mut quotas: Vec<usize> = sizes.iter().map(|size| *size.min(&level)).collect();
    let mut larger: Vec<usize> = (0..sizes.len()).filter(|&c| sizes[c] > level).collect();
    let rest = total - drawn_at(level);
    draws.shuffle_front(&mut larger, rest);
    for &class in &larger[..rest] {
        quotas[class] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn stratified(labels: &[u32], len: usize, limit: usize, seed: u64) -> Vec<usize> {
        super::stratified(&labels.iter().copied().collect(), len, limit, seed)
    }

    #[test]
    fn a_small_part_is_that_of_the_whole_shuffle() {
        for (len, count) in [(1, 0), (8, 1), (100, 0), (100, 12), (1000, 125), (5000, 3)] {
            let mut all: Vec<usize> = (0..len).collect();
            Draws::new(7).shuffle_front(&mut all, count);
            assert_eq!(front(&mut Draws::new(7), len, count), all[..count], "{count} of {len}");
        }
    }

    fn counts(labels: &[u32], sample: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; labels.iter().max().map_or(0, |&label| label as usize + 1)];
        for &position in sample {
            counts[labels[position] as usize] += 1;
        }
        counts
    }

    #[test]
    fn classes_are_drawn_evenly_and_without_replacement() {
        let labels: Vec<u32> = (0..10).flat_map(|class| [class; 50]).collect();
        for limit in [1, 7, 10, 64, 95, 499, 500, 900] {
            let sample = stratified(&labels, labels.len(), limit, 3);
            assert_eq!(sample.len(), limit.min(500));
            assert_eq!(sample.iter().collect::<BTreeSet<_>>().len(), sample.len());
            let counts = counts(&labels, &sample);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{limit}: {counts:?}");
        }
    }

    #[test]
    fn small_classes_give_all_they_have() {
        let labels: Vec<u32> = [(0, 2), (1, 100), (2, 9)].iter().flat_map(|&(c, n)| vec![c; n]).collect();
        assert_eq!(counts(&labels, &stratified(&labels, labels.len(), 31, 0)), [2, 20, 9]);
    }

    #[test]
    fn seeds_decide_the_draw() {
        let labels: Vec<u32> = (0..1000).map(|i| i / 100).collect();
        let draw = |seed| stratified(&labels, labels.len(), 80, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // The order is shuffled: the first eight images do not all have the same class.
        assert!(draw(1)[..8].iter().map(|&i| labels[i]).collect::<BTreeSet<_>>().len() > 2);
    }

    #[test]
    fn the_draw_is_fixed_across_versions() {
        // Reports record draws, so an equal seed must give an equal draw in later versions.
        assert_eq!(stratified(&[], 10, 5, 0), [5, 9, 0, 1, 7]);
        assert_eq!(stratified(&[0; 10], 10, 5, 0), [5, 9, 0, 1, 7]);
    }

    #[test]
    fn every_position_is_drawn_equally_often() {
        let mut counts = [0_u32; 10];
        for seed in 0..5000 {
            for position in stratified(&[], 10, 3, seed) {
                counts[position] += 1;
            }
        }
        // The expected count is 1500 with a standard deviation of sqrt(5000 * 0.3 * 0.7) = 32; the bound is
        // five of them.
        assert!(counts.iter().all(|count| (1340..=1660).contains(count)), "{counts:?}");
    }
}
