//! An encoder of our own for the tokenizers of today's models: the same ids as `tokenizers` makes,
//! without its strings and alignments per word. Byte-level BPE over expressions that pattern.rs
//! understands, and BPE over "▁" for blanks (Llama 2, Gemma). Tokenizers that need more are refused
//! when they are loaded, and so are texts with single_word tokens, one by one: `tokenizers` takes
//! them.
//! The steps of a text, each of which may refuse it (`Refused`):
//!
//!   encode ─▶ stretches: added tokens out ─▶ stretch: normalizes, added tokens out
//!          ─▶ plain: words ─▶ merges
//!
//! `Plan` reads the tokenizer's parts as JSON, since the crate does not show their fields. A part
//! that is not recognized to the letter makes the plan unknown, and the crate encodes.

use crate::added::Finder;
use crate::fast_hash::FastMap;
use crate::merges::{Known, Merges, BLANK};
use crate::pattern::{Mask, Splitter, Step};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, NormalizedString, Normalizer, Tokenizer};

/// The parts of a tokenizer, as far as they are known here. The places of cuts depend on them too
/// (cuts.rs).
pub struct Plan {
    pub normal: Normal,
    pub words: Words,
    pub merges: Option<Arc<Merges>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Normal {
    /// The text stays as it is.
    Nothing,
    Nfc,
    /// "▁" for every blank, and one more at the start of each stretch of text.
    Blanks { prepend: bool },
    /// Something else, which leaves a blank behind an ASCII character alone.
    KeepsBlanks,
    Unknown,
}

#[derive(Clone)]
pub enum Words {
    /// By regular expressions, with the bytes of words as symbols.
    Split(Arc<Splitter>),
    /// "▁" for blanks, and in front of the first word or of every stretch. `split`: a word ends in
    /// front of each.
    Blanks { prefix: Prefix, split: bool },
    /// White space is taken away, then as Blanks with Prefix::Always.
    BetweenSpaces,
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Prefix {
    Never,
    /// At the start of a text, not behind an added token.
    First,
    /// At the start of each stretch between added tokens.
    Always,
}

impl Plan {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let json = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Bool(false));
        let normal = normal_of(&json(serde_json::to_value(tokenizer.get_normalizer())));
        let words = words_of(&json(serde_json::to_value(tokenizer.get_pre_tokenizer())), normal);
        let merges = match (tokenizer.get_model(), &words) {
            (_, Words::Unknown) => None,
            (ModelWrapper::BPE(model), words) => Merges::new(model, matches!(words, Words::Split(_))).map(Arc::new),
            _ => None,
        };
        Plan { normal, words, merges }
    }
}

/// The steps of a normalizer or pre-tokenizer: nested sequences as one list; null is no step.
fn flat(value: &Value, list: &str, into: &mut Vec<Value>) {
    match value[list].as_array() {
        Some(all) if value["type"] == "Sequence" => all.iter().for_each(|one| flat(one, list, into)),
        _ if value.is_null() => {}
        _ => into.push(value.clone()),
    }
}

fn is_blank_to_mark(step: &Value) -> bool {
    step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == "▁"
}

/// Compares the steps with the forms that models have. `KeepsBlanks` serves cuts alone: our encoder
/// does not normalize so.
fn normal_of(normalizer: &Value) -> Normal {
    let mut steps = vec![];
    flat(normalizer, "normalizers", &mut steps);
    match steps.as_slice() {
        [] => return Normal::Nothing,
        [one] if one["type"] == "NFC" => return Normal::Nfc,
        [one] if is_blank_to_mark(one) => return Normal::Blanks { prepend: false },
        [one, two] if one["type"] == "Prepend" && one["prepend"] == "▁" && is_blank_to_mark(two) => {
            return Normal::Blanks { prepend: true }
        }
        _ => {}
    }
    let keeps = |step: &Value| match step["type"].as_str() {
        Some("NFC" | "NFKC" | "NFD" | "NFKD" | "Precompiled" | "Lowercase" | "StripAccents" | "Nmt") => true,
        // One blank is left of a run of them.
        Some("Replace") => {
            step["pattern"]["Regex"] == " {2,}" && (step["content"] == " " || step["content"] == "▁")
        }
        _ => false,
    };
    if steps.iter().all(keeps) { Normal::KeepsBlanks } else { Normal::Unknown }
}

/// Compares the pre-tokenizer with the forms that models have; Unknown leaves words to the crate.
fn words_of(pre_tokenizer: &Value, normal: Normal) -> Words {
    let mut steps = vec![];
    flat(pre_tokenizer, "pretokenizers", &mut steps);
    match steps.as_slice() {
        [] => match normal {
            Normal::Blanks { .. } => Words::Blanks { prefix: Prefix::Never, split: false },
            _ => Words::Unknown,
        },
        [one] if one["type"] == "Metaspace" => metaspace(one),
        [one, two] if one["type"] == "WhitespaceSplit" && two["type"] == "Metaspace" => match metaspace(two) {
            Words::Blanks { prefix: Prefix::Always, split: true } => Words::BetweenSpaces,
            _ => Words::Unknown,
        },
        // The normalizer has replaced all blanks, so this split finds none.
        [one] if one["type"] == "Split" && one["pattern"]["String"] == " " => match normal {
            Normal::Blanks { .. } => Words::Blanks { prefix: Prefix::Never, split: false },
            _ => Words::Unknown,
        },
        steps => splits(steps),
    }
}

/// A Metaspace step with "▁" as its replacement.
fn metaspace(step: &Value) -> Words {
    let prefix = match step["prepend_scheme"].as_str() {
        Some("never") => Prefix::Never,
        Some("first") => Prefix::First,
        Some("always") => Prefix::Always,
        _ => return Words::Unknown,
    };
    match (step["replacement"].as_str(), step["split"].as_bool()) {
        (Some("▁"), Some(split)) => Words::Blanks { prefix, split },
        _ => Words::Unknown,
    }
}

/// The expression of a ByteLevel step with `use_regex`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A chain of splits that ends with ByteLevel. `add_prefix_space` is refused: it would change the
/// text.
fn splits(steps: &[Value]) -> Words {
    let Some((last, others)) = steps.split_last() else {
        return Words::Unknown;
    };
    // ByteLevel comes last, so that expressions see the text itself, not its alphabet of bytes.
    if last["type"] != "ByteLevel" || last["add_prefix_space"] != false {
        return Words::Unknown;
    }
    let mut made = vec![];
    for step in others {
        made.push(match (step["type"].as_str(), step["pattern"]["Regex"].as_str()) {
            (Some("Split"), Some(regex)) if step["behavior"] == "Isolated" && step["invert"] == false => Step::Regex(regex),
            (Some("Split"), Some(regex)) if step["behavior"] == "Removed" && step["invert"] == true => {
                Step::OnlyMatches(regex)
            }
            (Some("Digits"), _) => Step::Digits { one_by_one: step["individual_digits"] == true },
            _ => return Words::Unknown,
        });
    }
    if last["use_regex"] == true {
        made.push(Step::Regex(GPT2));
    }
    if made.is_empty() {
        return Words::Unknown;
    }
    Splitter::new(&made).map_or(Words::Unknown, |splitter| Words::Split(Arc::new(splitter)))
}

// ---- Encoding ----

/// The encoder of one tokenizer. Immutable but for `idle`.
pub struct Own {
    normal: Normal,
    words: Words,
    merges: Arc<Merges>,
    /// Added tokens that are searched in the text as it is, and those in the normalized text.
    raw: Option<Finder>,
    normalized: Option<Finder>,
    tokens: FastMap<u32, AddedToken>,
    /// Memories of words and buffers of calls that are over. A call takes one out and puts it back,
    /// so that the lock is held for a moment; a call that panics loses its own. As many as calls
    /// ran at once, up to IDLE_MAX.
    idle: Mutex<Vec<Box<Scratch>>>,
}

/// The memory and buffers of one call at a time.
struct Scratch {
    known: Known,
    /// By character of a stretch: its classes, and where it begins.
    masks: Vec<Mask>,
    places: Vec<usize>,
    /// A normalized stretch, and one with "▁" for blanks.
    text: String,
    marked: String,
}

const IDLE_MAX: usize = 16;
/// Capacity that a call may leave in its buffers for the next one; a longer text frees them.
const BUFFER_MAX: usize = 1 << 16;

/// `text` was not encoded: `tokenizers` has to.
struct Refused;

impl Own {
    /// None: a normalizer, words or added tokens of a kind that is not encoded here. Tokens of the
    /// normalized text that look around are refused; those of the text as it is are handled
    /// (`stretches`).
    pub fn new(tokenizer: &Tokenizer, plan: &Plan) -> Option<Self> {
        let merges = plan.merges.clone()?;
        let fits = match (plan.normal, &plan.words) {
            (Normal::Nothing | Normal::Nfc, Words::Split(_)) => true,
            (Normal::Nothing, Words::Blanks { .. }) => true,
            (Normal::Blanks { .. }, Words::Blanks { prefix, .. }) => *prefix == Prefix::Never,
            _ => false,
        };
        let tokens: FastMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let plain = |token: &AddedToken| !token.lstrip && !token.rstrip && !token.single_word;
        if !fits || tokenizer.get_encode_special_tokens() || tokens.values().any(|token| token.normalized && !plain(token)) {
            return None;
        }
        let raw = Finder::new(tokens.iter().filter(|(_, t)| !t.normalized).map(|(id, t)| (t.content.as_str(), *id)));
        let contents = normalized_contents(tokenizer, &tokens)?;
        let normalized = Finder::new(contents.iter().map(|(id, content)| (content.as_str(), *id)));
        let (normal, words) = (plan.normal, plan.words.clone());
        Some(Own { normal, words, merges, raw, normalized, tokens, idle: Mutex::new(vec![]) })
    }

    /// Whether no text is refused.
    pub fn takes_all(&self) -> bool {
        self.merges.knows_all() && !self.tokens.values().any(|token| token.single_word)
    }

    /// Appends the ids of `text`; false: it is one for `tokenizers`, and nothing was appended.
    /// `continues`: there is text in front of it, up to a cut.
    pub fn encode(&self, text: &str, continues: bool, ids: &mut Vec<u32>, tokenizer: &Tokenizer) -> bool {
        let idle = self.idle.lock().map_or(None, |mut idle| idle.pop());
        let mut scratch = idle.unwrap_or_else(|| Box::new(Scratch::new()));
        let first = ids.len();
        let made = self.stretches(text, continues, ids, tokenizer, &mut scratch);
        if made.is_err() {
            ids.truncate(first);
        }
        scratch.shrink();
        if let Ok(mut idle) = self.idle.lock() {
            if idle.len() < IDLE_MAX {
                idle.push(scratch);
            }
        }
        made.is_ok()
    }

    /// Takes out the added tokens of the text as it is, leftmost and longest first; what is between
    /// them is encoded by itself. `lstrip` and `rstrip` tokens take the white space beside them,
    /// but none that an earlier token has taken (`done`).
    fn stretches(
        &self,
        text: &str,
        continues: bool,
        ids: &mut Vec<u32>,
        tokenizer: &Tokenizer,
        scratch: &mut Scratch,
    ) -> Result<(), Refused> {
        let mut done = 0;
        let mut searched = 0;
        while let Some(found) = self.raw.as_ref().and_then(|raw| raw.next(text.as_bytes(), searched)) {
            let token = self.tokens.get(&found.id).ok_or(Refused)?;
            if token.single_word {
                return Err(Refused);
            }
            let (mut start, mut end) = (found.start, found.end);
            searched = end;
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            self.stretch(&text[done..start.max(done)], done == 0, continues, ids, tokenizer, scratch)?;
            ids.push(found.id);
            done = end;
        }
        self.stretch(&text[done..], done == 0, continues, ids, tokenizer, scratch)
    }

    /// Normalizes one stretch and takes the added tokens of the normalized text out. `is_first`: it
    /// begins the text, so that with `continues` it goes on from a cut and gets no "▁" in front.
    /// Normalizing is skipped where the text is surely NFC. `scratch.text` is taken out meanwhile,
    /// as `plain` needs the rest of `scratch`; an early return costs only the buffer.
    fn stretch(
        &self,
        text: &str,
        is_first: bool,
        continues: bool,
        ids: &mut Vec<u32>,
        tokenizer: &Tokenizer,
        scratch: &mut Scratch,
    ) -> Result<(), Refused> {
        if text.is_empty() {
            return Ok(());
        }
        let mut normal = std::mem::take(&mut scratch.text);
        normal.clear();
        let text = match self.normal {
            Normal::Nfc if !is_surely_nfc(text) => {
                let mut whole = NormalizedString::from(text);
                tokenizer.get_normalizer().ok_or(Refused)?.normalize(&mut whole).map_err(|_| Refused)?;
                normal.push_str(whole.get());
                normal.as_str()
            }
            Normal::Blanks { prepend } => {
                if prepend && !(is_first && continues) {
                    normal.push(BLANK);
                }
                push_marked(text, &mut normal);
                normal.as_str()
            }
            _ => text,
        };
        let mut done = 0;
        while let Some(found) = self.normalized.as_ref().and_then(|finder| finder.next(text.as_bytes(), done)) {
            self.plain(&text[done..found.start], is_first && done == 0, continues, ids, scratch)?;
            ids.push(found.id);
            done = found.end;
        }
        self.plain(&text[done..], is_first && done == 0, continues, ids, scratch)?;
        scratch.text = normal;
        Ok(())
    }

    /// Encodes text without any added token. Words by expressions go straight to the merges. With
    /// "▁", the prefix is added where the scheme wants one and the text does not begin with one.
    fn plain(&self, text: &str, is_first: bool, continues: bool, ids: &mut Vec<u32>, scratch: &mut Scratch) -> Result<(), Refused> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.words {
            Words::Split(splitter) => {
                let Scratch { known, masks, places, .. } = scratch;
                masks.clear();
                places.clear();
                for (at, c) in text.char_indices() {
                    masks.push(splitter.mask(c));
                    places.push(at);
                }
                places.push(text.len());
                let mut is_known = true;
                splitter.split(masks, &mut |from, to| {
                    is_known &= self.merges.encode(&text[places[from]..places[to]], known, ids);
                });
                if is_known { Ok(()) } else { Err(Refused) }
            }
            Words::Blanks { prefix, split } => {
                let mut marked = std::mem::take(&mut scratch.marked);
                marked.clear();
                let is_marked = text.starts_with([' ', BLANK]);
                let wants = match prefix {
                    Prefix::Never => false,
                    Prefix::First => is_first && !continues,
                    Prefix::Always => true,
                };
                if wants && !is_marked {
                    marked.push(BLANK);
                }
                push_marked(text, &mut marked);
                let made = self.blanks(&marked, *split, ids, &mut scratch.known);
                scratch.marked = marked;
                made
            }
            _ => Err(Refused),
        }
    }

    /// Splits at places that no merge reaches across (`Merges::parts`), so that words are short and
    /// met again; with `split` also in front of each "▁".
    fn blanks(&self, text: &str, split: bool, ids: &mut Vec<u32>, known: &mut Known) -> Result<(), Refused> {
        let mut done = 0;
        let mut before = None;
        for (at, c) in text.char_indices() {
            let parts = before.is_some_and(|before| self.merges.parts(before, c) || (split && c == BLANK));
            if parts {
                if !self.merges.encode(&text[done..at], known, ids) {
                    return Err(Refused);
                }
                done = at;
            }
            before = Some(c);
        }
        if self.merges.encode(&text[done..], known, ids) { Ok(()) } else { Err(Refused) }
    }
}

impl Scratch {
    fn new() -> Self {
        Scratch { known: Known::new(), masks: vec![], places: vec![], text: String::new(), marked: String::new() }
    }

    fn shrink(&mut self) {
        if self.masks.capacity() > BUFFER_MAX || self.text.capacity() > BUFFER_MAX || self.marked.capacity() > BUFFER_MAX {
            (self.masks, self.places) = (vec![], vec![]);
            (self.text, self.marked) = (String::new(), String::new());
        }
    }
}

/// Appends the text with "▁" for each blank.
fn push_marked(text: &str, to: &mut String) {
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            to.push(BLANK);
        }
        to.push_str(part);
    }
}

/// The added tokens that are searched in the normalized text, normalized themselves. None: one
/// cannot be normalized.
pub fn normalized_contents(tokenizer: &Tokenizer, tokens: &FastMap<u32, AddedToken>) -> Option<Vec<(u32, String)>> {
    let mut contents = vec![];
    for (id, token) in tokens.iter().filter(|(_, token)| token.normalized) {
        let mut content = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = tokenizer.get_normalizer() {
            normalizer.normalize(&mut content).ok()?;
        }
        contents.push((*id, content.get().to_owned()));
    }
    Some(contents)
}

/// Characters in no composition and with no decomposition, wherever they stand; most text has no
/// others.
pub fn is_inert(c: char) -> bool {
    matches!(c as u32,
        0..=0x2ff | 0x400..=0x482 | 0x48a..=0x52f | 0x2010..=0x2027 | 0x2030..=0x205e | 0x3001..=0x3029 | 0x3041..=0x3096
        | 0x30a1..=0x30fa | 0x4e00..=0x9fff | 0xac00..=0xd7a3 | 0xff01..=0xff5e | 0x1f300..=0x1faff)
}

fn is_surely_nfc(text: &str) -> bool {
    text.is_ascii() || text.chars().all(is_inert)
}
