//! Positions in a data set's list.

use std::ops::Range;
use std::sync::Arc;

/// Positions of images in a data set's list, in the order of use. Clones share their memory, and the
/// positions of a whole list take none, because a list may have millions of images.
#[derive(Clone, Debug)]
pub struct Ids(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// `0..len`.
    All(usize),
    Chosen(Arc<[usize]>),
}

impl Ids {
    /// The positions `0..len`.
    pub fn all(len: usize) -> Ids {
        Ids(Kind::All(len))
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::All(len) => *len,
            Kind::Chosen(ids) => ids.len(),
        }
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions at `range` of the order.
    ///
    /// # Panics
    /// If `range` exceeds the number of positions.
    pub fn slice(&self, range: Range<usize>) -> Vec<usize> {
        match &self.0 {
            Kind::All(len) => {
                assert!(range.end <= *len, "positions {range:?} of {len}");
                range.collect()
            }
            Kind::Chosen(ids) => ids[range].to_vec(),
        }
    }

    /// All positions, in the order of use.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).map(|i| match &self.0 {
            Kind::All(_) => i,
            Kind::Chosen(ids) => ids[i],
        })
    }
}

impl From<Vec<usize>> for Ids {
    fn from(ids: Vec<usize>) -> Ids {
        Ids(Kind::Chosen(ids.into()))
    }
}

impl FromIterator<usize> for Ids {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Ids {
        Ids(Kind::Chosen(ids.into_iter().collect()))
    }
}
