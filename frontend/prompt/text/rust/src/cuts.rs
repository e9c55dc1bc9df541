//! Where a text may be cut without a change of its tokens. Two kinds of places:
//!
//! *In front of an added token* that is searched in the text as it is (`normalized` false). The tokenizer takes those out
//! before anything else, leftmost first and longest first, and looks at each stretch between them alone. The piece after such a cut
//! begins with the token itself, so that what follows it is still not at the start of a text ("▁" is prepended there, by
//! the scheme "first"). Left out are tokens that look around: `lstrip` and `single_word` themselves, and whatever
//! follows an `rstrip` token but for white space, or touches a `single_word` one.
//!
//! *Between a newline and an ASCII letter*, where the regular expression that splits words is one of the known ones. None of
//! their alternatives matches across that place, none looks behind, and a run of white space that ends in a newline is
//! taken up to it without a look at what follows; GPT-2's expression does look, and there the newline must be alone.
//! NFC composes nothing across that place either. Not where any added token looks around or contains such a place.
//!
//! Whether a place is a cut is known from the text up to `lookahead` bytes after it, since no added token is longer. So what
//! was found in one text holds in every text that begins with the same bytes up to there.

use crate::Failure;
use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::{AddedToken, Tokenizer};

pub struct Cuts {
    finder: Option<DoubleArrayAhoCorasick<u32>>,
    tokens: HashMap<u32, AddedToken>,
    lines: Lines,
    pub lookahead: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lines {
    /// Not between newline and letter.
    None,
    /// Only after a newline that stands alone.
    Alone,
    /// After any.
    All,
}

impl Cuts {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, Failure> {
        let internal = |e: &dyn std::fmt::Display| Failure::internal(e.to_string());
        let all = tokenizer.get_added_tokens_decoder();
        let hidden = tokenizer.get_encode_special_tokens();
        let tokens: HashMap<u32, AddedToken> = all
            .iter()
            .filter(|(_, token)| !token.normalized)
            .map(|(id, token)| (*id, token.clone()))
            .collect();
        let finder = if tokens.is_empty() || hidden {
            None
        } else {
            Some(
                DoubleArrayAhoCorasickBuilder::new()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build_with_values(tokens.iter().map(|(id, token)| (token.content.as_str(), *id)))
                    .map_err(|e| internal(&e))?,
            )
        };
        let plain = |token: &AddedToken| {
            !token.lstrip && !token.rstrip && !token.single_word && !token.content.as_bytes().windows(2).any(is_line)
        };
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).map_err(|e| internal(&e))?;
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).map_err(|e| internal(&e))?;
        let lines = if !hidden && all.values().all(plain) && leaves_lines_alone(&normalizer) {
            lines_of(&pre_tokenizer)
        } else {
            Lines::None
        };
        let lookahead = all.values().map(|token| token.content.len()).max().unwrap_or(0) + 4;
        Ok(Cuts { finder, tokens, lines, lookahead })
    }

    pub fn lines(&self) -> Lines {
        self.lines
    }

    /// Ascending; no piece but the last is shorter than `piece_bytes_min`, and none is empty.
    pub fn find(&self, text: &str, piece_bytes_min: usize) -> Vec<usize> {
        let mut cuts = Chosen { places: vec![], last: 0, apart: piece_bytes_min.max(1) };
        let mut before: Option<(usize, &AddedToken)> = None;
        let mut searched = 0;
        if let Some(finder) = &self.finder {
            for found in finder.leftmost_find_iter(text) {
                let token = &self.tokens[&found.value()];
                let start = found.start();
                self.find_lines(text, searched, start, &mut cuts);
                searched = found.end();
                let apart = match before {
                    None => true,
                    Some((end, left)) => {
                        !(left.single_word && end == start)
                            && !(left.rstrip && text[end..start].chars().all(char::is_whitespace))
                    }
                };
                if apart && !token.lstrip && !token.single_word {
                    cuts.offer(start);
                }
                before = Some((found.end(), token));
            }
        }
        self.find_lines(text, searched, text.len(), &mut cuts);
        cuts.places
    }

    /// Cuts between newline and letter, the letter at `from` or later and before `to`.
    fn find_lines(&self, text: &str, from: usize, to: usize, cuts: &mut Chosen) {
        if self.lines == Lines::None {
            return;
        }
        let bytes = text.as_bytes();
        let mut at = from.max(cuts.last + cuts.apart).max(1);
        while at < to {
            let Some(newline) = memchr::memchr(b'\n', &bytes[at - 1..to - 1]) else {
                return;
            };
            let place = at + newline;
            let alone = self.lines == Lines::All
                || text[..place - 1].chars().next_back().is_some_and(|c| !c.is_whitespace());
            if bytes[place].is_ascii_alphabetic() && alone {
                cuts.offer(place);
                at = (place + cuts.apart).max(place + 1);
            } else {
                at = place + 1;
            }
        }
    }
}

struct Chosen {
    places: Vec<usize>,
    last: usize,
    apart: usize,
}

impl Chosen {
    fn offer(&mut self, place: usize) {
        if place >= self.last + self.apart {
            self.places.push(place);
            self.last = place;
        }
    }
}

fn is_line(pair: &[u8]) -> bool {
    pair[0] == b'\n' && pair[1].is_ascii_alphabetic()
}

fn leaves_lines_alone(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        None => normalizer.is_null(),
        Some("NFC") => true,
        Some("Sequence") => normalizer["normalizers"]
            .as_array()
            .is_some_and(|all| all.iter().all(leaves_lines_alone)),
        _ => false,
    }
}

/// Expressions in which `\s*[\r\n]+` comes before `\s+(?!\S)`: those of cl100k and Llama 3 (up to three digits), of Qwen (one
/// digit), of o200k and of Mistral's tekken, and DeepSeek's.
const TAKE_NEWLINES_FIRST: [&str; 7] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    // With Qwen's later marks.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Expressions that match neither newlines nor across one, and leave the rest of the text to those that follow.
const TOUCH_NO_NEWLINE: [&str; 2] = [r"\p{N}{1,3}", r"[一-龥\u3040-ゟ゠-ヿ]+"];

fn lines_of(pre_tokenizer: &Value) -> Lines {
    let alone = std::slice::from_ref(pre_tokenizer);
    let steps = match pre_tokenizer["type"].as_str() {
        Some("Sequence") => pre_tokenizer["pretokenizers"].as_array().map_or(alone, Vec::as_slice),
        _ => alone,
    };
    let mut lines = Lines::None;
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") if step["add_prefix_space"] == false => {
                if step["use_regex"] == true && lines == Lines::None {
                    lines = Lines::Alone;
                } else if step["use_regex"] == true {
                    return Lines::None;
                }
            }
            Some("Split") => {
                let isolated = step["behavior"] == "Isolated" && step["invert"] == false;
                let matches_only = step["behavior"] == "Removed" && step["invert"] == true;
                // Some files have the characters themselves where others have their names.
                let pattern = step["pattern"]["Regex"].as_str().unwrap_or("");
                let pattern = pattern.replace('\r', r"\r").replace('\n', r"\n");
                if TAKE_NEWLINES_FIRST.contains(&pattern.as_str()) && (isolated || matches_only) {
                    lines = Lines::All;
                } else if !(isolated && is_newline_free(&pattern)) {
                    return Lines::None;
                }
            }
            Some("Digits") => {}
            _ => return Lines::None,
        }
    }
    lines
}

fn is_newline_free(pattern: &str) -> bool {
    // The range of hiragana is written with its first character, which has no name in any alphabet.
    TOUCH_NO_NEWLINE.iter().any(|known| known.replace(r"\u3040", "\u{3040}") == pattern)
}
