//! One of several equal divisions of the images.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most shards of a run.
pub const MAX_SHARDS: usize = 65_536;

/// One of `count` shards. Shards divide the batches of a run in order: each has consecutive batches, and the
/// numbers of batches differ by at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Number of the shard, from 1 to `count`.
    pub index: usize,
    /// Number of shards, at most [`MAX_SHARDS`].
    pub count: usize,
}

impl Shard {
    /// Whether the numbers are possible.
    pub fn is_valid(self) -> bool {
        (1..=MAX_SHARDS).contains(&self.count) && (1..=self.count).contains(&self.index)
    }

    /// The batches of this shard, of `batches` in all. It is empty if there are fewer batches than shards.
    pub fn batches(self, batches: usize) -> Range<usize> {
        let first = |index: usize| (index as u128 * batches as u128 / self.count as u128) as usize;
        first(self.index - 1)..first(self.index)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    /// Reads `I/N`.
    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let Some((index, count)) = numbers else {
            return Err("must be I/N, such as 2/8 for the second of eight shards".to_owned());
        };
        let shard = Shard { index, count };
        if shard.is_valid() {
            return Ok(shard);
        }
        if !(1..=MAX_SHARDS).contains(&count) {
            return Err(format!("there must be 1 to {MAX_SHARDS} shards"));
        }
        Err(format!("shards are numbered from 1: 1/{count} to {count}/{count}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_divide_the_batches_in_order() {
        for (batches, count) in [(10, 1), (10, 3), (10, 7), (10, 10), (7, 3), (1563, 64), (3, 5)] {
            let shards = (1..=count).map(|index| Shard { index, count }.batches(batches));
            let all: Vec<usize> = shards.clone().flatten().collect();
            assert_eq!(all, (0..batches).collect::<Vec<_>>());
            let sizes: Vec<usize> = shards.map(|range| range.len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn texts_of_shards() {
        assert_eq!("2/8".parse(), Ok(Shard { index: 2, count: 8 }));
        for (text, problem) in [
            ("0/3", "1/3 to 3/3"),
            ("4/3", "1/3 to 3/3"),
            ("1/0", "1 to 65536"),
            ("1/65537", "1 to 65536"),
            ("2", "I/N"),
            ("a/b", "I/N"),
            ("-1/3", "I/N"),
            ("1/3/5", "I/N"),
            ("", "I/N"),
        ] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
