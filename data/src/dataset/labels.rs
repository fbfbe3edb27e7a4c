//! Class numbers in little memory: two bytes each where every class is below 65,536.

/// A list of class numbers.
#[derive(Clone, Debug)]
pub(super) enum Labels {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Default for Labels {
    fn default() -> Labels {
        Labels::Narrow(Vec::new())
    }
}

impl Labels {
    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Narrow(labels) => labels.len(),
            Labels::Wide(labels) => labels.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Label `i`.
    ///
    /// # Panics
    /// If `i` is not below the length.
    pub(super) fn get(&self, i: usize) -> u32 {
        match self {
            Labels::Narrow(labels) => u32::from(labels[i]),
            Labels::Wide(labels) => labels[i],
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Reserves memory for `count` labels below 65,536.
    pub(super) fn reserve(&mut self, count: usize) {
        match self {
            Labels::Narrow(labels) => labels.reserve(count),
            Labels::Wide(labels) => labels.reserve(count),
        }
    }

    pub(super) fn push(&mut self, label: u32) {
        match (&mut *self, u16::try_from(label)) {
            (Labels::Narrow(labels), Ok(label)) => labels.push(label),
            (Labels::Narrow(labels), Err(_)) => {
                let wide = labels.iter().map(|&label| u32::from(label)).chain([label]);
                *self = Labels::Wide(wide.collect());
            }
            (Labels::Wide(labels), _) => labels.push(label),
        }
    }

    /// Replaces each label by `to[label]`.
    ///
    /// # Panics
    /// If a label is not below the length of `to`.
    pub(super) fn renumber(&mut self, to: &[u32]) {
        match self {
            Labels::Narrow(labels) if to.iter().all(|&label| label <= u32::from(u16::MAX)) => {
                labels.iter_mut().for_each(|label| *label = to[usize::from(*label)] as u16);
            }
            Labels::Wide(labels) => labels.iter_mut().for_each(|label| *label = to[*label as usize]),
            Labels::Narrow(_) => *self = self.iter().map(|label| to[label as usize]).collect(),
        }
    }

    /// Frees the memory reserved for further labels.
    pub(super) fn shrink(&mut self) {
        match self {
            Labels::Narrow(labels) => labels.shrink_to_fit(),
            Labels::Wide(labels) => labels.shrink_to_fit(),
        }
    }
}

impl FromIterator<u32> for Labels {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Labels {
        let mut labels = Labels::default();
        iter.into_iter().for_each(|label| labels.push(label));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_any_size_are_kept() {
        let values = [3, 0, 65_535, 65_536, 2, 1 << 23];
        for count in 0..=values.len() {
            let labels: Labels = values[..count].iter().copied().collect();
            assert_eq!(labels.iter().collect::<Vec<_>>(), values[..count]);
            assert_eq!(matches!(labels, Labels::Narrow(_)), count <= 3);
        }
    }

    #[test]
    fn labels_are_renumbered() {
        for to in [[5, 6, 7], [5, 70_000, 7]] {
            let mut labels: Labels = [2, 0, 1, 2].into_iter().collect();
            labels.renumber(&to);
            assert_eq!(labels.iter().collect::<Vec<_>>(), [7, 5, to[1], 7]);
        }
        let mut wide: Labels = [0, 70_000].into_iter().collect();
        wide.renumber(&vec![9; 70_001]);
        assert_eq!(wide.iter().collect::<Vec<_>>(), [9, 9]);
    }
}
