//! Where a text may be cut without a change of its tokens. Two kinds of places:
//!
//! *In front of an added token* that is searched in the text as it is (`normalized` false). The
//! tokenizer takes those out before anything else, leftmost first and longest first, and looks at
//! each stretch between them alone. The piece after such a cut begins with the token itself, so
//! that the text behind it is still not at the start of a text (there, "▁" is prepended by the
//! scheme "first"). Tokens that look around are left out: `lstrip` and `single_word` tokens
//! themselves, and a token that follows an `rstrip` token with nothing but white space between, or
//! touches a `single_word` one.
//!
//! *Between two characters of plain text*, within a stretch and not at its ends, where the words of
//! the two sides are made apart:
//! - *expressions that split words*: where no match of theirs reaches from one to the other
//!   (pattern.rs), as between a letter and a blank. With NFC, the second character must be one that
//!   composes with nothing before it.
//! - *"▁" for blanks*: in front of a blank that follows something else, if words end there by the
//!   pre-tokenizer, or if no merge joins "▁" to a character before it. The piece after the cut
//!   begins with the blank, so that none is prepended; the normalizer that prepends in any case
//!   (Llama 2's) must know that the piece continues a text, which only our own encoder can handle.
//!
//! No added token may reach across such a place: those of the text as it is were found before,
//! those of the normalized text must not contain the two characters side by side nor look around.
//! Where any token has `lstrip`, no cut follows white space, which the token may take.
//!
//! Whether a place is a cut depends on the text up to `lookahead` bytes after it, since no added
//! token is longer. So a cut of one text is a cut of every text that begins with the same bytes up
//! to there.

use crate::added::Finder;
use crate::fast_hash::FastMap;
use crate::merges::BLANK;
use crate::own::{is_inert, normalized_contents, Normal, Own, Plan, Prefix, Words};
use crate::pattern::Splitter;
use crate::Failure;
use std::collections::HashSet;
use std::sync::Arc;
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Tokenizer};

pub struct Cuts {
    /// Added tokens of the text as it is; None: there are none.
    finder: Option<Finder>,
    /// All added tokens, by id.
    tokens: FastMap<u32, AddedToken>,
    places: Places,
    /// Neighbours within the added tokens of the normalized text.
    joined: HashSet<(char, char)>,
    /// No cut behind white space.
    any_lstrip: bool,
    /// Bytes behind a place that decide whether it is a cut: the longest added token, and one
    /// character.
    pub lookahead: usize,
}

/// Between which characters of plain text there are cuts.
enum Places {
    None,
    Words { splitter: Arc<Splitter>, nfc: bool },
    Blanks,
}

impl Cuts {
    /// Three stages, each of which adds places only if the one before holds:
    ///
    /// 1. The tokenizer takes special tokens out of texts at all; else there are no cuts.
    /// 2. Tokens of the text as it is: cuts in front of them.
    /// 3. No token of the normalized text looks around: cuts within plain text (`places_of`).
    pub fn new(tokenizer: &Tokenizer, plan: &Plan, own: Option<&Own>) -> Result<Self, Failure> {
        let tokens: FastMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let lookahead = tokens.values().map(|token| token.content.len()).max().unwrap_or(0) + 4;
        let any_lstrip = tokens.values().any(|token| token.lstrip);
        let mut cuts =
            Cuts { finder: None, tokens, places: Places::None, joined: HashSet::new(), any_lstrip, lookahead };
        if tokenizer.get_encode_special_tokens() {
            return Ok(cuts);
        }
        let raw = cuts.tokens.iter().filter(|(_, token)| !token.normalized);
        cuts.finder = Finder::new(raw.map(|(id, token)| (token.content.as_str(), *id)));
        let looks = |token: &AddedToken| token.lstrip || token.rstrip || token.single_word;
        if cuts.tokens.values().any(|token| token.normalized && looks(token)) {
            return Ok(cuts);
        }
        let contents = normalized_contents(tokenizer, &cuts.tokens)
            .ok_or_else(|| Failure::internal("an added token cannot be normalized"))?;
        for (_, content) in contents {
            cuts.joined.extend(content.chars().zip(content.chars().skip(1)));
        }
        cuts.places = places_of(tokenizer, plan, own);
        Ok(cuts)
    }

    /// For people: what plain text is cut at.
    pub fn kind(&self) -> &'static str {
        match self.places {
            Places::None => "none",
            Places::Words { .. } => "words",
            Places::Blanks => "blanks",
        }
    }

    /// Ascending; no piece but the last is shorter than `piece_bytes_min`, and none is empty.
    /// Walks from added token to added token. Each stretch of plain text between two is searched
    /// (`find_plain`), then the place in front of the token is offered. White space behind an
    /// `rstrip` token belongs to the token, so the stretch begins behind it.
    pub fn find(&self, text: &str, piece_bytes_min: usize) -> Vec<usize> {
        let mut cuts = Chosen { places: vec![], last: 0, apart: piece_bytes_min.max(1) };
        let mut before: Option<(usize, &AddedToken)> = None;
        let mut plain_from = 0;
        let mut searched = 0;
        while let Some(found) = self.finder.as_ref().and_then(|finder| finder.next(text.as_bytes(), searched)) {
            let Some(token) = self.tokens.get(&found.id) else {
                break;
            };
            let start = found.start;
            self.find_plain(text, plain_from, start, &mut cuts);
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
            before = Some((found.end, token));
            searched = found.end;
            plain_from = found.end;
            if token.rstrip {
                plain_from = text.len() - text[plain_from..].trim_start().len();
            }
        }
        self.find_plain(text, plain_from, text.len(), &mut cuts);
        cuts.places
    }

    /// Cuts within the stretch of plain text, not at its ends. A place must be `apart` from the
    /// last cut, so the search jumps to just before the first place that is far enough (4 bytes are
    /// the longest character) and looks at neighbours from there. So a long stretch costs a look at
    /// few characters per piece.
    fn find_plain(&self, text: &str, from: usize, to: usize, cuts: &mut Chosen) {
        if matches!(self.places, Places::None) || from >= to {
            return;
        }
        loop {
            let mut at = (cuts.last + cuts.apart).saturating_sub(4).max(from);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            if at >= to {
                return;
            }
            let mut before = None;
            let mut found = None;
            for (i, c) in text[at..to].char_indices() {
                if let Some(before) = before {
                    if at + i >= cuts.last + cuts.apart && self.parts(before, c) {
                        found = Some(at + i);
                        break;
                    }
                }
                before = Some(c);
            }
            match found {
                Some(place) => cuts.offer(place),
                None => return,
            }
        }
    }

    /// Whether the two characters, neighbours in plain text, are always encoded apart.
    fn parts(&self, before: char, after: char) -> bool {
        if self.any_lstrip && before.is_whitespace() {
            return false;
        }
        match &self.places {
            Places::None => false,
            Places::Words { splitter, nfc } => {
                (!nfc || is_inert(after))
                    && splitter.parts(splitter.mask(before), splitter.mask(after))
                    && !self.joins(before, after)
            }
            // A normalizer that is known here makes neither a blank of an ASCII character nor one
            // that joins with a blank.
            Places::Blanks => {
                after == ' ' && before.is_ascii_graphic() && !self.joins(before, ' ') && !self.joins(before, BLANK)
            }
        }
    }

    /// Whether an added token of the normalized text may have the two side by side. The table has
    /// normalized characters: ASCII stays what it is, for others any non-ASCII character is taken
    /// for equal.
    fn joins(&self, before: char, after: char) -> bool {
        if self.joined.is_empty() {
            return false;
        }
        if before.is_ascii() {
            return self.joined.contains(&(before, after));
        }
        self.joined.iter().any(|(left, right)| !left.is_ascii() && *right == after)
    }
}

/// Which kind of cut plain text has, from the plan of the tokenizer.
///
/// - Expressions that were understood, with no normalizer or NFC: between words.
/// - Blanks, where words end in front of each: by the pre-tokenizer (`split`), or since no merge
///   joins an ASCII character with "▁" behind it. And only if the piece behind a cut is not given
///   another "▁" at its start (`told`).
fn places_of(tokenizer: &Tokenizer, plan: &Plan, own: Option<&Own>) -> Places {
    match (&plan.words, plan.normal) {
        (Words::Split(splitter), Normal::Nothing | Normal::Nfc) => {
            Places::Words { splitter: splitter.clone(), nfc: plan.normal == Normal::Nfc }
        }
        (Words::BetweenSpaces, Normal::Nothing | Normal::Nfc | Normal::KeepsBlanks) => Places::Blanks,
        (Words::Blanks { prefix, split }, normal) => {
            let told = match normal {
                Normal::Unknown => false,
                Normal::Blanks { prepend: true } => own.is_some_and(Own::takes_all),
                Normal::Blanks { prepend: false } => *prefix == Prefix::Never,
                Normal::Nothing | Normal::Nfc | Normal::KeepsBlanks => true,
            };
            let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
            let apart = match &plan.merges {
                Some(merges) if is_bpe => (0..128u8).map(char::from).filter(char::is_ascii_graphic).all(|c| merges.parts(c, BLANK)),
                _ => false,
            };
            if told && (*split || apart) { Places::Blanks } else { Places::None }
        }
        _ => Places::None,
    }
}

/// The cuts so far, ascending, at least `apart` bytes apart and from the start. `last` is the
/// latest, 0 at first.
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
