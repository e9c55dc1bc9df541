//! /v1/completions (srt/entrypoints/openai/serving_completions.py) and /generate
//! (srt/managers/io_struct.py) of SGLang 0.5.23. Texts are encoded with special tokens whatever the
//! request says; of several prompts the first is read.

use super::fields;
use super::lax::{check, int_of};
use super::sampling;
use crate::json::{Json, Map};
use crate::request::{wrong, Part, Reading};
use crate::Failure;

/// /v1/completions. A prompt is empty where Python's any() of it is false.
pub fn read(mut body: Map) -> Result<Reading, Failure> {
    check(&body, fields::SHARED)?;
    check(&body, fields::COMPLETION)?;
    if body.get("max_tokens").and_then(int_of).is_some_and(|tokens| tokens <= 0) {
        return Err(wrong("max_tokens", "not positive"));
    }
    sampling::check(&body)?;
    let prompt = body.remove("prompt").unwrap_or(Json::Null);
    let is_empty = match &prompt {
        Json::List(prompts) => !prompts.iter().any(Json::is_true),
        prompt => !prompt.is_true(),
    };
    if is_empty {
        return Err(wrong("prompt", "empty"));
    }
    prompt_of(prompt)
}

/// List[int], List[List[int]], str or List[str].
fn prompt_of(prompt: Json) -> Result<Reading, Failure> {
    let refused = || wrong("prompt", "neither texts nor ids of tokens");
    let items = match prompt {
        Json::Str(text) => return Ok(Reading::text(&*text, true)),
        Json::List(items) => items,
        _ => return Err(refused()),
    };
    if items.iter().all(|item| item.as_str().is_some()) {
        return items.first().and_then(Json::as_str).map(|text| Reading::text(text, true)).ok_or_else(refused);
    }
    let first = match items.first() {
        Some(Json::List(first)) if items.iter().all(|item| item.as_list().is_some_and(|ids| ids_of(ids).is_some())) => first,
        _ => &items,
    };
    let ids = ids_of(first).ok_or_else(refused)?;
    Ok(Reading { parts: vec![Part::Ids(ids)], truncate: None })
}

/// None: one is no id.
fn ids_of(items: &[Json]) -> Option<Vec<u32>> {
    items.iter().map(|item| int_of(item).and_then(|id| u32::try_from(id).ok())).collect()
}

/// /generate. The body of this path is not checked as a whole; ids win over a text.
pub fn generate(mut body: Map) -> Result<Reading, Failure> {
    for name in ["image_data", "video_data", "audio_data", "input_embeds", "session_params", "positional_embed_overrides"] {
        if body.get(name).is_some_and(Json::is_true) {
            return Err(Failure::unknown_here(format!("a prompt with {name}")));
        }
    }
    if let Some(Json::List(ids)) = body.remove("input_ids") {
        let first = match ids.first() {
            Some(Json::List(first)) => first,
            _ => &ids,
        };
        let ids = ids_of(first).ok_or_else(|| wrong("input_ids", "not an array of ids of tokens"))?;
        return Ok(Reading { parts: vec![Part::Ids(ids)], truncate: None });
    }
    let text = match body.remove("text") {
        Some(Json::List(texts)) => texts.into_iter().next(),
        text => text,
    };
    match text {
        Some(Json::Str(text)) => Ok(Reading::text(&*text, true)),
        _ => Err(wrong("text", "neither a text nor an array of texts")),
    }
}
