//! A tokenizer.json at work: text → ids, in pieces that are independent of one another.
//! Two encoders stand behind it. Our own (`own`) takes the tokenizers that it understands; the
//! crate `tokenizers` takes all others, and texts that ours refuses. `cuts` says where pieces may
//! end. All of it is immutable after `new`, so any number of threads may encode.

use crate::cuts::Cuts;
use crate::own::{Own, Plan};
use crate::{rules, work, Failure};
use serde_json::{json, Map, Value};
use tokenizers::{Encoding, Token, Tokenizer};

/// The longest piece. An encoder holds some 60 bytes for each byte of it, and no context has so
/// many tokens.
const PIECE_BYTES_MAX: usize = 4 << 20;
/// The longest piece for `tokenizers`, which cannot be stopped: two seconds at the worst text
/// found.
const FOREIGN_BYTES_MAX: usize = 1 << 20;

fn too_long(bytes_max: usize) -> Failure {
    Failure::unknown_here(format!("a text of more than {bytes_max} bytes that cannot be cut"))
}

/// A loaded tokenizer, with all that `transformers` changes about it applied.
pub struct Encoder {
    tokenizer: Tokenizer,
    /// None: the tokenizer has something that our encoder does not know.
    own: Option<Own>,
    cuts: Cuts,
    /// By name ("bos_token"), as templates print them.
    special_tokens: Map<String, Value>,
    /// The ids that the post-processor puts around the tokens of a text.
    before: Vec<u32>,
    after: Vec<u32>,
    /// The same in SGLang, where it is not the same.
    sglang_around: Option<(Vec<u32>, Vec<u32>)>,
}

impl Encoder {
    /// 1. Reads tokenizer.json and switches off truncation and padding.
    /// 2. Applies the rules of `transformers` (`rules`), which may replace parts of it.
    /// 3. Asks the post-processor what it puts around a text.
    /// 4. Finds out what our encoder can do with the result (`Plan`, `Own`), and where texts may be
    ///    cut.
    pub fn new(json: &[u8], options: &str) -> Result<Self, Failure> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|e| Failure::invalid(format!("tokenizer.json: {e}")))?;
        // Engines take prompts whole: truncation and padding of the file are for other uses.
        tokenizer
            .with_truncation(None)
            .map_err(|e| Failure::internal(e.to_string()))?;
        tokenizer.with_padding(None);
        let options: Value = serde_json::from_str(options)
            .map_err(|e| Failure::invalid(format!("the options: {e}")))?;
        let special_tokens = rules::apply(&mut tokenizer, &options)?;
        let (before, after) = around(&tokenizer)?;
        let sglang_around = rules::sglang_around(&tokenizer, &options, &special_tokens);
        let plan = Plan::new(&tokenizer);
        let own = Own::new(&tokenizer, &plan);
        let cuts = Cuts::new(&tokenizer, &plan, own.as_ref())?;
        Ok(Encoder { tokenizer, own, cuts, special_tokens, before, after, sglang_around })
    }

    /// For C++ (tokenizer.cc, `ReadFacts`) and for people; "cuts" and "own_encoder" are for people
    /// alone.
    pub fn describe(&self) -> Value {
        json!({
            "vocabulary_size": self.tokenizer.get_vocab_size(true),
            "tokens_before": self.before,
            "tokens_after": self.after,
            "sglang_around": self.sglang_around,
            "special_tokens": self.special_tokens,
            "lookahead_bytes": self.cuts.lookahead,
            "cuts": self.cuts.kind(),
            "own_encoder": self.own.is_some(),
        })
    }

    /// Gives `piece` the tokens of the text's pieces in order, each with where it ends, the last at
    /// the text's end. `continues`: the text follows a cut. With `piece_bytes_min` usize::MAX a
    /// text is one piece, which `tokenizers` itself encodes.
    /// The deadline is looked at before each piece. An error may come after some pieces were given.
    pub fn encode(
        &self,
        text: &str,
        continues: bool,
        piece_bytes_min: usize,
        piece: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), Failure> {
        let own = self.own.as_ref().filter(|_| piece_bytes_min < usize::MAX);
        let ends = if piece_bytes_min < text.len() { self.cuts.find(text, piece_bytes_min) } else { vec![] };
        let mut ids = vec![];
        let mut from = 0;
        for end in ends.into_iter().chain([text.len()]) {
            let part = &text[from..end];
            ids.clear();
            work::look();
            if part.len() > PIECE_BYTES_MAX {
                return Err(too_long(PIECE_BYTES_MAX));
            }
            if own.is_some_and(|own| own.encode(part, continues || from > 0, &mut ids, &self.tokenizer)) {
                piece(end, &ids);
            } else {
                if part.len() > FOREIGN_BYTES_MAX {
                    return Err(too_long(FOREIGN_BYTES_MAX));
                }
                let encoding = self
                    .tokenizer
                    .encode_fast(part, false)
                    .map_err(|e| Failure::invalid(format!("no tokens: {e}")))?;
                piece(end, encoding.get_ids());
            }
            from = end;
        }
        Ok(())
    }
}

/// The ids that the post-processor puts in front of a text's tokens, and behind them. It is given
/// one token of an id that no vocabulary has; what is around it in the result is around every text.
/// INVALID_ARGUMENT: the token is missing, or there more than once.
fn around(tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    const MARK: u32 = u32::MAX;
    let mark = Encoding::from_tokens(vec![Token::new(MARK, "x".into(), (0, 1))], 0);
    let processed = tokenizer
        .post_process(mark, None, true)
        .map_err(|e| Failure::invalid(format!("the post-processor: {e}")))?;
    let ids = processed.get_ids();
    match ids.iter().position(|id| *id == MARK) {
        Some(at) if !ids[at + 1..].contains(&MARK) => Ok((ids[..at].to_vec(), ids[at + 1..].to_vec())),
        _ => Err(Failure::invalid("the post-processor does not keep a text's tokens once and together")),
    }
}
