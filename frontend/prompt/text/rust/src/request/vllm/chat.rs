//! /v1/chat/completions: entrypoints/openai/chat_completion/protocol.py,
//! renderers/online_renderer.py, renderers/hf.py.
//! `parse` reads the body as pydantic and the validators of the request do, `render` makes the
//! prompt. Other paths make a `ChatRequest` themselves and enter at `render`.

use super::fields::{self, Field, Kind, INT};
use super::params::{check_common, check_sampling};
use super::{harmony_chat, is_true, message, Truncation};
use crate::chat::{Template, Templates};
use crate::json::{Json, Map};
use crate::request::{transformers, wrong, Chat, Convention, Part, Reading};
use crate::Failure;
use std::sync::Arc;

/// Values of `reasoning_effort`.
pub const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Arguments of transformers' apply_chat_template that are no variables of the template: given as
/// kwargs they change what the call does. And (TAKEN) those that the engine gives itself, so that
/// giving them again fails.
const NOT_VARIABLES: [&str; 12] = [
    "chat_template",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "raise_exception",
    "strftime_now",
];
const TAKEN: [&str; 4] = ["conversation", "messages", "model_config", "tokenizer"];

/// Fields of a chat beside those that completions have, too (`params`).
const FIELDS: &[Field] = &[
    ("logprobs", Kind::Bool, true),
    ("top_logprobs", INT, true),
    ("max_completion_tokens", INT, true),
    ("n", INT, true),
    ("reasoning_effort", Kind::OneOf(EFFORTS), true),
    ("include_reasoning", Kind::Bool, false),
    ("parallel_tool_calls", Kind::Bool, true),
    ("echo", Kind::Bool, false),
    ("documents", Kind::ListOf(&Kind::MapOf(&Kind::Str)), true),
    ("chat_template", Kind::Str, true),
    ("chat_template_kwargs", Kind::Map, true),
    ("media_io_kwargs", Kind::MapOf(&Kind::Map), true),
    ("mm_processor_kwargs", Kind::Map, true),
    ("return_prompt_text", Kind::Bool, true),
];

/// The fields of a chat that its prompt depends on.
#[derive(Debug, Default)]
pub struct ChatRequest {
    /// As pydantic hands them on.
    pub messages: Vec<Map>,
    /// As the template gets them.
    pub tools: Option<Vec<Json>>,
    pub chat_template: Option<String>,
    pub kwargs: Map,
    pub reasoning_effort: Option<Arc<str>>,
    pub documents: Option<Json>,
    /// None: true.
    pub no_generation_prompt: bool,
    pub continue_final_message: bool,
    pub add_special_tokens: bool,
    pub truncation: Truncation,
    /// Ids that another engine made of the same chat (kv_transfer_params, disaggregated serving).
    pub prompt_token_ids: Option<Json>,
}

/// ChatCompletionRequest. INVALID_ARGUMENT: the engine refuses it. Checks come first; then the
/// fields are taken out of the body.
pub fn parse(mut body: Map) -> Result<ChatRequest, Failure> {
    check_common(&body)?;
    fields::check(&body, FIELDS)?;
    check_logprobs(&body)?;
    check_tool_choice(&body)?;
    if is_true(&body, "continue_final_message") && is_true(&body, "add_generation_prompt") {
        return Err(Failure::invalid(
            "continue_final_message and add_generation_prompt exclude each other",
        ));
    }
    if ["media_io_kwargs", "mm_processor_kwargs"].iter().any(|name| is_true(&body, name)) {
        return Err(Failure::unknown_here("the request says how media are read"));
    }
    let output = match fields::int(&body, "max_completion_tokens")? {
        Some(tokens) => Some(tokens),
        None => fields::int(&body, "max_tokens")?,
    };
    check_sampling(&body, output)?;
    let mut request = ChatRequest {
        no_generation_prompt: !fields::flag(&body, "add_generation_prompt", true)?,
        continue_final_message: fields::flag(&body, "continue_final_message", false)?,
        add_special_tokens: fields::flag(&body, "add_special_tokens", false)?,
        chat_template: body.text("chat_template").map(str::to_owned),
        reasoning_effort: body.text("reasoning_effort").map(Arc::from),
        documents: body.remove("documents").filter(|documents| !documents.is_null()),
        truncation: Truncation {
            output: output.map(|tokens| tokens.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
            ..Truncation::of(&body)?
        },
        prompt_token_ids: reused_ids(&mut body),
        ..ChatRequest::default()
    };
    if let Some(Json::Map(kwargs)) = body.remove("chat_template_kwargs") {
        request.kwargs = kwargs;
    }
    request.tools = match body.remove("tools") {
        None | Some(Json::Null) => None,
        Some(Json::List(tools)) if !tools.is_empty() => Some(tools.into_iter().map(tool_as_seen).collect::<Result<_, _>>()?),
        Some(_) => return Err(wrong("tools", "no list with at least one tool")),
    };
    let Some(Json::List(messages)) = body.remove("messages") else {
        return Err(wrong("messages", "no list"));
    };
    request.messages = messages.into_iter().map(message::validate).collect::<Result<_, _>>()?;
    Ok(request)
}

/// ChatCompletionRequest.check_logprobs.
fn check_logprobs(body: &Map) -> Result<(), Failure> {
    let logprobs = is_true(body, "logprobs");
    if is_true(body, "logprob_token_ids") && !logprobs {
        return Err(wrong("logprob_token_ids", "for logprobs alone"));
    }
    if body.get("top_logprobs").is_some_and(|value| value.as_str().is_some()) {
        return Err(wrong("top_logprobs", "no integer"));
    }
    match fields::int(body, "top_logprobs")? {
        Some(tokens) if tokens < -1 || (tokens != 0 && !logprobs) => Err(wrong("top_logprobs", "not possible here")),
        _ => Ok(()),
    }
}

/// ChatCompletionRequest.check_tool_usage.
fn check_tool_choice(body: &Map) -> Result<(), Failure> {
    let bad = || wrong("tool_choice", "not possible with these tools");
    let named = match body.get("tool_choice") {
        None | Some(Json::Null) => return Ok(()),
        Some(Json::Str(choice)) if &**choice == "none" => return Ok(()),
        Some(Json::Str(choice)) => matches!(&**choice, "auto" | "required").then_some(None).ok_or_else(bad)?,
        Some(Json::Map(choice)) => {
            let function = choice.get("function").and_then(Json::as_map).ok_or_else(bad)?;
            if choice.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
                return Err(bad());
            }
            Some(function.text("name").filter(|name| !name.is_empty()).ok_or_else(bad)?)
        }
        Some(_) => return Err(bad()),
    };
    let Some(tools) = body.some("tools") else {
        return Err(bad());
    };
    let name_of = |tool: &Json| -> Option<Json> { tool.as_map()?.get("function")?.as_map()?.get("name").cloned() };
    match named {
        None => Ok(()),
        Some(name) => {
            let found = tools
                .as_list()
                .is_some_and(|tools| tools.iter().any(|tool| name_of(tool) == Some(Json::from(name))));
            found.then_some(()).ok_or_else(bad)
        }
    }
}

/// Takes the ids of the prompt that came with the request out of it. The engine takes them as they
/// are, unless the chat is to be echoed.
pub fn reused_ids(body: &mut Map) -> Option<Json> {
    let is_echo = is_true(body, "echo");
    match body.get_mut("kv_transfer_params") {
        Some(Json::Map(params)) => params.remove("prompt_token_ids").filter(|ids| !ids.is_null() && !is_echo),
        _ => None,
    }
}

/// A tool as ChatCompletionToolsParam writes it. entrypoints/generate/base/protocol.py,
/// FunctionDefinition._serialize: known keys alone, in this order, null where they are missing;
/// strict and defer_loading where they are given.
pub fn tool_as_seen(tool: Json) -> Result<Json, Failure> {
    let bad = || wrong("tools", "not a list of functions");
    let Json::Map(mut tool) = tool else { return Err(bad()) };
    fields::check(
        &tool,
        &[
            ("type", Kind::OneOf(&["function"]), false),
            ("function", Kind::Map, false),
            ("defer_loading", Kind::Bool, true),
        ],
    )?;
    let deferred = tool.some("defer_loading").and_then(fields::bool_of);
    let Some(Json::Map(mut function)) = tool.remove("function") else {
        return Err(bad());
    };
    fields::check(
        &function,
        &[
            ("name", Kind::Str, false),
            ("description", Kind::Str, true),
            ("parameters", Kind::Map, true),
            ("strict", Kind::Bool, true),
            ("defer_loading", Kind::Bool, true),
        ],
    )?;
    let mut seen = Map::new();
    seen.insert("name", function.remove("name").ok_or_else(bad)?);
    seen.insert("description", function.remove("description"));
    seen.insert("parameters", function.remove("parameters"));
    if let Some(strict) = function.some("strict").and_then(fields::bool_of) {
        seen.insert("strict", strict);
    }
    if let Some(deferred) = function.some("defer_loading").and_then(fields::bool_of).or(deferred) {
        seen.insert("defer_loading", deferred);
    }
    let mut out = Map::from_iter([("type", Json::from("function")), ("function", Json::Map(seen))]);
    if let Some(deferred) = deferred {
        out.insert("defer_loading", deferred);
    }
    Ok(Json::Map(out))
}

/// The prompt of a chat.
/// 1. Models whose chats no template prints have no prompt here.
/// 2. The cut is resolved first, as a bad one refuses the request. Chats of gpt-oss are not cut.
/// 3. Ids that the request brings are the prompt.
/// 4. gpt-oss goes to `harmony_chat`, all others to their template.
pub fn render(templates: &Templates, convention: &Convention, mut request: ChatRequest) -> Result<Reading, Failure> {
    super::own_encoding(convention)?;
    let is_harmony = convention.model_type == "gpt_oss";
    let truncate = match is_harmony {
        true => None,
        false => request.truncation.resolve(convention, request.add_special_tokens)?,
    };
    if let Some(ids) = request.prompt_token_ids.take() {
        return Ok(Reading {
            parts: vec![Part::Ids(ids_of(&ids)?)],
            truncate: None,
        });
    }
    if is_harmony {
        return harmony_chat::read_chat(convention, request.messages, request.tools, request.reasoning_effort.as_deref());
    }
    let around = request.add_special_tokens;
    let text = text_of(templates, convention, request)?;
    Ok(Reading {
        parts: vec![Part::Text { text, around }],
        truncate,
    })
}

/// The text that the template prints.
/// `chat_template` of a request is the name of one of the model's templates, or a template itself,
/// which has to be trusted. The template decides whether contents are texts or lists of parts
/// (`Facts::content_is_parts`), so it is chosen before the messages are converted.
pub fn text_of(templates: &Templates, convention: &Convention, mut request: ChatRequest) -> Result<String, Failure> {
    let tools = kwargs_of(&mut request)?;
    let own = match request.chat_template.as_deref().filter(|_| convention.trust_templates) {
        Some(name) if name.is_empty() || templates.named(name).is_some() => None,
        _ => transformers::own_template(templates, convention, request.chat_template.as_deref())?,
    };
    let named = request.chat_template.as_deref().and_then(|name| templates.named(name));
    let template = match (&own, named) {
        (Some(own), _) => own.choose(false)?,
        (None, Some(named)) => named,
        (None, None) => templates.choose(tools.is_some())?,
    };
    let as_parts = template.facts().content_is_parts;
    let converted = request.messages.into_iter().map(|message| message::convert(message, as_parts));
    let chat = Chat {
        messages: for_template(template, converted.collect::<Result<_, _>>()?)?,
        tools,
        kwargs: request.kwargs,
        chat_template: None,
        add_generation_prompt: !request.no_generation_prompt,
        continue_final_message: request.continue_final_message,
    };
    transformers::render_in(template, templates, convention, chat)
}

/// Leaves in `kwargs` what the template gets; returns its tools.
///
/// ChatCompletionRequest.build_chat_params, OnlineRenderer.preprocess_chat (a kwarg `tools` wins),
/// renderers/params.py, merge_kwargs (null and "auto" are as not given), renderers/hf.py,
/// resolve_chat_template_kwargs.
fn kwargs_of(request: &mut ChatRequest) -> Result<Option<Vec<Json>>, Failure> {
    let kwargs = &mut request.kwargs;
    let thinking = request
        .reasoning_effort
        .as_ref()
        .map(|effort| &**effort != "none")
        .filter(|_| !kwargs.contains("enable_thinking"));
    kwargs.retain(|name, value| {
        !value.is_null() && value.as_str() != Some("auto") && !matches!(name, "add_generation_prompt" | "continue_final_message")
    });
    if let Some(name) = NOT_VARIABLES.iter().find(|name| kwargs.contains(name)) {
        return Err(Failure::unknown_here(format!("chat_template_kwargs with {name}")));
    }
    if let Some(name) = TAKEN.iter().find(|name| kwargs.contains(name)) {
        return Err(wrong(
            "chat_template_kwargs",
            &format!("with {name}, which the engine gives itself"),
        ));
    }
    for (name, value) in [
        ("documents", request.documents.take()),
        ("reasoning_effort", request.reasoning_effort.take().map(Json::Str)),
        ("enable_thinking", thinking.map(Json::Bool)),
    ] {
        if let Some(value) = value {
            kwargs.insert(name, value);
        }
    }
    for name in ["documents", "tools"] {
        let Some(value) = kwargs.get(name) else { continue };
        if !value
            .as_list()
            .is_some_and(|items| items.iter().all(|item| item.as_map().is_some()))
        {
            return Err(wrong(name, "no list of objects"));
        }
    }
    match kwargs.remove("tools") {
        Some(Json::List(tools)) => Ok(Some(tools)),
        _ => Ok(request.tools.take()),
    }
}

/// A template that does not know the role "developer" gets these messages as the system's; then all
/// messages of the system become one, the first. Templates that know the role get messages as they
/// are. renderers/hf.py, safe_apply_chat_template, _convert_developer_to_system,
/// _consolidate_system_messages.
fn for_template(template: &Template, mut messages: Vec<Map>) -> Result<Vec<Map>, Failure> {
    let is = |message: &Map, role: &str| message.text("role") == Some(role);
    if template.facts().knows_developer || !messages.iter().any(|message| is(message, "developer")) {
        return Ok(messages);
    }
    for message in messages.iter_mut().filter(|message| is(message, "developer")) {
        message.insert("role", "system");
        message.remove("tools");
    }
    // One system message, in front: nothing to join.
    if !messages.iter().skip(1).any(|message| is(message, "system")) {
        return Ok(messages);
    }
    let (system, mut rest): (Vec<Map>, Vec<Map>) = messages.into_iter().partition(|message| is(message, "system"));
    let mut texts = vec![];
    for mut message in system {
        let text = match message.remove("content") {
            Some(Json::Str(text)) => text.to_string(),
            Some(Json::List(parts)) => {
                let texts: Option<Vec<&str>> = parts
                    .iter()
                    .filter_map(|part| part.as_map()?.get("text"))
                    .map(Json::as_str)
                    .collect();
                texts.ok_or_else(|| wrong("content", "of a part without a text"))?.join("\n")
            }
            _ => String::new(),
        };
        if !text.is_empty() {
            texts.push(text);
        }
    }
    rest.insert(0, Map::from_iter([("role", "system".to_owned()), ("content", texts.join("\n\n"))]));
    Ok(rest)
}

/// renderers/online_renderer.py, _reused_prompt_token_ids.
fn ids_of(ids: &Json) -> Result<Vec<u32>, Failure> {
    let ids = ids.as_list().filter(|ids| !ids.is_empty());
    let id = |id: &Json| id.as_int().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = ids.and_then(|ids| ids.iter().map(id).collect());
    ids.ok_or_else(|| wrong("kv_transfer_params", "with prompt_token_ids that are no token ids"))
}
