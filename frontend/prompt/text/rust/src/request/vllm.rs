//! How vLLM 0.33.0 reads a request (files below `vllm/` are named).
//!
//!   /v1/chat/completions  chat::parse ───────╮
//!   /v1/messages          messages::to_chat ─┴▶ ChatRequest ─▶ chat::render ─▶ transformers
//!   /v1/responses         responses::read ───▶ ChatRequest ─▶ chat::render ─▶ transformers
//!   /v1/completions       completions::read
//!   gpt-oss               harmony_chat, harmony_responses: no template

pub mod chat;
pub mod completions;
mod fields;
mod harmony_chat;
mod harmony_responses;
mod items;
pub mod message;
pub mod messages;
mod params;
mod responses;

use super::{Convention, Path, Reading, Truncate};
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::Failure;

pub fn read(templates: &Templates, convention: &Convention, path: Path, body: Map) -> Result<Reading, Failure> {
    match path {
        Path::Chat => chat::render(templates, convention, chat::parse(body)?),
        Path::Completions => completions::read(convention, body),
        Path::Messages => chat::render(templates, convention, messages::to_chat(templates, convention, body)?),
        Path::Responses => responses::read(templates, convention, body),
        Path::Generate => Err(Failure::unknown_here("this path is not read")),
    }
}

/// UNIMPLEMENTED where chats of this model are not printed by a template: mistral_common or code of
/// the engine encodes them. OK: a template does.
///
/// config/model.py, ModelConfig.__post_init__ (tokenizer_mode by architecture),
/// tokenizers/registry.py, resolve_tokenizer_args (mistral), renderers/registry.py (renderer by
/// tokenizer_mode).
pub fn own_encoding(convention: &Convention) -> Result<(), Failure> {
    if convention.mistral_tokenizer {
        return Err(Failure::unknown_here("mistral_common encodes this model's prompts, not its tokenizer.json"));
    }
    match convention.model_type {
        "deepseek_v32" | "deepseek_v4" | "deepseek_v41" | "kimi_k3" | "kimi_audio" | "inkling" | "inkling_mm_model"
        | "alpamayo2_super" | "terratorch" => {
            Err(Failure::unknown_here(format!("chats of {} are encoded by code of the engine", convention.model_type)))
        }
        _ => Ok(()),
    }
}

/// `truncate_prompt_tokens` and `truncation_side` of a request (renderers/params.py,
/// TokenizeParams).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Truncation {
    pub tokens: Option<i64>,
    /// None: the tokenizer's side, which is left for engines that generate
    /// (tokenizers/registry.py).
    pub right: Option<bool>,
    /// max_tokens.
    pub output: Option<i64>,
}

impl Truncation {
    /// Reads both fields. INVALID_ARGUMENT: they are of another kind, or out of range.
    pub fn of(body: &Map) -> Result<Self, Failure> {
        let tokens = match fields::int(body, "truncate_prompt_tokens")? {
            Some(tokens) if !(-1..=i64::MAX as i128).contains(&tokens) => {
                return Err(super::wrong("truncate_prompt_tokens", "out of range"));
            }
            tokens => tokens.map(|tokens| tokens as i64),
        };
        let right = match body.some("truncation_side") {
            None => None,
            Some(side) => match side.as_str() {
                Some("left") => Some(false),
                Some("right") => Some(true),
                _ => return Err(super::wrong("truncation_side", "neither left nor right")),
            },
        };
        Ok(Truncation { tokens, right, output: None })
    }

    /// How many tokens the engine keeps, and which. `around`: the tokenizer puts special tokens
    /// around the text. -1 means as many as the model takes. INVALID_ARGUMENT: more than that, or
    /// none at all; UNIMPLEMENTED: the model's length is needed and not known.
    pub fn resolve(self, convention: &Convention, around: bool) -> Result<Option<Truncate>, Failure> {
        let known = (convention.context_max > 0).then_some(convention.context_max as i64);
        if known.is_some_and(|known| self.output.is_some_and(|output| output > known)) {
            return Err(Failure::invalid("max_tokens is more than the model's length"));
        }
        let kept = match (self.tokens, known) {
            (None, _) => return Ok(None),
            (Some(tokens), Some(known)) if tokens > known => {
                return Err(Failure::invalid("truncate_prompt_tokens is more than the model's length"));
            }
            (Some(0), _) => return Err(Failure::invalid("truncate_prompt_tokens leaves no prompt")),
            (Some(tokens), _) if tokens > 0 => tokens as usize,
            (_, None) => return Err(Failure::unknown_here("the model's length, to which the prompt is cut, is not known")),
            // A token is left for the output where there is to be one.
            (_, Some(known)) => (known - i64::from(self.output != Some(0))).max(0) as usize,
        };
        Ok(Some(match self.right {
            Some(true) => Truncate::KeepFirst(kept),
            // The tokenizer cuts the text then, not what it puts around it.
            None if around => Truncate::KeepLastOfText(kept),
            _ => Truncate::KeepLast(kept),
        }))
    }
}

/// Python's `value` in `if value` of a field that may be missing.
fn is_true(body: &Map, name: &str) -> bool {
    body.get(name).is_some_and(Json::is_true)
}

#[cfg(test)]
mod tests;
