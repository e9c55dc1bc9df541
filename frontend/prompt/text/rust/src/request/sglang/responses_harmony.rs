//! /v1/responses of gpt-oss in SGLang 0.5.23: srt/entrypoints/harmony_utils.py, and
//! _make_request_with_harmony and _construct_input_messages_with_harmony of
//! srt/entrypoints/openai/serving_responses.py.

use super::responses::{custom_input, flat_output, no_state, orjson, Choice, Responses};
use crate::json::{Json, Map};
use crate::request::harmony::{self, Content, Function, Message, Package, Role};
use crate::request::{wrong, Convention, Reading};
use crate::Failure;
use std::collections::HashMap;

/// The prompt of gpt-oss: the system's message, the developer's, and one for each item of the
/// input. The developer's message is always there, also without instructions and functions.
pub fn read(convention: &Convention, request: Responses) -> Result<Reading, Failure> {
    if request.choice != Choice::Auto {
        return Err(wrong("tool_choice", "not auto, which is all that the engine takes for gpt-oss"));
    }
    let effort = match request.effort.as_ref().and_then(Json::as_str) {
        Some("low" | "minimal") => "low",
        Some("high" | "xhigh" | "max") => "high",
        _ => "medium",
    };
    let mut messages = vec![Message::new(Role::System, vec![Content::System { effort }])];
    let functions = request.tools.into_iter().filter_map(|tool| function(tool).transpose()).collect::<Result<_, _>>()?;
    let instructions = request.instructions.and_then(|text| text.as_str().map(str::to_owned));
    messages.push(Message::developer(instructions, functions));
    match request.input {
        Json::List(items) => {
            let mut names = HashMap::new();
            for item in items.into_iter() {
                if let Json::Map(item) = item {
                    messages.push(convert(item, &mut names)?);
                }
            }
        }
        text => messages.push(Message::text(Role::User, text.as_str().unwrap_or_default())),
    }
    harmony::render(Package::Openai, convention, messages)
}

/// get_developer_message. None: a tool that the prompt does not show.
fn function(mut tool: Map) -> Result<Option<Function>, Failure> {
    match tool.text("type") {
        Some("function") => {}
        Some("web_search" | "web_search_preview" | "code_interpreter") => {
            return Err(Failure::unknown_here("which tools of its own the engine has is not known"));
        }
        _ => return Ok(None),
    }
    let (Some(name), Some(description)) = (tool.text("name"), tool.text("description")) else {
        return Err(wrong("tools", "functions, of which one has no description"));
    };
    Ok(Some(Function {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: tool.remove("parameters").filter(|parameters| !parameters.is_null()),
    }))
}

/// parse_response_input. `names`: functions by the id of their call so far.
fn convert(mut item: Map, names: &mut HashMap<String, String>) -> Result<Message, Failure> {
    let text = |item: &Map, name: &str| match item.get(name) {
        Some(Json::Str(text)) => Ok(text.to_string()),
        Some(_) => Err(Failure::unknown_here(format!("{name} of an item is no text"))),
        None => Err(Failure::invalid(format!("an item of the input has no {name}"))),
    };
    let kind = match item.get("type") {
        None => "message",
        Some(kind) => kind.as_str().ok_or_else(|| wrong("input", "a list with an item of no type"))?,
    };
    match kind {
        "message" => said(&item),
        "function_call_output" | "custom_tool_call_output" => {
            let id = text(&item, "call_id")?;
            let name = names.get(&id).ok_or_else(|| Failure::invalid(format!("there is no call {id:?}")))?;
            match flat_output(item.remove("output"))? {
                Json::Str(output) => Ok(Message::result(name, &*output)),
                _ => Err(wrong("output", "neither a text nor a list of parts")),
            }
        }
        "reasoning" => Ok(Message::text(Role::Assistant, reasoning_of(&item)?).on("analysis")),
        "function_call" | "custom_tool_call" => {
            let name = text(&item, "name")?;
            let arguments = match item.get("arguments").filter(|arguments| arguments.is_true()) {
                // The input of a custom tool is wrapped in an object, whatever `arguments` says.
                _ if kind == "custom_tool_call" => custom_input(&item),
                None => "{}".to_owned(),
                Some(Json::Str(text)) => text.to_string(),
                Some(value @ Json::Map(_)) => orjson(value)?,
                Some(_) => return Err(wrong("arguments", "neither a text nor an object")),
            };
            if let Some(id) = item.text("call_id") {
                names.insert(id.to_owned(), name.clone());
            }
            Ok(Message::call(&name, arguments))
        }
        kind => Err(Failure::invalid(format!("input items of type {kind:?} are not taken"))),
    }
}

/// A message item. Parts of other kinds than text are left out; phases of the assistant are
/// channels.
fn said(item: &Map) -> Result<Message, Failure> {
    let name = item.text("role").ok_or_else(|| wrong("role", "no text"))?;
    // A message of the system becomes the developer's.
    let (role, before) = match name {
        "system" => (Role::Developer, "Instructions:\n"),
        name => (Role::of(name)?, ""),
    };
    let contents = match item.get("content") {
        Some(Json::Str(text)) => vec![Content::Text(format!("{before}{text}"))],
        Some(Json::List(parts)) => {
            let mut contents = vec![];
            for part in parts {
                let part = part.as_map().ok_or_else(|| wrong("content", "a list of something else than parts"))?;
                if !matches!(part.text("type"), Some("text" | "input_text" | "output_text")) {
                    continue;
                }
                let text = match part.get("text") {
                    None => "",
                    Some(text) => text.as_str().ok_or_else(|| wrong("content", "a list with a text that is none"))?,
                };
                contents.push(Content::Text(format!("{}{text}", if contents.is_empty() { before } else { "" })));
            }
            contents
        }
        _ => return Err(wrong("content", "neither a text nor a list of parts")),
    };
    let message = Message::new(role, contents);
    Ok(match item.some("phase") {
        Some(phase) if name == "assistant" => message.on(if phase.as_str() == Some("final_answer") { "final" } else { "commentary" }),
        _ => message,
    })
}

/// The texts of the summary, else those of the content; empty: there are none.
fn reasoning_of(item: &Map) -> Result<String, Failure> {
    for field in ["summary", "content"] {
        let parts = match item.get(field).filter(|parts| parts.is_true()) {
            Some(Json::List(parts)) => parts.as_slice(),
            None | Some(Json::Str(_) | Json::Map(_)) => &[],
            Some(_) => return Err(wrong(field, "no list")),
        };
        let mut texts = vec![];
        for part in parts.iter().filter_map(Json::as_map) {
            match part.get("text") {
                None => texts.push(""),
                Some(text) => texts.push(text.as_str().ok_or_else(|| wrong(field, "a list with a text that is none"))?),
            }
        }
        let text = texts.join("\n");
        if !text.is_empty() {
            return Ok(text);
        }
    }
    no_state(item)?;
    Ok(String::new())
}
