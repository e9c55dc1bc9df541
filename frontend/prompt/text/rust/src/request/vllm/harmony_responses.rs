//! /v1/responses of gpt-oss: renderers/online_renderer.py,
//! OnlineRenderer._render_responses_with_harmony;
//! entrypoints/openai/responses/harmony.py, response_input_to_harmony.

use super::harmony_chat::{contents, flat, preamble};
use super::items::Item;
use super::responses::{Input, Responses};
use crate::json::{Json, Map};
use crate::request::harmony::{self, Content, Function, Message, Package, Role};
use crate::request::{wrong, Convention, Reading};
use crate::Failure;
use std::collections::HashMap;

/// Harmony's prompt of a response.
///
/// 1. Refuses what the engine refuses for gpt-oss.
/// 2. Instructions: those of the request, else a leading message of the system.
/// 3. Preamble as for chats, then the input, item by item.
pub fn read(convention: &Convention, request: Responses) -> Result<Reading, Failure> {
    if request.includes_logprobs {
        return Err(wrong("include", "logprobs, which the engine does not give for gpt-oss"));
    }
    if request.has_previous_messages {
        return Err(Failure::unknown_here("previous_input_messages are not read"));
    }
    let truncate = request.truncation.resolve(convention, false)?;
    let functions = functions(request.tools)?;
    // The grammar of the answer, which every request to gpt-oss has, needs the one function that is
    // named.
    if request.named.is_some_and(|name| functions.iter().filter(|function| function.name == name).count() != 1) {
        return Err(wrong("tool_choice", "not one function"));
    }
    let mut instructions = request.instructions;
    let mut items = match request.input {
        Input::Text(text) => {
            let mut messages = preamble(instructions, functions, request.effort.as_deref())?;
            messages.push(Message::text(Role::User, text));
            return Ok(Reading { truncate, ..harmony::render(Package::Vllm, convention, messages)? });
        }
        Input::Items(items) => items.into_iter().peekable(),
    };
    // extract_instructions_from_messages of harmony_utils.py.
    if let (None, Some(Item::Message { message, .. })) = (&instructions, items.peek()) {
        if is_system(message) {
            instructions = flat(message.get("content"));
            items.next();
        }
    }
    let mut messages = preamble(instructions, functions, request.effort.as_deref())?;
    let mut names = HashMap::new();
    for item in items {
        messages.extend(convert(item, &mut names)?);
    }
    Ok(Reading { truncate, ..harmony::render(Package::Vllm, convention, messages)? })
}

/// get_developer_message of harmony_utils.py. Tools of the engine's own stand in the prompt where
/// it has them.
fn functions(tools: Vec<Map>) -> Result<Vec<Function>, Failure> {
    let mut functions = vec![];
    let mut other = None;
    let mut is_mcp = false;
    for mut tool in tools {
        match tool.text("type").unwrap_or_default() {
            "function" => functions.push(Function {
                name: tool.text("name").unwrap_or_default().to_owned(),
                description: tool.text("description").unwrap_or_default().to_owned(),
                parameters: tool.remove("parameters").filter(|parameters| !parameters.is_null()),
            }),
            "web_search_preview" | "code_interpreter" => {
                return Err(Failure::unknown_here("which tools of its own the engine has is not known"));
            }
            // Without effect where it is alone and its label is none of
            // VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS.
            "mcp" if matches!(tool.text("server_label"), Some("container" | "code_interpreter" | "web_search_preview")) => {
                return Err(Failure::unknown_here("which tools of its own the engine has is not known"));
            }
            "mcp" => is_mcp = true,
            kind => other = Some(format!("not of type {kind} for gpt-oss")),
        }
    }
    match other {
        Some(why) => Err(wrong("tools", &why)),
        None if is_mcp && !functions.is_empty() => Err(wrong("tools", "not of type mcp for gpt-oss")),
        None => Ok(functions),
    }
}

fn is_system(message: &Map) -> bool {
    matches!(message.text("role"), Some("system" | "developer"))
}

/// `names`: functions by the id of their call so far. None: the item says nothing.
fn convert(item: Item, names: &mut HashMap<String, String>) -> Result<Option<Message>, Failure> {
    Ok(Some(match item {
        Item::Message { message, .. } if message.get("type").is_some_and(|kind| kind.as_str() != Some("message")) => {
            return Err(wrong("input", "a list with an item of no type"));
        }
        Item::Message { message, .. } if is_system(&message) => match flat(message.get("content")).filter(|text| !text.is_empty()) {
            Some(text) => Message::developer(Some(text), vec![]),
            None => return Ok(None),
        },
        Item::Message { message, .. } => {
            let role = message.text("role").unwrap_or_default();
            let content = message.some("content").ok_or_else(|| wrong("content", "neither a text nor a list of parts"))?;
            let message = Message::new(Role::of(role)?, contents(Some(content))?);
            if message.role == Role::Assistant { message.on("final") } else { message }
        }
        Item::Said { texts, .. } => {
            let contents = texts.into_iter().map(|text| Content::Text(text.unwrap_or_default())).collect();
            Message::new(Role::Assistant, contents).on("final")
        }
        Item::Reasoning { content, .. } if content.is_empty() => return Ok(None),
        Item::Reasoning { content, .. } => Message::text(Role::Assistant, content.join("\n")).on("analysis"),
        Item::Call { id, name, arguments, .. } => {
            let message = Message::call(&name, arguments);
            names.insert(id, name);
            message
        }
        Item::Output { id: Some(id), output: Json::Str(text), is_custom: false } => {
            let name = names.get(&id).ok_or_else(|| Failure::invalid(format!("there is no call {id:?}")))?;
            Message::result(name, &*text).on("commentary").to("assistant")
        }
        Item::Output { .. } | Item::CustomCall { .. } => return Err(wrong("input", "a list with an item that gpt-oss has no place for")),
    }))
}
