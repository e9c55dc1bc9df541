//! Refusals by fields that the prompt does not depend on, alike for chats and completions. No field
//! here changes the prompt. They are checked since a refused request has none.

use super::fields::{self, Field, Kind, I64, INT};
use super::is_true;
use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

/// Fields that both ChatCompletionRequest and CompletionRequest have. Name, type, whether null is
/// taken.
const COMMON: &[Field] = &[
    ("model", Kind::Str, true),
    ("frequency_penalty", Kind::Float, true),
    ("logit_bias", Kind::MapOf(&Kind::Float), true),
    ("max_tokens", INT, true),
    ("presence_penalty", Kind::Float, true),
    ("response_format", Kind::Map, true),
    ("seed", I64, true),
    ("stop", Kind::TextOr(4), true),
    ("stream", Kind::Bool, true),
    ("stream_options", Kind::Map, true),
    ("temperature", Kind::Float, true),
    ("top_p", Kind::Float, true),
    ("user", Kind::Str, true),
    ("use_beam_search", Kind::Bool, false),
    ("top_k", INT, true),
    ("min_p", Kind::Float, true),
    ("repetition_penalty", Kind::Float, true),
    ("watermarking", Kind::Bool, true),
    ("length_penalty", Kind::Float, false),
    ("stop_token_ids", Kind::ListOf(&INT), true),
    ("include_stop_str_in_output", Kind::Bool, false),
    ("ignore_eos", Kind::Bool, false),
    ("min_tokens", INT, false),
    ("skip_special_tokens", Kind::Bool, true),
    ("spaces_between_special_tokens", Kind::Bool, false),
    ("prompt_logprobs", INT, true),
    ("logprob_token_ids", Kind::ListOf(&INT), true),
    ("allowed_token_ids", Kind::ListOf(&INT), true),
    ("bad_words", Kind::ListOf(&Kind::Str), false),
    ("add_special_tokens", Kind::Bool, false),
    ("structured_outputs", Kind::Map, true),
    ("priority", I64, false),
    ("request_id", Kind::Str, false),
    ("session_id", Kind::Str, true),
    ("return_tokens_as_token_ids", Kind::Bool, true),
    ("return_token_ids", Kind::Bool, true),
    ("return_weight_versions", Kind::Bool, false),
    ("routed_experts_prompt_start", Kind::Int(0, i128::MAX), false),
    ("return_token_offsets", Kind::Bool, true),
    ("mm_payload", Kind::OneOf(&["tensors", "none"]), false),
    ("return_mm_kwargs", Kind::Bool, true),
    ("cache_salt", Kind::Str, true),
    ("kv_transfer_params", Kind::Map, true),
    ("ec_transfer_params", Kind::Map, true),
    ("vllm_xargs", Kind::Map, true),
    ("repetition_detection", Kind::Map, true),
    ("thinking_token_budget", Kind::Any, true),
    ("stream_interval", Kind::Int(1, i128::MAX), true),
];

/// Checks the fields of both types, and the validators that both have.
pub fn check_common(body: &Map) -> Result<(), Failure> {
    fields::check(body, COMMON)?;
    if is_true(body, "stream_options") && !is_true(body, "stream") {
        return Err(wrong("stream_options", "for streams alone"));
    }
    if let Some(Json::Map(options)) = body.get("stream_options") {
        fields::check(
            options,
            &[("include_usage", Kind::Bool, true), ("continuous_usage_stats", Kind::Bool, true)],
        )?;
    }
    if is_true(body, "logprob_token_ids") && is_true(body, "use_beam_search") {
        return Err(wrong("logprob_token_ids", "not for beam search"));
    }
    check_salt(body)?;
    match body.get("thinking_token_budget") {
        None | Some(Json::Null) => {}
        Some(Json::Int(tokens)) if *tokens >= -1 => {}
        Some(_) => return Err(wrong("thinking_token_budget", "no integer from -1 on")),
    }
    if let Some(Json::Map(outputs)) = body.get("structured_outputs") {
        let kinds = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
        if kinds.iter().filter(|name| outputs.some(name).is_some()).count() != 1 {
            return Err(wrong("structured_outputs", "not of one kind"));
        }
    }
    if let Some(Json::Map(format)) = body.get("response_format") {
        check_response_format(format)?;
    }
    if body
        .get("prompt_logprobs")
        .is_some_and(|value| !matches!(value, Json::Null | Json::Int(_) | Json::Float(_) | Json::Bool(_)))
    {
        return Err(wrong("prompt_logprobs", "no integer"));
    }
    match fields::int(body, "prompt_logprobs")? {
        Some(tokens) if tokens < -1 || (tokens != 0 && is_true(body, "stream")) => Err(wrong("prompt_logprobs", "not possible here")),
        _ => Ok(()),
    }
}

/// entrypoints/generate/base/protocol.py, validate_cache_salt.
pub fn check_salt(body: &Map) -> Result<(), Failure> {
    match body.text("cache_salt") {
        Some(salt) if salt.is_empty() || salt.chars().count() > 128 || salt.contains(['@', '/', '\\', '\0']) => {
            Err(wrong("cache_salt", "not one that the engine takes"))
        }
        _ => Ok(()),
    }
}

/// entrypoints/generate/base/protocol.py, AnyResponseFormat.
fn check_response_format(format: &Map) -> Result<(), Failure> {
    let bad = || wrong("response_format", "not one that the engine takes");
    let schema = format.some("json_schema");
    match format.text("type") {
        Some("structural_tag") => return Ok(()),
        Some("json_schema") if schema.is_none() => return Err(bad()),
        Some("text" | "json_object" | "json_schema") => {}
        _ => return Err(bad()),
    }
    match schema {
        None => Ok(()),
        Some(Json::Map(schema)) if schema.contains("name") => fields::check(
            schema,
            &[
                ("name", Kind::Str, false),
                ("description", Kind::Str, true),
                ("schema", Kind::Map, true),
                ("strict", Kind::Bool, true),
            ],
        ),
        Some(_) => Err(bad()),
    }
}

/// sampling_params.py, SamplingParams._verify_args. `max_tokens`: of the answer, where the request
/// says how many.
pub fn check_sampling(body: &Map, max_tokens: Option<i128>) -> Result<(), Failure> {
    // Name, least and greatest value; null and missing are not checked.
    const RANGES: [(&str, f64, f64); 8] = [
        ("n", 1.0, f64::MAX),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("repetition_penalty", f64::MIN_POSITIVE, f64::MAX),
        ("temperature", 0.0, 2.0),
        ("top_p", f64::MIN_POSITIVE, 1.0),
        ("top_k", -1.0, f64::MAX),
        ("min_p", 0.0, 1.0),
    ];
    for (name, least, most) in RANGES {
        if body
            .some(name)
            .and_then(fields::float_of)
            .is_some_and(|value| !(least..=most).contains(&value))
        {
            return Err(wrong(name, "out of range"));
        }
    }
    let min_tokens = fields::int(body, "min_tokens")?.unwrap_or(0);
    if max_tokens.is_some_and(|most| most < 1 || min_tokens > most) || min_tokens < 0 {
        return Err(wrong("max_tokens", "less than 1 or than min_tokens"));
    }
    for name in ["stop", "bad_words"] {
        let is_empty = |text: &Json| text.as_str() == Some("");
        if body
            .get(name)
            .is_some_and(|texts| is_empty(texts) || texts.as_list().is_some_and(|texts| texts.iter().any(is_empty)))
        {
            return Err(wrong(name, "with an empty text"));
        }
    }
    Ok(())
}
