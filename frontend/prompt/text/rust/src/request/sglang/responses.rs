//! /v1/responses of SGLang 0.5.23: ResponsesRequest (srt/entrypoints/openai/protocol.py), which
//! OpenAIServingResponses (srt/entrypoints/openai/serving_responses.py) makes a chat; gpt-oss in
//! `responses_harmony`.
//!
//!   body ─▶ Responses::of ─▶ input items ─▶ messages ─▶ one per turn ─▶ system first ─▶ ChatRequest
//!           refusals         message_of_item           merge           merge_system

use super::chat::ChatRequest;
use super::lax::{self, Field, Type};
use super::{responses_harmony, sampling, template_of};
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::python::JsonStyle;
use crate::request::{wrong, Convention, Reading, RESPONSES_INCLUDE};
use crate::Failure;
use std::sync::Arc;

// Types that may be null.
const STR: Type = Type::Null(&Type::Str);
const INT: Type = Type::Null(&Type::Int);
const FLOAT: Type = Type::Null(&Type::Float);
const BOOL: Type = Type::Null(&Type::Bool);
const DICT: Type = Type::Null(&Type::Dict);
const INTS: Type = Type::Null(&Type::Either(&Type::List(&Type::Int), &Type::Int));

/// ResponsesRequest.
const FIELDS: &[Field] = &[
    ("background", BOOL, false),
    (
        "include",
        Type::Null(&Type::List(&Type::OneOf(RESPONSES_INCLUDE))),
        false,
    ),
    ("input", Type::Either(&Type::Str, &Type::List(&Type::Dict)), true),
    ("instructions", STR, false),
    ("max_output_tokens", INT, false),
    ("max_tool_calls", INT, false),
    ("metadata", DICT, false),
    ("model", STR, false),
    ("parallel_tool_calls", BOOL, false),
    ("previous_response_id", STR, false),
    (
        "reasoning",
        Type::Null(&Type::Model(&[
            ("effort", Type::Null(&Type::OneOf(&["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"])), false),
            ("summary", Type::Null(&Type::OneOf(&["auto", "concise", "detailed"])), false),
        ])),
        false,
    ),
    ("service_tier", Type::OneOf(&["auto", "default", "flex", "scale", "priority"]), false),
    ("store", BOOL, false),
    ("stream", BOOL, false),
    ("temperature", FLOAT, false),
    (
        "text",
        Type::Null(&Type::Model(&[
            ("format", Type::Null(&Type::Either(&FORMAT, &SCHEMA_FORMAT)), false),
            ("verbosity", Type::Null(&Type::OneOf(&["low", "medium", "high"])), false),
        ])),
        false,
    ),
    ("tool_choice", Type::Either(&Type::OneOf(&["auto", "required", "none"]), &Type::Dict), false),
    ("tools", Type::List(&TOOL), false),
    ("top_logprobs", INT, false),
    ("top_p", FLOAT, false),
    ("truncation", Type::Null(&Type::OneOf(&["auto", "disabled"])), false),
    ("user", STR, false),
    ("chat_template_kwargs", DICT, false),
    ("request_id", Type::Str, false),
    ("session_id", STR, false),
    ("priority", Type::Int, false),
    ("extra_key", STR, false),
    ("cache_salt", STR, false),
    ("data_parallel_rank", INT, false),
    ("routed_dp_rank", INT, false),
    ("disagg_prefill_dp_rank", INT, false),
    ("bootstrap_host", Type::Null(&Type::Either(&Type::List(&Type::Str), &Type::Str)), false),
    ("bootstrap_port", Type::Null(&Type::Either(&Type::List(&INT), &Type::Int)), false),
    ("bootstrap_room", INTS, false),
    ("frequency_penalty", Type::Float, false),
    ("presence_penalty", Type::Float, false),
    ("stop", Type::Null(&Type::Either(&Type::Str, &Type::List(&Type::Str))), false),
    ("top_k", INT, false),
    ("min_p", FLOAT, false),
    ("repetition_penalty", FLOAT, false),
];
const FORMAT: Type = Type::Model(&[("type", Type::OneOf(&["text", "json_object"]), true)]);
const SCHEMA_FORMAT: Type = Type::Model(&[
    ("type", Type::OneOf(&["json_schema"]), true),
    ("name", Type::Str, true),
    ("schema", Type::Dict, true),
    ("description", STR, false),
    ("strict", BOOL, false),
]);
const TOOL: Type = Type::Model(&[
    (
        "type",
        Type::OneOf(&[
            "function", "web_search", "web_search_preview", "code_interpreter", "file_search", "image_generation",
            "computer_use_preview", "local_shell", "shell", "mcp", "custom", "namespace", "tool_search",
        ]),
        true,
    ),
    ("name", STR, false),
    ("description", STR, false),
    ("parameters", DICT, false),
    ("strict", Type::Bool, false),
    ("tools", Type::Null(&Type::List(&Type::Dict)), false),
    ("defer_loading", BOOL, false),
    ("format", DICT, false),
]);

/// A request as pydantic has read it.
pub(super) struct Responses {
    pub input: Json,
    pub instructions: Option<Json>,
    pub effort: Option<Json>,
    pub tools: Vec<Map>,
    pub choice: Choice,
    is_constrained: bool,
    kwargs: Option<Json>,
    model: Option<Json>,
}

/// ResponsesRequest.effective_tool_choice.
#[derive(Debug, PartialEq)]
pub(super) enum Choice {
    Auto,
    Required,
    None,
    Named(String),
}

/// 1. `Responses::of` reads and refuses.
/// 2. Makes messages of instructions and items, one each (`message_of_item`).
/// 3. Joins what the assistant says in a row (`merge`), then the system's messages where the
///    template has no place for them (`merge_system`).
/// 4. Makes a chat of it, as JSON, which `ChatRequest::of` reads as it reads a client's.
pub fn read(templates: &Templates, convention: &Convention, body: Map) -> Result<Reading, Failure> {
    let request = Responses::of(convention, body)?;
    if convention.model_type == "gpt_oss" {
        return responses_harmony::read(convention, request);
    }
    // These models get tools of responses by code of their own.
    if convention.model_type == "beam" || convention.tool_call_parser == "muse" {
        return Err(Failure::unknown_here("the engine shows tools of responses to this model in its own way"));
    }
    let mut chat = Map::new();
    let mut messages = vec![];
    if let Some(instructions) = request.instructions.filter(Json::is_true) {
        messages.push(message("system", instructions));
    }
    match request.input {
        Json::List(items) => {
            for item in items {
                if let Json::Map(item) = item {
                    messages.extend(message_of_item(item)?);
                }
            }
        }
        text => messages.push(message("user", text)),
    }
    let mut messages = merge(messages)?;
    if !template_of(templates, convention)?.sglang().inline_system {
        messages = merge_system(messages);
    }
    chat.insert("messages", messages.into_iter().map(Json::Map).collect::<Vec<_>>());
    let tools: Vec<Json> = request.tools.into_iter().filter_map(chat_tool).map(Json::Map).collect();
    let choice = match request.choice {
        _ if tools.is_empty() => "none".into(),
        Choice::Auto => "auto".into(),
        Choice::Required => "required".into(),
        Choice::None => "none".into(),
        Choice::Named(name) => Json::Map(Map::from_iter([
            ("type", Json::from("function")),
            ("function", Json::Map(Map::from_iter([("name", name)]))),
        ])),
    };
    if !tools.is_empty() {
        chat.insert("tools", tools);
    }
    chat.insert("tool_choice", choice);
    for (name, value) in [("model", request.model), ("reasoning_effort", request.effort), ("chat_template_kwargs", request.kwargs)] {
        if let Some(value) = value {
            chat.insert(name, value);
        }
    }
    let mut chat = ChatRequest::of(chat)?;
    if chat.kwargs.contains("chat_template") && !convention.trust_templates {
        return Err(Failure::unknown_here("chat templates of requests are not trusted here"));
    }
    chat.constrained = request.is_constrained;
    chat.process(templates, convention)
}

impl Responses {
    /// ResponsesRequest, and what create_responses refuses.
    fn of(convention: &Convention, mut body: Map) -> Result<Self, Failure> {
        lax::check(&body, FIELDS)?;
        sampling::check(&body)?;
        // ResponsesRequest.to_sampling_params takes two tokens off.
        if body.some("max_output_tokens").and_then(lax::int_of).is_some_and(|tokens| tokens < 2) {
            return Err(wrong("max_output_tokens", "less than the engine takes"));
        }
        let is_true = |name: &str| lax::flag(&body, name);
        let includes_logprobs =
            body.get("include").and_then(Json::as_list).is_some_and(|names| names.contains(&"message.output_text.logprobs".into()));
        if includes_logprobs && is_true("stream") {
            return Err(wrong("include", "logprobs of a stream"));
        }
        if body.some("previous_response_id").is_some() || is_true("background") {
            return Err(Failure::unknown_here("the request needs responses that the engine stores"));
        }
        let format = body.get("text").and_then(Json::as_map).and_then(|text| text.get("format")).and_then(Json::as_map);
        let is_constrained = matches!(format.and_then(|format| format.text("type")), Some("json_object" | "json_schema"));
        if convention.model_type == "gpt_oss" && (includes_logprobs || is_constrained) {
            return Err(wrong("text.format or include", "what the engine refuses for gpt-oss"));
        }
        // ResponseReasoningParam: an effort that is left out is medium;
        // normalize_reasoning_to_thinking also reads another name of it.
        let reasoning = body.get("reasoning").and_then(Json::as_map);
        let effort = reasoning.map(|reasoning| reasoning.get("effort").cloned().unwrap_or_else(|| "medium".into()));
        let is_off = reasoning.is_some_and(|reasoning| {
            let effort = reasoning.get("effort").filter(|effort| effort.is_true()).or_else(|| reasoning.get("reasoning_effort"));
            effort.and_then(Json::as_str) == Some("none")
        });
        let mut kwargs = body.remove("chat_template_kwargs").filter(|kwargs| !kwargs.is_null());
        if is_off {
            // The request's own variables win over those that turn thinking off.
            let mut with = Map::from_iter([("thinking", false), ("enable_thinking", false)]);
            if let Some(Json::Map(own)) = &kwargs {
                with.update(own);
            }
            kwargs = Some(Json::Map(with));
        }
        let mut tools = vec![];
        if let Some(Json::List(items)) = body.remove("tools") {
            for tool in items {
                let Json::Map(tool) = tool else { continue };
                match (tool.text("type"), tool.text("name").unwrap_or_default()) {
                    (Some("function"), "") => return Err(wrong("tools", "functions, of which one has no name")),
                    (Some("shell"), _) if convention.model_type != "beam" => return Err(wrong("tools", "a shell")),
                    _ => tools.push(tool),
                }
            }
        }
        let request = Responses {
            choice: choice_of(body.get("tool_choice"))?,
            instructions: body.remove("instructions"),
            model: body.remove("model"),
            input: body.remove("input").unwrap_or(Json::Null),
            effort: effort.filter(|effort| !effort.is_null()),
            is_constrained,
            kwargs,
            tools,
        };
        let mut callable = request.tools.iter().filter(|tool| matches!(tool.text("type"), Some("function" | "custom")));
        // "required" and a named tool need a function or a custom tool of the request.
        let is_possible = match &request.choice {
            Choice::Required => callable.next().is_some(),
            Choice::Named(name) => callable.any(|tool| tool.text("name") == Some(name)),
            _ => true,
        };
        is_possible.then_some(request).ok_or_else(|| wrong("tool_choice", "a tool that is not there"))
    }
}

/// A choice of a kind that is not known is auto.
fn choice_of(choice: Option<&Json>) -> Result<Choice, Failure> {
    match choice {
        Some(Json::Str(choice)) if &**choice == "required" => Ok(Choice::Required),
        Some(Json::Str(choice)) if &**choice == "none" => Ok(Choice::None),
        Some(Json::Map(choice)) => {
            let function = choice.get("function").filter(|function| function.is_true());
            let name = match (choice.get("name").filter(|name| name.is_true()), function) {
                (Some(name), _) => Some(name),
                (None, Some(Json::Map(function))) => function.get("name").filter(|name| name.is_true()),
                (None, Some(_)) => return Err(wrong("tool_choice", "no object with a function")),
                (None, None) => None,
            };
            match (choice.text("type"), name) {
                (Some("function" | "custom"), Some(Json::Str(name))) => Ok(Choice::Named(name.to_string())),
                (Some("function" | "custom"), Some(_)) => Err(wrong("tool_choice", "no name of a tool")),
                _ => Ok(Choice::Auto),
            }
        }
        _ => Ok(Choice::Auto),
    }
}

/// A message of a chat.
fn message(role: &str, content: Json) -> Map {
    Map::from_iter([("role", Json::from(role)), ("content", content)])
}

/// _response_tools_to_chat_tools: functions, and custom tools as functions of one text.
fn chat_tool(mut tool: Map) -> Option<Map> {
    let is_custom = match (tool.text("type"), tool.text("name").unwrap_or_default()) {
        (Some("function"), _) => false,
        (Some("custom"), name) if !name.is_empty() => true,
        _ => return None,
    };
    let (description, parameters) = match is_custom {
        true => (custom_description(&tool), custom_parameters()),
        false => (tool.remove("description").unwrap_or(Json::Null), tool.remove("parameters").unwrap_or(Json::Null)),
    };
    let mut function = Map::new();
    function.insert("name", tool.remove("name"));
    function.insert("description", description);
    function.insert("parameters", parameters);
    function.insert("strict", lax::flag(&tool, "strict"));
    Some(Map::from_iter([("type", Json::from("function")), ("function", Json::Map(function))]))
}

/// responses_adapters.py, custom_tool_parameters.
fn custom_parameters() -> Json {
    let input = Map::from_iter([("type", "string"), ("description", "The freeform text payload for this tool.")]);
    let mut schema = Map::from_iter([("type", "object")]);
    schema.insert("properties", Map::from_iter([("input", Json::Map(input))]));
    schema.insert("required", vec![Json::from("input")]);
    schema.insert("additionalProperties", false);
    Json::Map(schema)
}

/// responses_adapters.py, custom_tool_description.
fn custom_description(tool: &Map) -> Json {
    let mut parts: Vec<String> = tool.text("description").filter(|text| !text.is_empty()).map(str::to_owned).into_iter().collect();
    if let Some(Json::Map(format)) = tool.get("format").filter(|format| format.as_map().and_then(|f| f.text("type")) == Some("grammar")) {
        let field = |name: &str, default: &str| match format.get(name).filter(|value| value.is_true()) {
            Some(Json::Str(text)) => text.to_string(),
            Some(value) => value.dump(&JsonStyle::default()),
            None => default.to_owned(),
        };
        parts.push(format!("The payload must conform to this {} grammar:\n{}", field("syntax", "lark"), field("definition", "")));
    }
    match parts.is_empty() {
        true => Json::Null,
        false => parts.join("\n\n").into(),
    }
}

/// responses_adapters.py, encode_custom_tool_input.
pub(super) fn custom_input(item: &Map) -> String {
    let input = item.get("input").filter(|input| input.is_true()).cloned().unwrap_or_else(|| "".into());
    Json::Map(Map::from_iter([("input", input)])).dump(&JsonStyle::default())
}

/// An object as orjson writes it.
pub(super) fn orjson(value: &Json) -> Result<String, Failure> {
    let style = JsonStyle { item_separator: ",".into(), key_separator: ":".into(), ..JsonStyle::default() };
    let value: serde_json::Value =
        serde_json::from_str(&value.dump(&style)).map_err(|_| Failure::unknown_here("arguments with a number that is none"))?;
    Ok(value.to_string())
}

/// The texts of parts joined, with nothing between (_flatten_tool_output); any other value as it
/// is.
pub(super) fn flat_output(output: Option<Json>) -> Result<Json, Failure> {
    let parts = match output {
        None => return Ok("".into()),
        Some(Json::List(parts)) => parts,
        Some(output) => return Ok(output),
    };
    let mut text = String::new();
    for part in parts.iter().filter_map(Json::as_map) {
        match part.get("text") {
            None => {}
            Some(Json::Str(more)) => text.push_str(more),
            Some(_) => return Err(wrong("output", "a list with a text that is none")),
        }
    }
    Ok(text.into())
}

/// A reasoning item's texts that say something: its summary's, else its content's.
/// _normalize_response_message_for_chat.
fn reasoning_of(item: &Map) -> Result<Option<String>, Failure> {
    for field in ["summary", "content"] {
        let parts = match item.get(field).filter(|parts| parts.is_true()) {
            Some(Json::List(parts)) => parts.as_slice(),
            None | Some(Json::Str(_) | Json::Map(_)) => &[],
            Some(_) => return Err(wrong(field, "no list")),
        };
        let mut texts = vec![];
        for text in parts.iter().filter_map(|part| part.as_map()?.get("text")).filter(|text| text.is_true()) {
            texts.push(text.as_str().ok_or_else(|| wrong(field, "a list with a text that is none"))?);
        }
        if !texts.is_empty() {
            return Ok(Some(texts.join("\n")));
        }
    }
    no_state(item)?;
    Ok(None)
}

/// UNIMPLEMENTED: reasoning that the engine packed into a text (decode_reasoning_state).
pub(super) fn no_state(item: &Map) -> Result<(), Failure> {
    match item.text("encrypted_content") {
        Some(text) if text.starts_with("sglang-reasoning-v1.") => Err(Failure::unknown_here("encrypted reasoning is not read here")),
        _ => Ok(()),
    }
}

/// _normalize_response_message_for_chat. None: the item says nothing.
/// A developer's message is the system's, with a label in front.
fn message_of_item(mut item: Map) -> Result<Option<Map>, Failure> {
    if item.text("role") == Some("developer") {
        item.insert("role", "system");
        item.insert("content", labelled(item.get("content").cloned().unwrap_or(Json::Null)));
    }
    let kind = match item.get("type") {
        None | Some(Json::Null) => "message",
        Some(Json::Str(kind)) => &**kind,
        Some(_) => return Err(wrong("input", "a list with an item of no type")),
    };
    // An assistant's message with one call; its id is `call_id`, else the id of the item.
    let call = |item: &Map, arguments: String| {
        let id = item.get("call_id").filter(|id| id.is_true()).or_else(|| item.get("id")).cloned();
        let mut function = Map::new();
        function.insert("name", item.get("name").cloned());
        function.insert("arguments", arguments);
        let call = Map::from_iter([("id", Json::from(id)), ("type", Json::from("function")), ("function", Json::Map(function))]);
        Map::from_iter([("role", Json::from("assistant")), ("tool_calls", Json::List(vec![Json::Map(call)]))])
    };
    Ok(Some(match kind {
        "function_call" => {
            let arguments = match item.get("arguments") {
                Some(Json::Str(text)) if is_orjson_object(text)? => text.to_string(),
                Some(value @ Json::Map(_)) => orjson(value)?,
                _ => "{}".to_owned(),
            };
            call(&item, arguments)
        }
        "custom_tool_call" => call(&item, custom_input(&item)),
        "function_call_output" | "custom_tool_call_output" => {
            let mut made = Map::from_iter([("role", Json::from("tool"))]);
            made.insert("tool_call_id", item.get("call_id").cloned());
            made.insert("content", flat_output(item.remove("output"))?);
            made
        }
        "reasoning" => match reasoning_of(&item)? {
            Some(text) => Map::from_iter([("role", Json::from("assistant")), ("reasoning_content", text.into())]),
            None => return Ok(None),
        },
        "message" => {
            if let Some(Json::List(parts)) = item.get_mut("content") {
                parts.iter_mut().for_each(as_chat_part);
            }
            item.retain(|name, value| !value.is_null() && !matches!(name, "id" | "status" | "type"));
            item
        }
        kind => return Err(Failure::invalid(format!("input items of type {kind:?} are not taken"))),
    }))
}

/// Whether orjson reads an object in it.
fn is_orjson_object(text: &str) -> Result<bool, Failure> {
    match Json::parse_orjson(text) {
        Ok(value) => Ok(value.as_map().is_some()),
        Err(failure) if failure.code == 3 => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// responses_adapters.py, label_developer_content: the first text gets a line in front.
fn labelled(content: Json) -> Json {
    const LABEL: &str = "Developer instructions:";
    match content {
        Json::Str(text) => format!("{LABEL}\n{text}").into(),
        Json::List(mut parts) => {
            let first = parts.iter_mut().find_map(|part| match part {
                Json::Map(part) => part.get_mut("text").filter(|text| text.as_str().is_some()),
                _ => None,
            });
            match first {
                Some(text) => *text = format!("{LABEL}\n{}", text.as_str().unwrap_or_default()).into(),
                None => parts.insert(0, Json::Map(Map::from_iter([("type", "input_text"), ("text", LABEL)]))),
            }
            Json::List(parts)
        }
        other => other,
    }
}

/// _normalize_response_content_part_for_chat.
fn as_chat_part(part: &mut Json) {
    let Json::Map(map) = part else { return };
    match map.text("type") {
        Some("input_text" | "output_text") => {
            let text = map.remove("text").unwrap_or_else(|| "".into());
            *part = Json::Map(Map::from_iter([("type", Json::from("text")), ("text", text)]));
        }
        Some("input_image") => {
            let url = match map.remove("image_url") {
                Some(Json::Map(url)) => url,
                url => Map::from_iter([("url", url.unwrap_or(Json::Null))]),
            };
            *part = Json::Map(Map::from_iter([("type", Json::from("image_url")), ("image_url", Json::Map(url))]));
        }
        _ => {}
    }
}

/// _merge_consecutive_assistant_messages: what the assistant says in several items is one message.
/// A message goes on from the one before if both are the assistant's, and they are of one phase or
/// the earlier one has reasoning alone. Contents, calls and reasoning are joined separately.
fn merge(messages: Vec<Map>) -> Result<Vec<Map>, Failure> {
    let is_assistant = |message: &Map| message.text("role") == Some("assistant");
    let mut merged: Vec<Map> = Vec::with_capacity(messages.len());
    let mut turn = Turn::default();
    for mut message in messages {
        // A reasoning item is a message of two keys, role and reasoning_content.
        let goes_on = |last: &Map| {
            let is_reasoning = last.len() == 2 && last.contains("reasoning_content");
            is_assistant(last) && is_assistant(&message) && (is_reasoning || last.some("phase") == message.some("phase"))
        };
        let Some(last) = merged.last_mut().filter(|last| goes_on(last)) else {
            turn.end(merged.last_mut());
            merged.push(message);
            continue;
        };
        if let Some(phase) = message.remove("phase").filter(|phase| !phase.is_null()) {
            last.insert("phase", phase);
        }
        if let Some(content) = message.remove("content").filter(|content| !content.is_null() && content.as_str() != Some("")) {
            turn.add_content(last, content);
        }
        if let Some(calls) = message.remove("tool_calls").filter(Json::is_true) {
            let Json::List(calls) = calls else { return Err(wrong("tool_calls", "no list")) };
            match last.get_mut("tool_calls") {
                Some(Json::List(before)) => before.extend(calls),
                Some(before) if before.is_true() => return Err(wrong("tool_calls", "no list")),
                _ => last.insert("tool_calls", calls),
            }
        }
        if let Some(more) = message.remove("reasoning_content").filter(Json::is_true) {
            match (last.get("reasoning_content").filter(|before| before.is_true()), more) {
                (None, more) => last.insert("reasoning_content", more),
                (Some(Json::Str(before)), Json::Str(more)) => {
                    if turn.thoughts.is_empty() {
                        turn.thoughts.push(before.clone());
                    }
                    turn.thoughts.push(more);
                }
                _ => return Err(wrong("reasoning_content", "no text")),
            }
        }
    }
    turn.end(merged.last_mut());
    Ok(merged)
}

/// Texts that are joined when the turn ends, so that the work stays linear; the first of them
/// stands in the message meanwhile.
#[derive(Default)]
struct Turn {
    texts: Vec<Arc<str>>,
    thoughts: Vec<Arc<str>>,
}

impl Turn {
    /// Two texts are joined when the turn ends; a list and anything else are one list.
    fn add_content(&mut self, last: &mut Map, content: Json) {
        let before = last.get("content").filter(|before| !before.is_null() && before.as_str() != Some(""));
        match (before, content) {
            (None, content) => last.insert("content", content),
            (Some(Json::Str(before)), Json::Str(content)) => {
                if self.texts.is_empty() {
                    self.texts.push(before.clone());
                }
                self.texts.push(content);
            }
            (Some(_), content) => {
                self.join_texts(last);
                let parts = |content: Json| match content {
                    Json::List(parts) => parts,
                    Json::Str(text) => vec![Json::Map(Map::from_iter([("type", Json::from("text")), ("text", Json::Str(text))]))],
                    _ => vec![],
                };
                let mut all = last.get_mut("content").map(|before| parts(std::mem::replace(before, Json::Null))).unwrap_or_default();
                all.extend(parts(content));
                last.insert("content", all);
            }
        }
    }

    fn join_texts(&mut self, last: &mut Map) {
        if !self.texts.is_empty() {
            last.insert("content", std::mem::take(&mut self.texts).join("\n\n"));
        }
    }

    /// Writes the joined texts into the message that ends the turn.
    fn end(&mut self, last: Option<&mut Map>) {
        if let Some(last) = last {
            self.join_texts(last);
            if !self.thoughts.is_empty() {
                last.insert("reasoning_content", std::mem::take(&mut self.thoughts).join("\n"));
            }
        }
    }
}

/// _construct_input_messages: the texts of the system are one message, the first, where the
/// template has no place for others.
fn merge_system(messages: Vec<Map>) -> Vec<Map> {
    let (system, mut rest): (Vec<Map>, Vec<Map>) = messages.into_iter().partition(|message| message.text("role") == Some("system"));
    let mut texts: Vec<&str> = vec![];
    for message in &system {
        match message.get("content") {
            Some(Json::Str(text)) => texts.push(text),
            Some(Json::List(parts)) => texts.extend(parts.iter().filter_map(|part| part.as_map()?.text("text"))),
            _ => {}
        }
    }
    if !texts.is_empty() {
        rest.insert(0, message("system", texts.join("\n\n").into()));
    }
    rest
}
