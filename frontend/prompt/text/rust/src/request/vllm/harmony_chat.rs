//! Chats of gpt-oss: no template, openai_harmony. renderers/online_renderer.py,
//! OnlineRenderer._make_request_with_harmony;
//! entrypoints/openai/parser/harmony_utils.py.

use crate::json::{Json, Map};
use crate::python::JsonStyle;
use crate::request::harmony::{self, Content, Function, Message, Package, Role};
use crate::request::{wrong, Convention, Reading};
use crate::Failure;
use std::collections::HashMap;

/// The prompt of a chat. `messages` and `tools` as pydantic hands them on.
/// 1. Takes a leading message of the system or a developer off as the instructions (`peel`).
/// 2. Notes the function of each call id, since results name only the id.
/// 3. Preamble: the system's message, and a developer's with instructions and functions.
/// 4. Converts the rest, and renders.
pub fn read_chat(convention: &Convention, messages: Vec<Map>, tools: Option<Vec<Json>>, effort: Option<&str>) -> Result<Reading, Failure> {
    let functions = tools.unwrap_or_default().into_iter().map(function).collect::<Result<Vec<_>, _>>()?;
    let mut names: HashMap<String, Option<String>> = HashMap::new();
    let (instructions, rest) = peel(&messages);
    // parse_chat_inputs_to_harmony_messages walks the calls of every message, and null is no list;
    // an assistant's null does not get there.
    let is_null = |message: &Map| message.get("tool_calls").is_some_and(Json::is_null);
    if rest.iter().any(|message| message.text("role") != Some("assistant") && is_null(message)) {
        return Err(wrong("tool_calls", "null in a message that is not the assistant's"));
    }
    for call in rest.iter().filter_map(|message| message.get("tool_calls")?.as_list()).flatten().filter_map(Json::as_map) {
        let name = call.get("function").and_then(Json::as_map).and_then(|function| function.text("name"));
        names.insert(call.text("id").unwrap_or_default().to_owned(), name.map(str::to_owned));
    }
    let mut out = preamble(instructions, functions, effort)?;
    for message in rest {
        convert(message, &names, &mut out)?;
    }
    harmony::render(Package::Vllm, convention, out)
}

/// A leading message of the system or a developer is the instructions. harmony_utils.py,
/// extract_instructions_from_messages.
pub fn peel(messages: &[Map]) -> (Option<String>, &[Map]) {
    match messages.split_first() {
        Some((first, rest)) if matches!(first.text("role"), Some("system" | "developer")) => (flat(first.get("content")), rest),
        _ => (None, messages),
    }
}

/// harmony_utils.py, build_harmony_preamble, get_system_message.
/// The developer's message is left out where it would be empty.
pub fn preamble(instructions: Option<String>, functions: Vec<Function>, effort: Option<&str>) -> Result<Vec<Message>, Failure> {
    let effort = match effort {
        None | Some("medium") => "medium",
        Some("low") => "low",
        Some("high") => "high",
        Some(_) => return Err(wrong("the reasoning effort", "none of low, medium, high, which gpt-oss has")),
    };
    let mut out = vec![Message::new(Role::System, vec![Content::System { effort }])];
    if instructions.as_ref().is_some_and(|text| !text.is_empty()) || !functions.is_empty() {
        out.push(Message::developer(instructions, functions));
    }
    Ok(out)
}

/// The text of a content: texts of its parts with nothing between. harmony_utils.py,
/// flatten_input_text_content.
pub fn flat(content: Option<&Json>) -> Option<String> {
    match content? {
        Json::Str(text) => Some(text.to_string()),
        Json::List(parts) => {
            let mut texts = parts.iter().filter_map(|part| match part {
                Json::Map(part) => part.text("text"),
                part => part.as_str(),
            });
            let first = texts.next()?.to_owned();
            Some(texts.fold(first, |all, text| all + text))
        }
        _ => None,
    }
}

/// Parts one by one: those that are no text are empty. Of a message that is not the system's.
pub fn contents(content: Option<&Json>) -> Result<Vec<Content>, Failure> {
    match content {
        None | Some(Json::Null) => Ok(vec![Content::Text(String::new())]),
        Some(Json::Str(text)) => Ok(vec![Content::Text(text.to_string())]),
        Some(Json::List(parts)) => {
            let text = |part: &Json| match part.as_map().map(|part| part.get("text")) {
                Some(None) => Ok(Content::Text(String::new())),
                Some(Some(Json::Str(text))) => Ok(Content::Text(text.to_string())),
                _ => Err(wrong("content", "a list of something else than parts with texts")),
            };
            parts.iter().map(text).collect()
        }
        Some(_) => Err(wrong("content", "neither a text nor a list of parts")),
    }
}

/// A function as ChatCompletionToolsParam writes it. harmony_utils.py, create_tool_definition.
fn function(tool: Json) -> Result<Function, Failure> {
    let bad = || wrong("tools", "not a list of functions");
    let Json::Map(mut tool) = tool else { return Err(bad()) };
    let Some(Json::Map(mut function)) = tool.remove("function") else { return Err(bad()) };
    Ok(Function {
        name: function.text("name").ok_or_else(bad)?.to_owned(),
        description: function.text("description").unwrap_or_default().to_owned(),
        parameters: function.remove("parameters").filter(|parameters| !parameters.is_null()),
    })
}

/// harmony_utils.py, parse_chat_input_to_harmony_message.
/// Appends what one message becomes: an assistant's with calls is its text, its reasoning, and a
/// message for each call.
fn convert(message: &Map, names: &HashMap<String, Option<String>>, out: &mut Vec<Message>) -> Result<(), Failure> {
    let role = message.text("role").unwrap_or_default();
    let reasoning = message.text("reasoning").filter(|text| !text.is_empty());
    let calls = message.get("tool_calls").and_then(Json::as_list).unwrap_or_default();
    if role == "assistant" && !calls.is_empty() {
        if let Some(text) = flat(message.get("content")).filter(|text| !text.is_empty()) {
            out.push(Message::text(Role::Assistant, text).on("commentary"));
        }
        if let Some(reasoning) = reasoning {
            out.push(Message::text(Role::Assistant, reasoning).on("analysis"));
        }
        for call in calls {
            let function = call.as_map().and_then(|call| call.get("function")).and_then(Json::as_map);
            let name = function.and_then(|function| function.text("name")).unwrap_or_default();
            let arguments = match function.and_then(|function| function.get("arguments")) {
                Some(Json::Str(text)) => text.to_string(),
                // Only /v1/messages brings objects, which it writes so
                // (entrypoints/anthropic/serving.py, json.dumps of a tool use's input).
                Some(input @ Json::Map(_)) => input.dump(&JsonStyle { ensure_ascii: true, ..JsonStyle::default() }),
                _ => String::new(),
            };
            out.push(Message::call(name, arguments));
        }
        return Ok(());
    }
    match role {
        "tool" => {
            let name = match names.get(message.text("tool_call_id").unwrap_or_default()) {
                // The id is of no call, or of a call without a name (Python prints None).
                None => "",
                Some(None) => "None",
                Some(Some(name)) => name,
            };
            out.push(Message::result(name, flat(message.get("content")).unwrap_or_default()).on("commentary").to("assistant"));
        }
        "system" | "developer" => {
            if let Some(text) = flat(message.get("content")) {
                out.push(Message::developer(Some(text), vec![]));
            }
        }
        "assistant" => {
            if let Some(reasoning) = reasoning {
                out.push(Message::text(Role::Assistant, reasoning).on("analysis"));
            }
            let contents = contents(message.get("content"))?;
            if contents.first().is_some_and(|first| *first != Content::Text(String::new())) {
                out.push(Message::new(Role::Assistant, contents).on("final"));
            }
        }
        role => out.push(Message::new(Role::of(role)?, contents(message.get("content"))?)),
    }
    Ok(())
}
