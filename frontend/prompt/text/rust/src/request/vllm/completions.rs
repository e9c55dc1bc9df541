//! /v1/completions: entrypoints/openai/completion/protocol.py, renderers/online_renderer.py,
//! render_completion.

use super::fields::{self, Field, Kind, INT};
use super::params::{check_common, check_sampling};
use super::{is_true, Truncation};
use crate::json::{Json, Map};
use crate::request::{wrong, Convention, Part, Reading};
use crate::Failure;

const FIELDS: &[Field] = &[
    ("echo", Kind::Bool, true),
    ("logprobs", INT, true),
    ("n", INT, false),
    ("suffix", Kind::Str, true),
];
/// VLLM_MAX_COMPLETION_PROMPTS.
const PROMPTS_MAX: usize = 1024;

/// The prompt, of several the first one. All of them are checked: one bad prompt refuses the
/// request.
pub fn read(convention: &Convention, mut body: Map) -> Result<Reading, Failure> {
    check_common(&body)?;
    fields::check(&body, FIELDS)?;
    check_logprobs(&body)?;
    if body.some("prompt_embeds").is_some() {
        return Err(Failure::unknown_here("prompt_embeds"));
    }
    if body.some("suffix").is_some() {
        return match convention.model_type {
            // renderers/deepseek_v4.py, render_completion_suffix.
            "deepseek_v4" | "deepseek_v41" => Err(Failure::unknown_here("a suffix")),
            _ => Err(wrong("suffix", "not for this model")),
        };
    }
    let output = fields::int(&body, "max_tokens")?.unwrap_or(16);
    // An echo alone asks for one token.
    check_sampling(&body, Some(if output == 0 && is_true(&body, "echo") { 1 } else { output }))?;
    let output = output.clamp(0, i64::MAX.into()) as i64;
    let truncation = Truncation {
        output: Some(output),
        ..Truncation::of(&body)?
    };
    let around = fields::flag(&body, "add_special_tokens", true)?;
    let part = match body.remove("prompt") {
        None | Some(Json::Null) => return Err(wrong("prompt", "missing")),
        Some(Json::Str(text)) if text.is_empty() => return Err(wrong("prompt", "empty")),
        Some(Json::Str(text)) => text_part(convention, &text, around)?,
        Some(Json::List(prompts)) => first_of(convention, prompts, around)?,
        Some(_) => return Err(wrong("prompt", "neither text nor token ids")),
    };
    let is_text = matches!(part, Part::Text { .. });
    Ok(Reading {
        parts: vec![part],
        truncate: truncation.resolve(convention, around && is_text)?,
    })
}

/// UNIMPLEMENTED: mistral_common encodes texts of this model.
fn text_part(convention: &Convention, text: &str, around: bool) -> Result<Part, Failure> {
    if convention.mistral_tokenizer {
        return Err(Failure::unknown_here(
            "mistral_common encodes this model's prompts, not its tokenizer.json",
        ));
    }
    Ok(Part::Text {
        text: text.to_owned(),
        around,
    })
}

/// Texts, lists of ids, or ids, in any form that pydantic takes for an integer.
fn first_of(convention: &Convention, prompts: Vec<Json>, around: bool) -> Result<Part, Failure> {
    let bad = || wrong("prompt", "neither text nor token ids");
    if prompts.iter().all(|prompt| prompt.as_str().is_some()) {
        return match prompts.first() {
            None => Err(wrong("prompt", "empty")),
            Some(_) if prompts.len() > PROMPTS_MAX => Err(wrong("prompt", "too many prompts")),
            // A tokenizer that puts nothing around a text makes no tokens of an empty one, and the
            // engine refuses that; with others it is a prompt.
            Some(_) if prompts.iter().any(|prompt| prompt.as_str() == Some("")) => {
                Err(Failure::unknown_here("an empty text in a list of prompts"))
            }
            Some(text) => text_part(convention, text.as_str().unwrap_or_default(), around),
        };
    }
    if let Some(ids) = ids_of(&prompts) {
        return Ok(Part::Ids(ids));
    }
    if prompts.len() > PROMPTS_MAX {
        return Err(wrong("prompt", "too many prompts"));
    }
    let lists: Option<Vec<Vec<u32>>> = prompts.iter().map(|prompt| ids_of(prompt.as_list()?)).collect();
    let lists = lists.ok_or_else(bad)?;
    if lists.is_empty() || lists.iter().any(Vec::is_empty) {
        return Err(wrong("prompt", "empty"));
    }
    Ok(lists.into_iter().next().map_or(Part::Ids(vec![]), Part::Ids))
}

/// None: one is no id.
fn ids_of(ids: &[Json]) -> Option<Vec<u32>> {
    ids.iter()
        .map(|id| fields::int_of(id).and_then(|id| u32::try_from(id).ok()))
        .collect()
}

/// CompletionRequest.check_logprobs.
fn check_logprobs(body: &Map) -> Result<(), Failure> {
    let logprobs = body.some("logprobs");
    if logprobs.is_some_and(|value| value.as_str().is_some()) || fields::int(body, "logprobs")?.is_some_and(|tokens| tokens < -1) {
        return Err(wrong("logprobs", "no integer from -1 on"));
    }
    if is_true(body, "use_beam_search") && is_true(body, "echo") && logprobs.is_some() {
        return Err(wrong("echo", "not for logprobs of a beam search"));
    }
    if is_true(body, "logprob_token_ids") {
        let nothing_made = is_true(body, "echo") && body.get("max_tokens").is_some_and(|tokens| !tokens.is_true() && !tokens.is_null());
        if nothing_made || logprobs.is_none() {
            return Err(wrong("logprob_token_ids", "for logprobs alone"));
        }
    }
    Ok(())
}
