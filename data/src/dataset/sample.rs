//! Seeded, stratified samples of a labelled list.

use std::collections::BTreeMap;

use swinq_model::Draws;

/// Draws `limit` of the positions `0..len` without replacement, in random order and as evenly over the classes as
/// their sizes allow. Empty `labels` count as one class.
pub(super) fn stratified(labels: &[u32], len: usize, limit: usize, seed: u64) -> Vec<usize> {
    let mut draws = Draws::new(seed);
    let mut classes = by_class(labels, len);
    let quotas = quotas(&classes, limit.min(len), &mut draws);
    let mut sample = Vec::with_capacity(limit.min(len));
    for (class, &quota) in classes.iter_mut().zip(&quotas) {
        draws.shuffle_front(class, quota);
        sample.extend_from_slice(&class[..quota]);
    }
    draws.shuffle(&mut sample);
    sample
}

/// The positions of each class.
fn by_class(labels: &[u32], len: usize) -> Vec<Vec<usize>> {
    if labels.is_empty() {
        return vec![(0..len).collect()];
    }
    let mut classes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (position, &label) in labels.iter().enumerate() {
        classes.entry(label).or_default().push(position);
    }
    classes.into_values().collect()
}

/// Number of images to draw from each class, `total` in all: the same number from each class, or all of a smaller
/// class, and one more from classes drawn at random.
fn quotas(classes: &[Vec<usize>], total: usize, draws: &mut Draws) -> Vec<usize> {
    let drawn_at = |level: usize| classes.iter().map(|class| class.len().min(level)).sum::<usize>();
    let largest = classes.iter().map(Vec::len).max().unwrap_or(0);
    // Bisect for the highest level (images per class) that does not exceed the total, which grows with the level.
    let (mut level, mut above) = (0, largest + 1);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        if drawn_at(middle) <= total { level = middle } else { above = middle }
    }
    let mut quotas: Vec<usize> = classes.iter().map(|class| class.len().min(level)).collect();
    let mut larger: Vec<usize> = (0..classes.len()).filter(|&c| classes[c].len() > level).collect();
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
        // The expected count is 1500 with a standard deviation of sqrt(5000 * 0.3 * 0.7) = 32; the bound is five
        // of them.
        assert!(counts.iter().all(|count| (1340..=1660).contains(count)), "{counts:?}");
    }
}
