//! /v1/messages: entrypoints/anthropic/protocol.py, and serving.py,
//! AnthropicServingMessages.to_chat_completion_request.
//! The request becomes a `ChatRequest`, which `chat::render` prints. A message of Anthropic's API
//! may become several of a chat: results of tools are messages of their own.

use super::chat::{reused_ids, text_of, tool_as_seen, ChatRequest};
use super::fields::{self, Field, Kind, INT};
use super::params::{check_salt, check_sampling};
use super::Truncation;
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::request::{wrong, Convention};
use crate::Failure;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Values of `output_config.effort`.
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];
const BILLING_HEADER: &str = "x-anthropic-billing-header";

const FIELDS: &[Field] = &[
    ("model", Kind::Str, false),
    ("messages", Kind::ListOf(&Kind::Map), false),
    ("max_tokens", Kind::Int(1, i128::MAX), false),
    ("metadata", Kind::Map, true),
    ("output_config", Kind::Map, true),
    ("thinking", Kind::Map, true),
    ("stop_sequences", Kind::ListOf(&Kind::Str), true),
    ("stream", Kind::Bool, true),
    ("temperature", Kind::Float, true),
    ("tool_choice", Kind::Map, true),
    ("tools", Kind::ListOf(&Kind::Map), true),
    ("top_k", INT, true),
    ("top_p", Kind::Float, true),
    ("mm_payload", Kind::OneOf(&["tensors", "none"]), false),
    ("cache_salt", Kind::Str, true),
    ("watermarking", Kind::Bool, true),
    ("kv_transfer_params", Kind::Map, true),
    ("ec_transfer_params", Kind::Map, true),
    ("vllm_xargs", Kind::Map, true),
    ("chat_template_kwargs", Kind::Map, true),
];

/// AnthropicContentBlock.
const BLOCK: &[Field] = &[
    (
        "type",
        Kind::OneOf(&[
            "text",
            "image",
            "tool_use",
            "tool_result",
            "tool_reference",
            "thinking",
            "redacted_thinking",
            "tool_addition",
            "tool_removal",
        ]),
        false,
    ),
    ("text", Kind::Str, true),
    ("source", Kind::Map, true),
    ("id", Kind::Str, true),
    ("tool_use_id", Kind::Str, true),
    ("name", Kind::Str, true),
    ("input", Kind::Map, true),
    ("is_error", Kind::Bool, true),
    ("tool_name", Kind::Str, true),
    ("thinking", Kind::Str, true),
    ("signature", Kind::Str, true),
    ("data", Kind::Str, true),
    ("tool", Kind::Map, true),
];

/// AnthropicTool.
const TOOL: &[Field] = &[
    ("name", Kind::Str, false),
    ("description", Kind::Str, true),
    ("input_schema", Kind::Map, false),
    ("strict", Kind::Bool, true),
    ("defer_loading", Kind::Bool, true),
];

/// The chat that the engine makes of the request. INVALID_ARGUMENT: the engine refuses it.
/// 1. Checks the fields.
/// 2. Reads all messages, then the tools: messages of the system may add and remove tools.
/// 3. Puts the system's texts in front, as one message. System messages within the conversation
///    join them where a template of the model wants the system's message first; else they stay in
///    place.
/// 4. Converts the other messages.
/// 5. Where thinking is disabled, the effort is the one that the template has for that
///    (`effort_without_thinking`).
pub fn to_chat(templates: &Templates, convention: &Convention, mut body: Map) -> Result<ChatRequest, Failure> {
    fields::check(&body, FIELDS)?;
    check_salt(&body)?;
    if body.text("model").is_none_or(str::is_empty) {
        return Err(wrong("model", "missing"));
    }
    let max_tokens = fields::int(&body, "max_tokens")?.ok_or_else(|| wrong("max_tokens", "missing"))?;
    if body
        .get("stop_sequences")
        .and_then(Json::as_list)
        .is_some_and(|texts| texts.len() > 4)
    {
        return Err(wrong("stop_sequences", "too many"));
    }
    check_sampling(&body, None)?;
    let is_without_thinking = thinking_of(&body, max_tokens)? == Some("disabled");
    let mut request = ChatRequest {
        reasoning_effort: effort_of(&body)?,
        truncation: Truncation {
            output: Some(max_tokens.min(i64::MAX.into()) as i64),
            ..Truncation::default()
        },
        prompt_token_ids: reused_ids(&mut body),
        ..ChatRequest::default()
    };
    check_tool_choice(&body)?;
    let mut system = body.remove("system").unwrap_or(Json::Null);
    let Some(Json::List(messages)) = body.remove("messages") else {
        return Err(wrong("messages", "missing"));
    };
    let mut read = vec![];
    for message in messages {
        read.push(message_of(message)?);
    }
    request.tools = tools_of(body.remove("tools"), &mut read)?;
    let merge = inline_system_is_merged(templates);
    let mut texts = system_texts(&mut system)?;
    if merge {
        for (role, content) in &read {
            if &**role == "system" {
                texts.extend(system_text(content));
            }
        }
    }
    if !texts.is_empty() {
        request.messages.push(message_map("system", Json::from(texts.concat())));
    }
    for (role, content) in read {
        match &*role {
            "system" if merge => {}
            "system" => request
                .messages
                .extend(system_text(&content).map(|text| message_map("system", Json::from(text)))),
            _ => convert(templates, &role, content, &mut request.messages)?,
        }
    }
    if let Some(Json::Map(kwargs)) = body.remove("chat_template_kwargs") {
        request.kwargs = kwargs;
    }
    if is_without_thinking {
        request.reasoning_effort = Some(Arc::from(effort_without_thinking(templates, convention)));
    }
    Ok(request)
}

/// A message with role and content alone.
fn message_map(role: &str, content: Json) -> Map {
    Map::from_iter([("role", Json::from(role)), ("content", content)])
}

/// AnthropicThinkingConfig.
/// Returns its type.
fn thinking_of(body: &Map, max_tokens: i128) -> Result<Option<&str>, Failure> {
    let bad = || wrong("thinking", "not one that the engine takes");
    let Some(Json::Map(thinking)) = body.some("thinking") else {
        return Ok(None);
    };
    let kind = thinking
        .text("type")
        .filter(|kind| matches!(*kind, "enabled" | "disabled" | "adaptive"))
        .ok_or_else(bad)?;
    if kind != "disabled" {
        fields::check(thinking, &[("display", Kind::OneOf(&["summarized", "omitted", "updates"]), true)])?;
    }
    if kind == "enabled" {
        let budget = fields::int(thinking, "budget_tokens")?
            .filter(|budget| *budget >= 1024)
            .ok_or_else(bad)?;
        let is_prefill = body
            .get("kv_transfer_params")
            .and_then(Json::as_map)
            .is_some_and(|params| super::is_true(params, "do_remote_decode"));
        if budget >= max_tokens && !is_prefill {
            return Err(wrong("thinking", "of a budget that max_tokens does not hold"));
        }
    }
    Ok(Some(kind))
}

/// AnthropicOutputConfig.
fn effort_of(body: &Map) -> Result<Option<Arc<str>>, Failure> {
    let Some(Json::Map(config)) = body.some("output_config") else {
        return Ok(None);
    };
    fields::check(config, &[("effort", Kind::OneOf(EFFORTS), true), ("format", Kind::Map, true)])?;
    if let Some(Json::Map(format)) = config.get("format") {
        fields::check(
            format,
            &[("schema", Kind::Map, true), ("type", Kind::OneOf(&["json_schema"]), false)],
        )?;
    }
    Ok(config.text("effort").map(Arc::from))
}

/// AnthropicToolChoice.
fn check_tool_choice(body: &Map) -> Result<(), Failure> {
    let Some(Json::Map(choice)) = body.some("tool_choice") else {
        return Ok(());
    };
    fields::check(
        choice,
        &[("name", Kind::Str, true), ("disable_parallel_tool_use", Kind::Bool, true)],
    )?;
    match choice.text("type") {
        Some("auto" | "any" | "none") => Ok(()),
        Some("tool") if choice.text("name").is_some_and(|name| !name.is_empty()) => Ok(()),
        _ => Err(wrong("tool_choice", "not one that the engine takes")),
    }
}

/// The content of a message: a text, or blocks that were checked.
enum Content {
    Text(Arc<str>),
    Blocks(Vec<Map>),
}

fn content_of(content: Option<Json>) -> Result<Content, Failure> {
    match content {
        Some(Json::Str(text)) => Ok(Content::Text(text)),
        Some(Json::List(blocks)) => {
            let mut read = vec![];
            for block in blocks {
                let Json::Map(block) = block else {
                    return Err(wrong("content", "not a list of blocks"));
                };
                check_block(&block)?;
                read.push(block);
            }
            Ok(Content::Blocks(read))
        }
        _ => Err(wrong("content", "neither text nor blocks")),
    }
}

/// AnthropicContentBlock, with the contents of results, and the tool that a change of tools names:
/// an addition names or defines one, a removal names one.
fn check_block(block: &Map) -> Result<(), Failure> {
    fields::check(block, BLOCK)?;
    let kind = block.text("type").ok_or_else(|| wrong("type", "missing in a block"))?;
    match block.get("content") {
        None | Some(Json::Null | Json::Str(_)) => {}
        Some(Json::List(items)) if items.iter().all(|item| item.as_map().is_some()) => {}
        Some(_) => return Err(wrong("content", "not what a block holds")),
    }
    let bad = || wrong("tool", &format!("not what a block of {kind} names"));
    // How the block names its tool: by reference or by a definition.
    let changed = match block.get("tool").and_then(Json::as_map) {
        None => None,
        Some(tool) => match tool.text("type") {
            Some("tool_reference") => Some(("tool_reference", tool.text("name").map(drop).ok_or_else(bad)?)),
            Some("tool_definition") => Some((
                "tool_definition",
                check_tool(tool.get("definition").and_then(Json::as_map).ok_or_else(bad)?)?,
            )),
            _ => return Err(bad()),
        },
    };
    match (kind, changed) {
        ("tool_addition", None) | ("tool_removal", None | Some(("tool_definition", ()))) => Err(bad()),
        _ => Ok(()),
    }
}

fn is_tool_change(block: &Map) -> bool {
    matches!(block.text("type"), Some("tool_addition" | "tool_removal"))
}

/// Role and content of a message. Only the system may change tools.
fn message_of(message: Json) -> Result<(Arc<str>, Content), Failure> {
    let Json::Map(mut message) = message else {
        return Err(wrong("messages", "not a list of objects"));
    };
    let Some(Json::Str(role)) = message.remove("role") else {
        return Err(wrong("role", "missing in a message"));
    };
    if !matches!(&*role, "user" | "assistant" | "system") {
        return Err(wrong("role", "not one that the engine takes"));
    }
    let content = content_of(message.remove("content"))?;
    match &content {
        Content::Blocks(blocks) if &*role != "system" && blocks.iter().any(is_tool_change) => {
            Err(wrong("content", "with a change of tools, which only the system makes"))
        }
        _ => Ok((role, content)),
    }
}

/// The texts of `system`.
fn system_texts(system: &mut Json) -> Result<Vec<Arc<str>>, Failure> {
    match std::mem::replace(system, Json::Null) {
        Json::Null => Ok(vec![]),
        Json::Str(text) => Ok(Some(text).filter(|text| !text.is_empty()).into_iter().collect()),
        system => match content_of(Some(system))? {
            Content::Blocks(blocks) if blocks.iter().any(is_tool_change) => Err(wrong("system", "with a change of tools")),
            Content::Blocks(blocks) => Ok(blocks.iter().filter_map(block_text).map(Arc::from).collect()),
            Content::Text(text) => Ok(vec![text]),
        },
    }
}

/// The text of a block, unless it is the header that Claude Code puts before its prompt.
fn block_text(block: &Map) -> Option<&str> {
    let text = block
        .text("text")
        .filter(|text| block.text("type") == Some("text") && !text.is_empty())?;
    Some(text).filter(|text| !text.starts_with(BILLING_HEADER))
}

/// _extract_system_text.
fn system_text(content: &Content) -> Option<Arc<str>> {
    let text = match content {
        Content::Text(text) if text.starts_with(BILLING_HEADER) => return None,
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => Arc::from(blocks.iter().filter_map(block_text).collect::<String>()),
    };
    Some(text).filter(|text| !text.is_empty())
}

/// _convert_messages, _convert_message_content and _convert_block.
/// Appends the messages that one becomes. Results of tools are appended at once, so they stand in
/// front of the text beside them. A message of a user with nothing else is left out.
fn convert(templates: &Templates, role: &str, content: Content, out: &mut Vec<Map>) -> Result<(), Failure> {
    let blocks = match content {
        Content::Text(text) => {
            out.push(message_map(role, Json::Str(text)));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let (mut texts, mut calls, mut reasoning) = (vec![], vec![], None::<String>);
    for mut block in blocks {
        let kind = block.text("type").unwrap_or_default().to_owned();
        match &*kind {
            "text" => texts.extend(block.remove("text").filter(Json::is_true)),
            "image" if super::is_true(&block, "source") => return Err(Failure::unknown_here("a block of type image")),
            "thinking" => {
                if let Some(text) = block.text("thinking") {
                    reasoning.get_or_insert_default().push_str(text);
                }
            }
            "tool_use" => calls.push(call_of(templates, block)?),
            "tool_result" if role == "user" => push_result(block, out)?,
            "tool_result" => match block.get("content") {
                None | Some(Json::Null) => texts.push(Json::from("Tool result: ")),
                Some(Json::Str(text)) => texts.push(Json::from(format!("Tool result: {text}"))),
                Some(Json::List(items)) if items.is_empty() => texts.push(Json::from("Tool result: ")),
                // Python's str() of the blocks.
                Some(blocks) => texts.push(Json::from(format!("Tool result: {}", crate::python::text(&blocks.clone().into_value())))),
            },
            _ => {}
        }
    }
    let mut message = Map::from_iter([("role", role)]);
    if let Some(reasoning) = reasoning {
        message.insert("reasoning", reasoning);
    }
    if !calls.is_empty() {
        message.insert("tool_calls", calls);
    }
    match texts.len() {
        0 if role == "user" => return Ok(()),
        0 => {}
        1 => message.insert("content", texts.pop()),
        _ => {
            let part = |text| Json::Map(Map::from_iter([("type", Json::from("text")), ("text", text)]));
            message.insert("content", texts.into_iter().map(part).collect::<Vec<_>>());
        }
    }
    out.push(message);
    Ok(())
}

/// A call of a tool. Its arguments stay an object.
fn call_of(templates: &Templates, mut block: Map) -> Result<Json, Failure> {
    let id = match block.remove("id") {
        Some(Json::Str(id)) if !id.is_empty() => id,
        // The engine makes an id of the time, which no tokenizer can guess; it matters only to a
        // template that prints ids.
        _ if templates.mention("id") => return Err(Failure::unknown_here("a tool_use without an id, which the template may print")),
        _ => Arc::from("call"),
    };
    let name = block
        .remove("name")
        .filter(|name| !name.is_null())
        .unwrap_or_else(|| Json::from(""));
    let input = block
        .remove("input")
        .filter(|input| !input.is_null())
        .unwrap_or_else(|| Json::Map(Map::new()));
    let function = Map::from_iter([("arguments", input), ("name", name)]);
    Ok(Json::Map(Map::from_iter([
        ("id", Json::Str(id)),
        ("function", Json::Map(function)),
        ("type", Json::from("function")),
    ])))
}

/// _convert_user_tool_result.
/// The texts of a result are one message, references to tools a second one.
fn push_result(mut block: Map, out: &mut Vec<Map>) -> Result<(), Failure> {
    let id = block
        .remove("tool_use_id")
        .filter(|id| !id.is_null())
        .unwrap_or_else(|| Json::from(""));
    let mut references = vec![];
    let text = match block.remove("content") {
        Some(Json::Str(text)) => text,
        Some(Json::List(items)) => {
            let mut texts: Vec<Arc<str>> = vec![];
            for item in items.iter().filter_map(Json::as_map) {
                match item.text("type") {
                    Some("text") => match item.get("text") {
                        None => texts.push(Arc::from("")),
                        Some(Json::Str(text)) => texts.push(text.clone()),
                        Some(_) => return Err(wrong("text", "no text in a tool result")),
                    },
                    Some("image") => return Err(Failure::unknown_here("a tool result of type image")),
                    Some("tool_reference") => {
                        let name = ["tool_name", "name"]
                            .iter()
                            .find_map(|name| item.get(name).filter(|name| name.is_true()));
                        if let Some(name) = name {
                            let reference = [("type", Json::from("tool_reference")), ("name", name.clone())];
                            references.push(Json::Map(Map::from_iter(reference)));
                        }
                    }
                    _ => {}
                }
            }
            Arc::from(texts.join("\n"))
        }
        _ => Arc::from(""),
    };
    let result = |content| Map::from_iter([("role", Json::from("tool")), ("tool_call_id", id.clone()), ("content", content)]);
    out.push(result(Json::Str(text)));
    if !references.is_empty() {
        out.push(result(Json::List(references)));
    }
    Ok(())
}

/// INVALID_ARGUMENT: no AnthropicTool.
fn check_tool(tool: &Map) -> Result<(), Failure> {
    fields::check(tool, TOOL)?;
    match tool.contains("name") && tool.contains("input_schema") {
        true => Ok(()),
        false => Err(wrong("tools", "not a list of tools with a name and an input_schema")),
    }
}

/// The tools in effect at the end of the conversation, as the template gets them. _resolve_tools
/// and _convert_tools.
/// Without changes: the tools as they were given. With changes, in the order of the conversation: a
/// definition puts a tool in or replaces it, a removal hides it, an addition shows it again, and a
/// tool that was deferred is deferred no more. The order is that of first appearance. None: the
/// request has neither tools nor changes.
fn tools_of(tools: Option<Json>, messages: &mut [(Arc<str>, Content)]) -> Result<Option<Vec<Json>>, Failure> {
    let mut given = vec![];
    let is_given = matches!(tools, Some(Json::List(_)));
    if let Some(Json::List(tools)) = tools {
        for tool in tools {
            let Json::Map(tool) = tool else {
                return Err(wrong("tools", "not a list of objects"));
            };
            check_tool(&tool)?;
            given.push(tool);
        }
    }
    let mut changes = vec![];
    for (_, content) in messages {
        if let Content::Blocks(blocks) = content {
            changes.extend(blocks.iter_mut().filter(|block| is_tool_change(block)));
        }
    }
    if changes.is_empty() {
        return match is_given {
            true => given.into_iter().map(tool_of).collect::<Result<_, _>>().map(Some),
            false => Ok(None),
        };
    }
    let mut tools = Tools::default();
    for tool in given {
        tools.put(tool);
    }
    let mut removed: HashSet<Arc<str>> = HashSet::new();
    for block in changes {
        let is_addition = block.text("type") == Some("tool_addition");
        let Some(Json::Map(mut change)) = block.remove("tool") else {
            continue;
        };
        let name = match change.remove("definition") {
            Some(Json::Map(definition)) if change.text("type") == Some("tool_definition") => tools.put(definition),
            _ => {
                let name: Arc<str> = Arc::from(change.text("name").unwrap_or_default());
                let tool = tools.get_mut(&name).ok_or_else(|| wrong("tool", "none of the declared ones"))?;
                if is_addition {
                    tool.remove("defer_loading");
                }
                name
            }
        };
        match is_addition {
            true => removed.remove(&name),
            false => removed.insert(name),
        };
    }
    let left = tools.in_order.into_iter().filter(|(name, _)| !removed.contains(name));
    left.map(|(_, tool)| tool_of(tool)).collect::<Result<_, _>>().map(Some)
}

/// Tools by name, in the order of their first appearance.
#[derive(Default)]
struct Tools {
    in_order: Vec<(Arc<str>, Map)>,
    places: HashMap<Arc<str>, usize>,
}

impl Tools {
    /// Returns the tool's name.
    fn put(&mut self, tool: Map) -> Arc<str> {
        let name: Arc<str> = Arc::from(tool.text("name").unwrap_or_default());
        match self.get_mut(&name) {
            Some(place) => *place = tool,
            None => {
                self.places.insert(name.clone(), self.in_order.len());
                self.in_order.push((name.clone(), tool));
            }
        }
        name
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Map> {
        self.in_order.get_mut(*self.places.get(name)?).map(|(_, tool)| tool)
    }
}

/// AnthropicTool.validate_input_schema, and the tool of a chat.
fn tool_of(mut tool: Map) -> Result<Json, Failure> {
    let mut schema = match tool.remove("input_schema") {
        Some(Json::Map(schema)) => schema,
        _ => return Err(wrong("input_schema", "missing")),
    };
    if !schema.contains("type") {
        schema.insert("type", "object");
    }
    let mut function = Map::new();
    for name in ["name", "description", "strict", "defer_loading"] {
        function.insert(name, tool.remove(name));
    }
    function.insert("parameters", schema);
    tool_as_seen(Json::Map(Map::from_iter([("function", function)])))
}

/// _should_merge_inline_system: of the templates for chats with and without tools, one wants the
/// system's message first.
fn inline_system_is_merged(templates: &Templates) -> bool {
    [false, true]
        .iter()
        .any(|has_tools| templates.choose(*has_tools).map_or(true, |template| template.system_is_first()))
}

/// DisabledThinkingEffortResolver._probe: "low" where the template refuses "none", or prints
/// another effort's prompt for it.
fn effort_without_thinking(templates: &Templates, convention: &Convention) -> &'static str {
    // openai_harmony knows no effort "none".
    if convention.model_type == "gpt_oss" {
        return "low";
    }
    let prompt = |effort: &str| {
        let request = ChatRequest {
            messages: vec![message_map("user", Json::from("Hi"))],
            reasoning_effort: Some(Arc::from(effort)),
            ..ChatRequest::default()
        };
        text_of(templates, convention, request).ok()
    };
    match prompt("none") {
        None => "low",
        // Another effort prints the same: the template has no form of its own for "none".
        none if EFFORTS.iter().any(|effort| prompt(effort) == none) => "low",
        _ => "none",
    }
}
