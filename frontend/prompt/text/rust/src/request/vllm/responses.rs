//! /v1/responses: entrypoints/openai/responses/protocol.py (ResponsesRequest), utils.py
//! (construct_input_messages), and renderers/online_renderer.py, OnlineRenderer.render_responses.
//! gpt-oss is in `harmony_responses`.
//!
//! Items of the input are read as the `openai` package types them (3.57, types/responses), in
//! `items`.

use super::chat::{self, ChatRequest};
use super::fields::{self, Field, Kind, I64, INT};
use super::items::{self, Item};
use super::params::{check_salt, check_sampling};
use super::{harmony_responses, is_true, Truncation};
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::python::JsonStyle;
use crate::request::{wrong, Convention, Reading, RESPONSES_INCLUDE};
use crate::Failure;

const FIELDS: &[Field] = &[
    ("background", Kind::Bool, true),
    (
        "include",
        Kind::ListOf(&Kind::OneOf(RESPONSES_INCLUDE)),
        true,
    ),
    ("instructions", Kind::Str, true),
    ("max_output_tokens", INT, true),
    ("max_tool_calls", INT, true),
    ("metadata", Kind::MapOf(&Kind::Str), true),
    ("model", Kind::Str, true),
    ("logit_bias", Kind::MapOf(&Kind::Float), true),
    ("parallel_tool_calls", Kind::Bool, true),
    ("previous_response_id", Kind::Str, true),
    ("reasoning", Kind::Map, true),
    ("include_reasoning", Kind::Bool, false),
    ("service_tier", Kind::OneOf(&["auto", "default", "flex", "scale", "priority"]), false),
    ("store", Kind::Bool, true),
    ("stream", Kind::Bool, true),
    ("temperature", Kind::Float, true),
    ("text", Kind::Map, true),
    ("top_logprobs", INT, true),
    ("top_p", Kind::Float, true),
    ("top_k", INT, true),
    ("min_p", Kind::Float, true),
    ("truncation", Kind::OneOf(&["auto", "disabled"]), true),
    ("user", Kind::Str, true),
    ("skip_special_tokens", Kind::Bool, true),
    ("spaces_between_special_tokens", Kind::Bool, false),
    ("include_stop_str_in_output", Kind::Bool, false),
    ("presence_penalty", Kind::Float, true),
    ("frequency_penalty", Kind::Float, true),
    ("prompt_cache_key", Kind::Str, true),
    ("prompt_cache_options", Kind::Map, true),
    ("prompt_cache_retention", Kind::OneOf(&["in_memory", "in-memory", "24h"]), true),
    ("safety_identifier", Kind::Str, true),
    ("watermarking", Kind::Bool, true),
    ("request_id", Kind::Str, false),
    ("session_id", Kind::Str, true),
    ("media_io_kwargs", Kind::MapOf(&Kind::Map), true),
    ("mm_processor_kwargs", Kind::Map, true),
    ("priority", I64, false),
    ("mm_payload", Kind::OneOf(&["tensors", "none"]), false),
    ("return_mm_kwargs", Kind::Bool, true),
    ("cache_salt", Kind::Str, true),
    ("enable_response_messages", Kind::Bool, false),
    ("previous_input_messages", Kind::ListOf(&Kind::Map), true),
    ("structured_outputs", Kind::Map, true),
    ("repetition_penalty", Kind::Float, true),
    ("seed", I64, true),
    ("stop", Kind::TextOr(4), true),
    ("stop_token_ids", Kind::ListOf(&INT), true),
    ("ignore_eos", Kind::Bool, false),
    ("vllm_xargs", Kind::Map, true),
    ("kv_transfer_params", Kind::Map, true),
    ("ec_transfer_params", Kind::Map, true),
    ("chat_template_kwargs", Kind::Map, true),
];
/// Reasoning of the openai package.
const REASONING: &[Field] = &[
    ("context", Kind::OneOf(&["auto", "current_turn", "all_turns"]), true),
    ("effort", Kind::OneOf(chat::EFFORTS), true),
    ("generate_summary", Kind::OneOf(&["auto", "concise", "detailed"]), true),
    ("mode", Kind::Str, true),
    ("summary", Kind::OneOf(&["auto", "concise", "detailed"]), true),
];
/// `allowed_callers` of a tool.
const CALLERS: Kind = Kind::ListOf(&Kind::OneOf(&["direct", "programmatic"]));
/// A function.
const TOOL: &[Field] = &[
    ("name", Kind::Str, false),
    ("description", Kind::Str, true),
    ("parameters", Kind::Map, true),
    ("strict", Kind::Bool, true),
    ("defer_loading", Kind::Bool, true),
    ("async", Kind::Bool, true),
    ("allowed_callers", CALLERS, true),
    ("output_schema", Kind::Map, true),
];
/// Tools of the engine's own, by type, with the field that they must have.
const OWN_TOOLS: &[(&str, &str)] = &[
    ("file_search", "vector_store_ids"),
    ("computer", ""),
    ("computer_use_preview", "display_height"),
    ("web_search", ""),
    ("web_search_2025_08_26", ""),
    ("mcp", "server_label"),
    ("code_interpreter", "container"),
    ("programmatic_tool_calling", ""),
    ("image_generation", ""),
    ("local_shell", ""),
    ("shell", ""),
    ("tool_search", ""),
    ("web_search_preview", ""),
    ("web_search_preview_2025_03_11", ""),
    ("apply_patch", ""),
];

/// A request as pydantic hands it on.
pub struct Responses {
    /// A text, or items.
    pub input: Input,
    pub instructions: Option<String>,
    pub effort: Option<String>,
    pub tools: Vec<Map>,
    pub truncation: Truncation,
    pub includes_logprobs: bool,
    pub has_previous_messages: bool,
    /// The tool that is to be called.
    pub named: Option<String>,
    kwargs: Map,
    prompt_token_ids: Option<Json>,
}

pub enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// Makes a chat of the request and prints it.
///
/// 1. `parse` reads the request; gpt-oss continues in `harmony_responses`.
/// 2. Instructions are the first system message; items become messages (`add`).
/// 3. A last item that is unfinished is continued: no prompt for a new message follows.
/// 4. Tools become tools of a chat.
pub fn read(templates: &Templates, convention: &Convention, body: Map) -> Result<Reading, Failure> {
    let request = parse(body)?;
    if convention.model_type == "gpt_oss" {
        return harmony_responses::read(convention, request);
    }
    let continues = match &request.input {
        Input::Items(items) => items.last().is_some_and(Item::is_unfinished),
        Input::Text(_) => false,
    };
    let mut messages = vec![];
    if let Some(instructions) = request.instructions.filter(|text| !text.is_empty()) {
        messages.push(message("system", instructions));
    }
    match request.input {
        Input::Text(text) => messages.push(message("user", text)),
        Input::Items(items) => items.into_iter().try_for_each(|item| add(item, &mut messages))?,
    }
    let functions = functions(request.tools)?;
    let chat = ChatRequest {
        messages,
        tools: functions.map(|functions| functions.into_iter().map(chat::tool_as_seen).collect()).transpose()?,
        kwargs: request.kwargs,
        reasoning_effort: request.effort.map(Into::into),
        no_generation_prompt: continues,
        continue_final_message: continues,
        // TokenizeParams of ResponsesRequest.build_tok_params leaves add_special_tokens at true.
        add_special_tokens: true,
        truncation: request.truncation,
        prompt_token_ids: request.prompt_token_ids,
        ..ChatRequest::default()
    };
    chat::render(templates, convention, chat)
}

/// ResponsesRequest and its validators. INVALID_ARGUMENT: the engine refuses the request.
fn parse(mut body: Map) -> Result<Responses, Failure> {
    fields::check(&body, FIELDS)?;
    check_salt(&body)?;
    if body.some("prompt").is_some() {
        return Err(wrong("prompt", "a stored one, which the engine does not take"));
    }
    if body.some("previous_response_id").is_some() || is_true(&body, "background") {
        return Err(Failure::unknown_here("the request needs responses that the engine stores"));
    }
    if ["media_io_kwargs", "mm_processor_kwargs"].iter().any(|name| is_true(&body, name)) {
        return Err(Failure::unknown_here("the request says how media are read"));
    }
    let has_format = check_text(body.get("text"))?;
    if has_format && body.some("structured_outputs").is_some() {
        return Err(wrong("structured_outputs", "excluded by text.format"));
    }
    let effort = match body.get("reasoning") {
        Some(Json::Map(reasoning)) => {
            fields::check(reasoning, REASONING)?;
            reasoning.text("effort").map(str::to_owned)
        }
        _ => None,
    };
    let tools = match body.remove("tools") {
        None => vec![],
        Some(Json::List(tools)) => tools.into_iter().map(tool).collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong("tools", "no list")),
    };
    check_choice(body.get("tool_choice"), &tools)?;
    let output = fields::int(&body, "max_output_tokens")?;
    check_sampling(&body, output)?;
    // Anything but "disabled" cuts, null too.
    let cuts = body.get("truncation").is_some_and(|truncation| truncation.as_str() != Some("disabled"));
    Ok(Responses {
        input: match body.remove("input") {
            Some(Json::Str(text)) => Input::Text(text.to_string()),
            Some(Json::List(items)) => Input::Items(items.into_iter().map(items::validate).collect::<Result<_, _>>()?),
            // pydantic takes an empty object for a list.
            Some(Json::Map(items)) if items.is_empty() => Input::Items(vec![]),
            _ => return Err(wrong("input", "neither a text nor a list of items")),
        },
        instructions: body.text("instructions").map(str::to_owned),
        effort,
        tools,
        truncation: Truncation {
            tokens: cuts.then_some(-1),
            right: None,
            output: output.map(|tokens| tokens.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        },
        includes_logprobs: body
            .get("include")
            .and_then(Json::as_list)
            .is_some_and(|names| names.iter().any(|name| name.as_str() == Some("message.output_text.logprobs"))),
        named: body.get("tool_choice").and_then(Json::as_map).and_then(|choice| choice.text("name")).map(str::to_owned),
        has_previous_messages: is_true(&body, "previous_input_messages"),
        prompt_token_ids: chat::reused_ids(&mut body),
        kwargs: match body.remove("chat_template_kwargs") {
            Some(Json::Map(kwargs)) => kwargs,
            _ => Map::new(),
        },
    })
}

/// ResponseTextConfig of the openai package. Whether there is a format.
fn check_text(text: Option<&Json>) -> Result<bool, Failure> {
    let Some(Json::Map(text)) = text else { return Ok(false) };
    fields::check(text, &[("format", Kind::Map, true), ("verbosity", Kind::OneOf(&["low", "medium", "high"]), true)])?;
    let Some(Json::Map(format)) = text.get("format") else { return Ok(false) };
    let is_schema = format.text("type") == Some("json_schema")
        && format.text("name").is_some()
        && format.get("schema").and_then(Json::as_map).is_some();
    if is_schema {
        fields::check(format, &[("description", Kind::Str, true), ("strict", Kind::Bool, true)])?;
    }
    match is_schema || matches!(format.text("type"), Some("text" | "json_object")) {
        true => Ok(true),
        false => Err(wrong("text.format", "not one that the engine takes")),
    }
}

/// A tool of the openai package (types/responses/tool.py).
fn tool(tool: Json) -> Result<Map, Failure> {
    let bad = || wrong("tools", "not a list of tools that the engine takes");
    let Json::Map(tool) = tool else { return Err(bad()) };
    let has_name = tool.text("name").is_some();
    match tool.text("type") {
        Some("function") if has_name => fields::check(&tool, TOOL)?,
        Some("custom") if has_name => {
            fields::check(&tool, &[("description", Kind::Str, true), ("defer_loading", Kind::Bool, true), ("allowed_callers", CALLERS, true)])?;
            match tool.get("format") {
                None | Some(Json::Null) => {}
                Some(Json::Map(format)) if format.text("type") == Some("text") => {}
                // check_custom_tool_format: no grammars.
                Some(_) => return Err(bad()),
            }
        }
        Some("namespace") if has_name && tool.text("description").is_some() => {
            let inner = tool.get("tools").and_then(Json::as_list).ok_or_else(bad)?;
            for inner in inner {
                let inner = inner.as_map().filter(|inner| inner.text("name").is_some()).ok_or_else(bad)?;
                match inner.text("type") {
                    Some("function") => fields::check(inner, TOOL)?,
                    Some("custom") => {}
                    _ => return Err(bad()),
                }
            }
        }
        Some(kind) if OWN_TOOLS.iter().any(|(name, needs)| *name == kind && (needs.is_empty() || tool.some(needs).is_some())) => {}
        _ => return Err(bad()),
    }
    Ok(tool)
}

/// ResponsesRequest.check_tool_usage, _resolve_named_tool_choice; ToolChoice of the openai package.
fn check_choice(choice: Option<&Json>, tools: &[Map]) -> Result<(), Failure> {
    let bad = || wrong("tool_choice", "not possible with these tools");
    let choice = match choice {
        None => return Ok(()),
        Some(Json::Str(choice)) => match &**choice {
            "auto" | "none" => return Ok(()),
            "required" if !tools.is_empty() => return Ok(()),
            _ => return Err(bad()),
        },
        Some(Json::Map(choice)) => choice,
        Some(_) => return Err(bad()),
    };
    match choice.text("type") {
        Some("function" | "custom") => {
            let name = choice.text("name").filter(|name| !name.is_empty()).ok_or_else(bad)?;
            // A name matches a tool, the flat name of a tool in a namespace, or, if it is the only
            // one, the local name of such a tool.
            let mut local = 0;
            for tool in tools {
                let own = tool.text("name").unwrap_or_default();
                // Tools outside of namespaces match by their own name.
                if tool.text("type") != Some("namespace") {
                    if own == name {
                        return Ok(());
                    }
                    continue;
                }
                for inner in tool.get("tools").and_then(Json::as_list).unwrap_or_default() {
                    let inner = inner.as_map().and_then(|inner| inner.text("name")).unwrap_or_default();
                    if flat_name(own, inner) == name {
                        return Ok(());
                    }
                    local += usize::from(inner == name);
                }
            }
            if local == 1 { Ok(()) } else { Err(bad()) }
        }
        Some("allowed_tools") => {
            let is_valid = matches!(choice.text("mode"), Some("auto" | "required")) && choice.get("tools").and_then(Json::as_list).is_some();
            is_valid.then_some(()).ok_or_else(bad)
        }
        Some("mcp") => choice.text("server_label").map(|_| ()).ok_or_else(bad),
        Some(
            "file_search" | "web_search_preview" | "computer" | "computer_use_preview" | "computer_use" | "web_search_preview_2025_03_11"
            | "image_generation" | "code_interpreter" | "programmatic_tool_calling" | "apply_patch" | "shell",
        ) => Ok(()),
        _ => Err(bad()),
    }
}

/// The name by which a tool of a namespace is shown.
fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// The tools that the template is shown, as tools of chats; None: no tools. construct_tool_dicts;
/// tool_parsers/utils.py, get_function_tools.
fn functions(tools: Vec<Map>) -> Result<Option<Vec<Json>>, Failure> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = vec![];
    for mut tool in tools {
        match tool.text("type") {
            Some("function") => out.push(function(tool)),
            Some("custom") => {
                tool.insert("parameters", custom_parameters());
                tool.remove("defer_loading");
                tool.remove("strict");
                out.push(function(tool));
            }
            Some("namespace") => {
                let Some(Json::List(inner)) = tool.remove("tools") else { continue };
                let namespace = tool.text("name").unwrap_or_default();
                for inner in inner {
                    let Json::Map(mut inner) = inner else { continue };
                    if inner.text("type") == Some("function") {
                        inner.insert("name", flat_name(namespace, inner.text("name").unwrap_or_default()));
                        out.push(function(inner));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(out))
}

/// A function as a tool of a chat.
fn function(mut tool: Map) -> Json {
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict", "defer_loading"] {
        if let Some(value) = tool.remove(name) {
            function.insert(name, value);
        }
    }
    Json::Map(Map::from_iter([("type", Json::from("function")), ("function", Json::Map(function))]))
}

/// tool_parsers/utils.py, custom_tool_parameters.
fn custom_parameters() -> Map {
    let input = Map::from_iter([("type", "string"), ("description", "The freeform text payload for this tool.")]);
    let mut schema = Map::from_iter([("type", "object")]);
    schema.insert("properties", Map::from_iter([("input", Json::Map(input))]));
    schema.insert("required", vec![Json::from("input")]);
    schema.insert("additionalProperties", false);
    schema
}

/// A message of a chat.
fn message(role: &str, content: impl Into<Json>) -> Map {
    Map::from_iter([("role", Json::from(role)), ("content", content.into())])
}

/// _construct_message_from_response_item: an item is a message, or more of the assistant's last
/// one.
fn add(item: Item, messages: &mut Vec<Map>) -> Result<(), Failure> {
    let mut last = messages.last_mut().filter(|last| last.text("role") == Some("assistant"));
    // The last message takes the value, if it is the assistant's and has none of this name; else a
    // new one is made.
    let mut assistant = |name: &str, value: Json| match &mut last {
        Some(last) if last.some(name).is_none() => {
            last.insert(name, value);
            None
        }
        _ => Some(Map::from_iter([("role", Json::from("assistant")), (name, value)])),
    };
    let new = match item {
        Item::Call { id, name, namespace, arguments } => {
            let name = namespace.filter(|namespace| !namespace.is_empty()).map_or(name.clone(), |space| flat_name(&space, &name));
            let call = call(id, name, arguments);
            match last {
                Some(last) => {
                    match last.get_mut("tool_calls") {
                        Some(Json::List(calls)) => calls.push(call),
                        _ => last.insert("tool_calls", vec![call]),
                    }
                    None
                }
                None => Some(Map::from_iter([("role", Json::from("assistant")), ("tool_calls", Json::List(vec![call]))])),
            }
        }
        Item::CustomCall { id, name, input } => {
            let arguments = Json::Map(Map::from_iter([("input", input)])).dump(&JsonStyle::default());
            return add(Item::Call { id, name, namespace: None, arguments }, messages);
        }
        Item::Reasoning { is_encrypted: true, .. } => return Err(wrong("input", "encrypted reasoning, which the engine does not take")),
        Item::Reasoning { content, summary, .. } => {
            let text = content.into_iter().next().or_else(|| summary.into_iter().next());
            assistant("reasoning", text.unwrap_or_default().into())
        }
        Item::Said { texts, .. } => match texts.into_iter().next() {
            Some(Some(text)) => assistant("content", text.into()),
            _ => return Err(wrong("input", "a message of the assistant that begins with no text")),
        },
        Item::Output { id, output, .. } => {
            let mut message = Map::from_iter([("role", Json::from("tool")), ("content", output)]);
            message.insert("tool_call_id", id.map(Json::from));
            Some(message)
        }
        Item::Message { message, .. } => {
            // Only the first text of an assistant's message counts, as in the engine.
            let first = match message.get("content") {
                Some(Json::List(parts)) => match parts.first() {
                    Some(first) => first.as_map().ok_or_else(|| wrong("content", "a list of something else than parts"))?.some("text"),
                    None => None,
                },
                Some(text @ Json::Str(_)) => Some(text),
                _ => None,
            };
            match first.filter(|_| message.text("role") == Some("assistant")).cloned() {
                Some(text) => assistant("content", text),
                None => Some(message),
            }
        }
    };
    messages.extend(new);
    Ok(())
}

/// A call with its keys in the engine's order.
fn call(id: String, name: String, arguments: String) -> Json {
    let function = Map::from_iter([("name", name), ("arguments", arguments)]);
    let mut call = Map::from_iter([("id", id)]);
    call.insert("function", function);
    call.insert("type", "function");
    Json::Map(call)
}
