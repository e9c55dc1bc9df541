//! Types of the fields of SGLang's requests (0.5.23, srt/entrypoints/openai/protocol.py) that do
//! not change the prompt by themselves: a request with another type in one of them is refused.

use super::lax::{Field, Type};
use Type::{Any, Bool, Dict, DictOf, Either, Float, Int, List, Model, Null, OneOf, Str};

const STRS: Type = List(&Str);
const INTS: Type = List(&Int);
const STR_OR_STRS: Type = Either(&Str, &STRS);
const MAYBE_STRS: Type = List(&Null(&Str));
const STREAM_OPTIONS: Type =
    Model(&[("include_usage", Null(&Bool), false), ("continuous_usage_stats", Null(&Bool), false)]);
const HIDDEN_STATES: Type = Either(&Bool, &OneOf(&["last"]));

/// PDRoutingFields, CompletionRequest and ChatCompletionRequest.
pub const SHARED: &[Field] = &[
    ("bootstrap_host", Null(&STR_OR_STRS), false),
    ("bootstrap_port", Null(&Either(&Int, &List(&Null(&Int)))), false),
    ("bootstrap_room", Null(&Either(&Int, &INTS)), false),
    ("routed_dp_rank", Null(&Int), false),
    ("disagg_prefill_dp_rank", Null(&Int), false),
    ("data_parallel_rank", Null(&Int), false),
    ("model", Str, false),
    ("frequency_penalty", Float, false),
    ("presence_penalty", Float, false),
    ("logit_bias", Null(&DictOf(&Float)), false),
    ("n", Int, false),
    ("seed", Null(&Int), false),
    ("stop", Null(&STR_OR_STRS), false),
    ("stream", Bool, false),
    ("stream_options", Null(&STREAM_OPTIONS), false),
    ("user", Null(&Str), false),
    ("return_hidden_states", HIDDEN_STATES, false),
    ("return_routed_experts", Bool, false),
    ("routed_experts_start_len", Int, false),
    ("return_cached_tokens_details", Bool, false),
    ("return_spec_tokens_details", Bool, false),
    ("return_token_ids", Bool, false),
    ("min_tokens", Int, false),
    ("regex", Null(&Str), false),
    ("ebnf", Null(&Str), false),
    ("stop_token_ids", Null(&INTS), false),
    ("stop_regex", Null(&STR_OR_STRS), false),
    ("no_stop_trim", Bool, false),
    ("ignore_eos", Bool, false),
    ("skip_special_tokens", Bool, false),
    ("lora_path", Null(&Either(&Str, &MAYBE_STRS)), false),
    ("session_id", Null(&Str), false),
    ("session_params", Null(&Dict), false),
    ("custom_params", Null(&Dict), false),
    ("watermark", Null(&Dict), false),
    ("images_config", Null(&Dict), false),
    ("mm_processor_kwargs", Null(&Dict), false),
    ("rid", Null(&STR_OR_STRS), false),
    ("extra_key", Null(&STR_OR_STRS), false),
    ("cache_salt", Null(&STR_OR_STRS), false),
    ("priority", Null(&Int), false),
];

/// CompletionRequest beside SHARED.
pub const COMPLETION: &[Field] = &[
    ("prompt", Any, true),
    ("best_of", Null(&Int), false),
    ("echo", Bool, false),
    ("logprobs", Null(&Int), false),
    ("max_tokens", Int, false),
    ("suffix", Null(&Str), false),
    ("temperature", Float, false),
    ("top_p", Float, false),
    ("top_k", Int, false),
    ("min_p", Float, false),
    ("json_schema", Null(&Str), false),
    ("repetition_penalty", Float, false),
    ("custom_logit_processor", Null(&Str), false),
    ("custom_labels", Null(&DictOf(&Str)), false),
];

/// ChatCompletionRequest beside SHARED; messages and tools are read by chat_request.rs.
pub const CHAT: &[Field] = &[
    ("messages", Any, true),
    ("logprobs", Bool, false),
    ("top_logprobs", Null(&Int), false),
    ("max_tokens", Null(&Int), false),
    ("max_completion_tokens", Null(&Int), false),
    ("temperature", Null(&Float), false),
    ("top_p", Null(&Float), false),
    ("top_k", Null(&Int), false),
    ("min_p", Null(&Float), false),
    ("repetition_penalty", Null(&Float), false),
    ("parallel_tool_calls", Bool, false),
    ("return_prompt_token_ids", Bool, false),
    ("return_meta_info", Bool, false),
    ("return_input_ids_in_sglext", Bool, false),
    ("return_output_ids_in_sglext", Bool, false),
    ("return_sampling_mask", Bool, false),
    ("sampling_logprobs_mode", Null(&OneOf(&["selected", "support"])), false),
    ("return_flat_raw_output_top_logprobs", Bool, false),
    ("return_flat_raw_top_logprobs_b64", Bool, false),
    ("task", Null(&OneOf(&["action", "query", "authority", "domain", "title", "read_url"])), false),
    ("continue_final_message", Bool, false),
    ("separate_reasoning", Bool, false),
    ("stream_reasoning", Bool, false),
    ("chat_template_kwargs", Null(&Dict), false),
    ("max_dynamic_patch", Null(&Int), false),
    ("min_dynamic_patch", Null(&Int), false),
    ("use_audio_in_video", Bool, false),
    ("video_config", Null(&Dict), false),
    ("custom_logit_processor", Null(&Either(&Str, &MAYBE_STRS)), false),
    ("input_ids", Null(&INTS), false),
];

/// ToolCall; its function's arguments are a text or an object.
pub const TOOL_CALL: &[Field] = &[
    ("id", Null(&Str), false),
    ("index", Null(&Int), false),
    ("type", OneOf(&["function"]), false),
    ("function", Model(&[("name", Null(&Str), false), ("arguments", Null(&Either(&Str, &Dict)), false)]), true),
];

/// Function, Tool and ToolChoice; parameters of a function may be anything.
pub const FUNCTION: &[Field] = &[
    ("description", Null(&Str), false),
    ("name", Str, true),
    ("strict", Null(&Bool), false),
    ("defer_loading", Null(&Bool), false),
];

pub const TOOL: &[Field] =
    &[("type", Str, false), ("function", Model(FUNCTION), true), ("defer_loading", Null(&Bool), false)];

pub const TOOL_CHOICE: &[Field] =
    &[("function", Model(&[("name", Null(&Str), false)]), true), ("type", OneOf(&["function"]), false)];
