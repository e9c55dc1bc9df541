//! Where the added tokens of a tokenizer stand in a text: leftmost first and longest first, as
//! `tokenizers` takes them.

use crate::fast_hash::FastMap;

/// A trie over byte strings, each with a number. A search costs a look-up per byte of a candidate;
/// places where no string begins are skipped by `memchr`, as long as the strings have three first
/// bytes at most.
pub struct Finder {
    /// (node, byte) → node.
    edges: FastMap<u64, u32>,
    /// By node; NONE: no string ends there.
    ends: Vec<u32>,
    /// Whether a string begins with the byte.
    starts: [bool; 256],
    /// The bytes that strings begin with; four of them stand for four or more.
    few: Vec<u8>,
}

pub struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

const NONE: u32 = u32::MAX;

impl Finder {
    /// None without any string.
    pub fn new<'a>(strings: impl Iterator<Item = (&'a str, u32)>) -> Option<Self> {
        let mut finder = Finder { edges: FastMap::default(), ends: vec![NONE], starts: [false; 256], few: vec![] };
        for (string, id) in strings.filter(|(string, _)| !string.is_empty()) {
            finder.starts[string.as_bytes()[0] as usize] = true;
            let mut node = 0;
            for byte in string.bytes() {
                let fresh = finder.ends.len() as u32;
                node = *finder.edges.entry(edge(node, byte)).or_insert(fresh);
                if node == fresh {
                    finder.ends.push(NONE);
                }
            }
            finder.ends[node as usize] = id;
        }
        finder.few = (0..=255).filter(|byte| finder.starts[*byte as usize]).take(4).collect();
        (!finder.few.is_empty()).then_some(finder)
    }

    /// The first string at `from` or later.
    /// At a place the longest one counts.
    pub fn next(&self, text: &[u8], from: usize) -> Option<Found> {
        let mut start = from;
        loop {
            let rest = text.get(start..)?;
            start += match *self.few.as_slice() {
                [a] => memchr::memchr(a, rest),
                [a, b] => memchr::memchr2(a, b, rest),
                [a, b, c] => memchr::memchr3(a, b, c, rest),
                _ => rest.iter().position(|byte| self.starts[*byte as usize]),
            }?;
            let mut node = 0;
            let mut longest = None;
            for (i, byte) in text[start..].iter().enumerate() {
                match self.edges.get(&edge(node, *byte)) {
                    Some(next) => node = *next,
                    None => break,
                }
                if self.ends[node as usize] != NONE {
                    longest = Some(Found { start, end: start + i + 1, id: self.ends[node as usize] });
                }
            }
            if longest.is_some() {
                return longest;
            }
            start += 1;
        }
    }
}

fn edge(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}
