//! A list of names in little memory. Lists of data sets have millions of names, most of which begin and end
//! like the one before.

/// Names of a block. Finding a name reads at most one block.
const BLOCK: usize = 32;

/// An append-only list of texts. A text is stored as the numbers of bytes that it shares with the start and
/// with the end of the one before it in the same block, and the bytes between the two.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// For each name: the length of the shared start (one byte), the length of the shared end and that of the
    /// bytes between (four bits each; 15 is followed by what is missing, see [`push_length`]), the bytes
    /// between.
    bytes: Vec<u8>,
    /// Offset of each block.
    blocks: Vec<usize>,
    len: usize,
    /// The last name.
    last: Vec<u8>,
}

/// The greatest length in four bits.
const NIBBLE: usize = 15;

impl Names {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, name: &str) {
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(self.bytes.len());
            self.last.clear();
        }
        let start = equal(name.bytes().zip(self.last.iter().copied())).min(255);
        let rest = &name.as_bytes()[start..];
        let end = equal(rest.iter().rev().copied().zip(self.last.iter().rev().copied())).min(NIBBLE);
        let between = &rest[..rest.len() - end];
        let short = between.len().min(NIBBLE);
        self.bytes.extend([start as u8, (end << 4 | short) as u8]);
        if short == NIBBLE {
            push_length(&mut self.bytes, between.len() - NIBBLE);
        }
        self.bytes.extend_from_slice(between);
        self.last.clear();
        self.last.extend_from_slice(name.as_bytes());
        self.len += 1;
    }

    /// Reserves `bytes` bytes, so that the list need not be copied when it grows. Memory that stays unused is
    /// never touched.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Frees the memory reserved for further names.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.blocks.shrink_to_fit();
    }

    /// Name `i`.
    ///
    /// # Panics
    /// If `i` is not below the length.
    pub(super) fn get(&self, i: usize) -> String {
        assert!(i < self.len, "name {i} of {}", self.len);
        let mut found = String::new();
        self.visit_block(i / BLOCK, |at, name| {
            if at == i {
                name.clone_into(&mut found);
            }
        });
        found
    }

    /// Number of blocks, for [`Names::visit_block`].
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Calls `visit(i, name)` for the names of a block in order.
    pub(super) fn visit_block(&self, block: usize, mut visit: impl FnMut(usize, &str)) {
        let (mut at, mut name, mut end) = (self.blocks[block], Vec::new(), Vec::new());
        for i in block * BLOCK..((block + 1) * BLOCK).min(self.len) {
            let (start, lengths) = (usize::from(self.bytes[at]), usize::from(self.bytes[at + 1]));
            at += 2;
            let mut between = lengths % 16;
            if between == NIBBLE {
                between += take_length(&self.bytes, &mut at);
            }
            end.clear();
            end.extend_from_slice(&name[name.len() - lengths / 16..]);
            name.truncate(start);
            name.extend_from_slice(&self.bytes[at..at + between]);
            name.extend_from_slice(&end);
            at += between;
            visit(i, std::str::from_utf8(&name).expect("the parts of a text"));
        }
    }

    /// Calls `visit(i, name)` for all names in order.
    pub(super) fn visit(&self, mut visit: impl FnMut(usize, &str)) {
        (0..self.blocks()).for_each(|block| self.visit_block(block, &mut visit));
    }

    /// All names.
    #[cfg(test)]
    pub(super) fn to_vec(&self) -> Vec<String> {
        (0..self.len).map(|i| self.get(i)).collect()
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Names {
        let mut names = Names::default();
        texts.into_iter().for_each(|text| names.push(text.as_ref()));
        names.shrink();
        names
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} names", self.len)
    }
}

/// Number of pairs before the first whose items differ.
fn equal(pairs: impl Iterator<Item = (u8, u8)>) -> usize {
    pairs.take_while(|(a, b)| a == b).count()
}

/// Appends a length, seven bits to a byte, the lowest first; all bytes but the last have the highest bit set.
fn push_length(bytes: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
}

/// Reads a length at `at` and moves `at` behind it.
fn take_length(bytes: &[u8], at: &mut usize) -> usize {
    let (mut length, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return length;
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_resemble_each_other_take_little_memory() {
        let names: Names = (0..100_000).map(|i| format!("n01440764/n01440764_{i}.JPEG")).collect();
        assert!(names.bytes.len() < 100_000 * 5, "{}", names.bytes.len());
        assert_eq!(names.get(99_999), "n01440764/n01440764_99999.JPEG");
    }

    proptest! {
        #[test]
        fn every_name_is_found_again(
            texts in proptest::collection::vec("(a{0,300}|n[0-9]{1,4}/)?[aé€😀/]{0,6}(b{0,40}|[.]jpg)", 0..80)
        ) {
            let names: Names = texts.iter().collect();
            prop_assert_eq!(names.to_vec(), texts.clone());
            let mut visited = Vec::new();
            names.visit(|i, name| visited.push((i, name.to_owned())));
            prop_assert_eq!(visited, texts.into_iter().enumerate().collect::<Vec<_>>());
        }
    }
}
