//! Hashes for tables whose keys come from a model's files or are looked up once per word: no
//! defence against chosen keys, which at worst make a table slow at loading, never wrong.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

#[derive(Default)]
pub struct FastHasher(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The two halves of a product, joined: each bit of the word changes bits all over the result.
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0, hash_bytes(bytes));
    }
    fn write_u32(&mut self, word: u32) {
        self.0 = mix(self.0, u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The length is part of the hash, as the last bytes are padded with zeros.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64 ^ 0x51_7c_c1_b7_27_22_0a_95;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = mix(hash, u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]));
    }
    let mut last = 0;
    for byte in words.remainder() {
        last = last << 8 | u64::from(*byte);
    }
    mix(hash, last)
}
