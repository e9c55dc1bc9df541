//! Byte-pair encoding of words: the model of a tokenizer.json as tables of our own, with a memory
//! of words. Ids are those of `tokenizers`: of the pairs of neighbours the one of lowest rank is
//! merged first, of equal ones the leftmost, until no pair has a rank.
//!
//! `Merges` is immutable and shared; `Known`, the memory, is one call's at a time.

use crate::fast_hash::{hash_bytes, FastMap};
use crate::work;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use tokenizers::models::bpe::BPE;
use tokenizers::Model;

/// Stands for a blank in vocabularies of SentencePiece's kind (U+2581).
pub const BLANK: char = '▁';

pub struct Merges {
    /// (left, right) → (rank, merged). The key is `pair`; a lower rank is merged first.
    pairs: FastMap<u64, (u32, u32)>,
    symbols: Symbols,
    /// Words that are tokens whatever the merges say; empty unless the model asks for that.
    whole: FastMap<Box<[u8]>, u32>,
    sides: Sides,
}

enum Symbols {
    /// Each byte of a word is a symbol (ByteLevel).
    Bytes(Box<[u32; 256]>),
    /// Each character is a symbol. One without a token becomes its bytes, where the model has
    /// tokens for bytes (byte_fallback), or cannot be encoded here.
    Chars { ids: FastMap<char, u32>, bytes: Option<Box<[u32; 256]>> },
}

/// Characters at which no merge goes on, for `Merges::parts`. By ASCII code; index 0 is BLANK, and
/// NUL is never looked up. Merges of two equal characters do not count: runs are never split.
struct Sides {
    /// No merge has this character at its right part's start and another one before it.
    starts: [bool; 128],
    /// No merge has this character at its left part's end and another one behind it.
    ends: [bool; 128],
}

/// The fields of a BPE model, as the crate serializes it.
#[derive(Deserialize)]
struct Parts {
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
}

impl Merges {
    /// None: a model with something that these tables do not know: affixes of words, dropout, or
    /// whole words over characters. `of_bytes`: texts come in the alphabet of ByteLevel.
    pub fn new(model: &BPE, of_bytes: bool) -> Option<Self> {
        let parts: Parts = serde_json::from_str(&serde_json::to_string(model).ok()?).ok()?;
        let affixes = [&parts.continuing_subword_prefix, &parts.end_of_word_suffix];
        let has_affix = affixes.iter().any(|affix| affix.as_ref().is_some_and(|text| !text.is_empty()));
        let has_dropout = parts.dropout.is_some_and(|share| share > 0.0);
        // Two names for one id would be one symbol here and two in the crate, with another order of
        // merges.
        if has_affix || has_dropout || parts.vocab.len() != model.get_vocab_size() || (parts.ignore_merges && !of_bytes) {
            return None;
        }
        let mut pairs = FastMap::default();
        for (rank, (left, right)) in parts.merges.iter().enumerate() {
            let merged = *parts.vocab.get(&format!("{left}{right}"))?;
            pairs.insert(pair(*parts.vocab.get(left)?, *parts.vocab.get(right)?), (rank as u32, merged));
        }
        let mut whole = FastMap::default();
        let symbols = if of_bytes {
            let alphabet = alphabet();
            let mut ids = Box::new([0; 256]);
            for (byte, c) in alphabet.iter().enumerate() {
                ids[byte] = *parts.vocab.get(c.encode_utf8(&mut [0; 4]) as &str)?;
            }
            if parts.ignore_merges {
                let byte_of: FastMap<char, u8> = alphabet.iter().enumerate().map(|(byte, c)| (*c, byte as u8)).collect();
                for (token, id) in &parts.vocab {
                    if let Some(bytes) = token.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>() {
                        whole.insert(bytes.into_boxed_slice(), *id);
                    }
                }
            }
            Symbols::Bytes(ids)
        } else {
            // Tokens of one character are its symbol.
            let ids = parts.vocab.iter().filter_map(|(token, id)| {
                let mut chars = token.chars();
                chars.next().filter(|_| chars.next().is_none()).map(|c| (c, *id))
            });
            let ids = ids.collect();
            let names: Vec<String> = (0..=255u8).map(|byte| format!("<{byte:#04X}>")).collect();
            let ids_of_bytes: Option<Vec<u32>> = names.iter().map(|name| parts.vocab.get(name).copied()).collect();
            // A merge of byte tokens would join bytes of a character that has no token: not in
            // these tables.
            if parts.merges.iter().any(|(left, right)| names.contains(left) || names.contains(right)) {
                return None;
            }
            let bytes = ids_of_bytes.filter(|_| parts.byte_fallback);
            Symbols::Chars { ids, bytes: bytes.and_then(|ids| ids.into_boxed_slice().try_into().ok()) }
        };
        Some(Merges { pairs, symbols, whole, sides: Sides::new(&parts.merges) })
    }

    /// Whether every text can be encoded here; else some characters need `tokenizers`.
    pub fn knows_all(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes(_) | Symbols::Chars { bytes: Some(_), .. })
    }

    /// Whether no merge reaches from `before` to `after`. False where that was not looked up.
    /// Equal neighbours are never parted, so that a run of one character stays whole.
    pub fn parts(&self, before: char, after: char) -> bool {
        let side = |table: &[bool; 128], c: char| match c {
            BLANK => table[0],
            '\0' => false,
            c => c.is_ascii() && table[c as usize],
        };
        before != after && (side(&self.sides.ends, before) || side(&self.sides.starts, after))
    }

    /// Appends the ids of `word`; false: it has a character that only `tokenizers` knows what to do
    /// with.
    /// 1. Looks the word up in its slot, if it is short enough for one.
    /// 2. A word that is a token as a whole (`ignore_merges`) needs no merges.
    /// 3. Otherwise splits it into symbols and merges them, by the way that is faster for its
    ///    length.
    /// 4. Puts the result into the slot, in the place of another word.
    ///
    /// False leaves the slot and `ids` as they were.
    pub fn encode(&self, word: &str, known: &mut Known, ids: &mut Vec<u32>) -> bool {
        work::step();
        let bytes = word.as_bytes();
        let slot = known.slot(bytes);
        if let Some(slot) = slot {
            if known.slots[slot].is(bytes) {
                ids.extend_from_slice(known.slots[slot].ids());
                return true;
            }
        }
        let first = ids.len();
        match self.whole.get(bytes) {
            Some(id) => ids.push(*id),
            None => {
                known.symbols.clear();
                if !self.symbols.of(word, &mut known.symbols) {
                    return false;
                }
                if known.symbols.len() <= SHORT {
                    self.merge_short(&mut known.symbols, &mut known.ranks);
                } else {
                    self.merge_long(&mut known.symbols);
                }
                ids.extend_from_slice(&known.symbols);
            }
        }
        if let Some(slot) = slot {
            known.slots[slot].set(bytes, &ids[first..]);
        }
        true
    }

    /// The rank and the result of a pair; (NONE, NONE): it is never merged.
    fn pair_of(&self, left: u32, right: u32) -> (u32, u32) {
        self.pairs.get(&pair(left, right)).copied().unwrap_or((NONE, NONE))
    }

    /// Looks at all pairs for each merge: quadratic, but for few symbols faster than a queue.
    /// `pairs[i]` is that of symbols i and i + 1; a merge changes three of them. Strictly lower
    /// wins, so that of equal ranks the leftmost is taken.
    fn merge_short(&self, symbols: &mut Vec<u32>, pairs: &mut Vec<(u32, u32)>) {
        pairs.clear();
        pairs.extend(symbols.windows(2).map(|two| self.pair_of(two[0], two[1])));
        loop {
            let mut best = (NONE, 0);
            for (at, (rank, _)) in pairs.iter().enumerate() {
                if *rank < best.0 {
                    best = (*rank, at);
                }
            }
            if best.0 == NONE {
                return;
            }
            let at = best.1;
            symbols[at] = pairs[at].1;
            symbols.remove(at + 1);
            pairs.remove(at);
            if at < pairs.len() {
                pairs[at] = self.pair_of(symbols[at], symbols[at + 1]);
            }
            if at > 0 {
                pairs[at - 1] = self.pair_of(symbols[at - 1], symbols[at]);
            }
        }
    }

    /// With a queue of pairs instead of a look at all of them: n log n for n symbols.
    ///
    /// Symbols stay where they are and are linked by `next` and `before`; a symbol that was merged
    /// into its left neighbour is NONE. The queue has (rank, place of the left symbol), so of equal
    /// ranks the leftmost comes first. Entries are not removed when a pair changes: an entry whose
    /// rank is no longer that of its pair is skipped. Each merge adds two entries at most.
    fn merge_long(&self, symbols: &mut Vec<u32>) {
        let count = symbols.len();
        let mut next: Vec<usize> = (1..=count).collect();
        let mut before: Vec<usize> = (0..count).map(|at| at.wrapping_sub(1)).collect();
        let mut queue: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::with_capacity(count);
        for at in 0..count - 1 {
            work::step();
            let (rank, _) = self.pair_of(symbols[at], symbols[at + 1]);
            if rank != NONE {
                queue.push(Reverse((rank, at)));
            }
        }
        while let Some(Reverse((rank, at))) = queue.pop() {
            work::step();
            let right = next[at];
            if symbols[at] == NONE || right >= count {
                continue;
            }
            let (now, merged) = self.pair_of(symbols[at], symbols[right]);
            if now != rank {
                continue;
            }
            symbols[at] = merged;
            symbols[right] = NONE;
            next[at] = next[right];
            if next[at] < count {
                before[next[at]] = at;
                let (rank, _) = self.pair_of(merged, symbols[next[at]]);
                if rank != NONE {
                    queue.push(Reverse((rank, at)));
                }
            }
            if before[at] < count {
                let (rank, _) = self.pair_of(symbols[before[at]], merged);
                if rank != NONE {
                    queue.push(Reverse((rank, before[at])));
                }
            }
        }
        symbols.retain(|symbol| *symbol != NONE);
    }
}

impl Symbols {
    /// Appends the symbols of a word; false: a character has none.
    fn of(&self, word: &str, symbols: &mut Vec<u32>) -> bool {
        match self {
            Symbols::Bytes(ids) => symbols.extend(word.bytes().map(|byte| ids[byte as usize])),
            Symbols::Chars { ids, bytes } => {
                for c in word.chars() {
                    match (ids.get(&c), bytes) {
                        (Some(id), _) => symbols.push(*id),
                        (None, Some(bytes)) => {
                            symbols.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|byte| bytes[byte as usize]));
                        }
                        (None, None) => return false,
                    }
                }
            }
        }
        true
    }
}

/// Filled from the merges: the last character of a left part and the first one of a right part are
/// joined by some merge, so words do not end there.
impl Sides {
    fn new(merges: &[(String, String)]) -> Self {
        let mut sides = Sides { starts: [true; 128], ends: [true; 128] };
        let index = |c: char| match c {
            BLANK => Some(0),
            '\0' => None,
            c => Some(c as usize).filter(|c| *c < 128),
        };
        for (left, right) in merges {
            let (Some(before), Some(after)) = (left.chars().next_back(), right.chars().next()) else {
                continue;
            };
            if before == after {
                continue;
            }
            if let Some(c) = index(after) {
                sides.starts[c] = false;
            }
            if let Some(c) = index(before) {
                sides.ends[c] = false;
            }
        }
        sides
    }
}

const NONE: u32 = u32::MAX;
/// Symbols up to which looking at all pairs is faster than a queue.
const SHORT: usize = 64;

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// ByteLevel's alphabet: printable bytes stand for themselves, the others for U+0100 and the
/// following, in order.
fn alphabet() -> Vec<char> {
    let mut others = 0x100..;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => others.next().and_then(char::from_u32).unwrap_or(char::MAX),
        })
        .collect()
}

// ---- Words met before ----

/// A slot is a cache line of 64 bytes: 24 of ids, 34 of the word, 2 of lengths.
const SLOTS: usize = 1 << 14;
const KEY_BYTES: usize = 34;
const IDS: usize = 6;

/// Words and their ids, one megabyte, as a direct-mapped cache: a word takes the place of another
/// in the same slot. The buffers besides are what `encode` needs for a word. For one thread at a
/// time.
pub struct Known {
    slots: Vec<Slot>,
    /// The symbols and pairs (`merge_short`) of the current word.
    symbols: Vec<u32>,
    ranks: Vec<(u32, u32)>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Slot {
    ids: [u32; IDS],
    key: [u8; KEY_BYTES],
    /// Bytes of the word; 0: the slot is empty, as no word is.
    size: u8,
    count: u8,
}

impl Known {
    pub fn new() -> Self {
        let empty = Slot { ids: [0; IDS], key: [0; KEY_BYTES], size: 0, count: 0 };
        Known { slots: vec![empty; SLOTS], symbols: vec![], ranks: vec![] }
    }

    /// None: the word is too long to be remembered.
    fn slot(&self, word: &[u8]) -> Option<usize> {
        (word.len() <= KEY_BYTES).then(|| hash_bytes(word) as usize % SLOTS)
    }
}

impl Slot {
    fn is(&self, word: &[u8]) -> bool {
        self.size as usize == word.len() && self.key[..word.len()] == *word
    }

    fn ids(&self) -> &[u32] {
        &self.ids[..self.count as usize]
    }

    /// Bytes are compared on the way out (`is`), so a slot never gives the ids of another word. A
    /// word of more ids than fit is not stored.
    fn set(&mut self, word: &[u8], ids: &[u32]) {
        if ids.len() <= IDS {
            self.key[..word.len()].copy_from_slice(word);
            self.ids[..ids.len()].copy_from_slice(ids);
            self.size = word.len() as u8;
            self.count = ids.len() as u8;
        }
    }
}
