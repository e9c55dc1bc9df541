//! A tokenizer.json at work: text → ids, in pieces that are independent of one another.

use crate::Failure;
use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use serde_json::{json, Value};
use std::collections::HashMap;
use tokenizers::{AddedToken, Tokenizer};

pub struct Encoder {
    tokenizer: Tokenizer,
    cuts: Option<Cuts>,
}

/// Where a text may be cut without a change of its tokens: in front of an added token that is searched in the text as it
/// is, since the tokenizer takes those out first and looks at each stretch between them alone.
struct Cuts {
    finder: DoubleArrayAhoCorasick<u32>,
    tokens: HashMap<u32, AddedToken>,
}

impl Encoder {
    pub fn new(json: &[u8], options: &str) -> Result<Self, Failure> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|e| Failure::invalid(format!("tokenizer.json: {e}")))?;
        // Engines take prompts as they are.
        tokenizer
            .with_truncation(None)
            .map_err(|e| Failure::internal(e.to_string()))?;
        tokenizer.with_padding(None);
        let options: Value = serde_json::from_str(options)
            .map_err(|e| Failure::invalid(format!("the options: {e}")))?;
        if let Some(added) = options.get("added_tokens") {
            let added: Vec<AddedToken> = serde_json::from_value(added.clone())
                .map_err(|e| Failure::invalid(format!("added tokens: {e}")))?;
            tokenizer
                .add_tokens(added)
                .map_err(|e| Failure::invalid(format!("added tokens: {e}")))?;
        }
        let cuts = Cuts::new(&tokenizer)?;
        Ok(Encoder { tokenizer, cuts })
    }

    pub fn describe(&self) -> Value {
        json!({
            "vocabulary_size": self.tokenizer.get_vocab_size(true),
        })
    }

    /// Gives `piece` the tokens of the text's pieces in order, each with where it ends, the last at the text's end.
    pub fn encode(
        &self,
        text: &str,
        piece_bytes_min: usize,
        piece: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), Failure> {
        let mut from = 0;
        let ends = match &self.cuts {
            Some(cuts) if piece_bytes_min < text.len() => cuts.find(text, piece_bytes_min),
            _ => vec![],
        };
        for end in ends.into_iter().chain([text.len()]) {
            let encoding = self
                .tokenizer
                .encode_fast(&text[from..end], false)
                .map_err(|e| Failure::invalid(format!("no tokens: {e}")))?;
            piece(end, encoding.get_ids());
            from = end;
        }
        Ok(())
    }
}

impl Cuts {
    fn new(tokenizer: &Tokenizer) -> Result<Option<Self>, Failure> {
        let tokens: HashMap<u32, AddedToken> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| !token.normalized)
            .collect();
        if tokens.is_empty() {
            return Ok(None);
        }
        let finder = DoubleArrayAhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .build_with_values(tokens.iter().map(|(id, token)| (token.content.as_str(), *id)))
            .map_err(|e| Failure::internal(e.to_string()))?;
        Ok(Some(Cuts { finder, tokens }))
    }

    /// Ascending; no piece but the last is shorter than `piece_bytes_min`, and none is empty.
    fn find(&self, text: &str, piece_bytes_min: usize) -> Vec<usize> {
        let mut cuts = vec![];
        let mut last = 0;
        let mut before: Option<(usize, &AddedToken)> = None;
        for found in self.finder.leftmost_find_iter(text) {
            let token = &self.tokens[&found.value()];
            let start = found.start();
            let apart = match before {
                None => true,
                // A token that looks at what follows it would see an end instead.
                Some((end, left)) => {
                    !(left.single_word && end == start)
                        && !(left.rstrip && text[end..start].chars().all(char::is_whitespace))
                }
            };
            if apart && !token.lstrip && !token.single_word && start > last && start - last >= piece_bytes_min {
                cuts.push(start);
                last = start;
            }
            before = Some((found.end(), token));
        }
        cuts
    }
}
