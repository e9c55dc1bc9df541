//! A request for `apply_chat_template` alone: messages, tools and variables as they are.
//! For models that no engine is known of, and for comparison with transformers.

use super::{transformers, wrong, Chat, Convention, Path, Reading};
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::Failure;
use std::sync::Arc;

/// Fields of the body that are variables of the template.
const TEMPLATE_FIELDS: [&str; 2] = ["documents", "reasoning_effort"];
/// Names that clients give the reasoning of a message; the first one that has a value counts.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Completions have special tokens around them, chats what their template prints, unless the
/// request says otherwise. Other paths depend on an engine.
pub fn read(templates: &Templates, convention: &Convention, path: Path, mut body: Map) -> Result<Reading, Failure> {
    match path {
        Path::Chat => {
            let around = flag(&body, "add_special_tokens", false)?;
            Ok(Reading::text(transformers::render(templates, convention, chat(&mut body)?)?, around))
        }
        Path::Completions => match body.text("prompt") {
            Some(text) => Ok(Reading::text(text, flag(&body, "add_special_tokens", true)?)),
            None => Err(wrong("prompt", "not a text")),
        },
        _ => Err(Failure::unknown_here("which engine reads the request is not known")),
    }
}

/// The request's fields win over the defaults; `chat_template_kwargs` over fields of the same name.
fn chat(body: &mut Map) -> Result<Chat, Failure> {
    let mut chat = Chat {
        add_generation_prompt: flag(body, "add_generation_prompt", true)?,
        continue_final_message: flag(body, "continue_final_message", false)?,
        chat_template: body.text("chat_template").map(str::to_owned),
        ..Chat::default()
    };
    let Some(Json::List(messages)) = body.remove("messages") else {
        return Err(wrong("messages", "not an array of messages"));
    };
    for message in messages {
        let Json::Map(message) = message else {
            return Err(wrong("messages", "not an array of messages"));
        };
        chat.messages.push(as_seen(message));
    }
    match body.remove("tools") {
        None | Some(Json::Null) => {}
        Some(Json::List(tools)) => chat.tools = Some(tools),
        Some(_) => return Err(wrong("tools", "not an array")),
    }
    for name in TEMPLATE_FIELDS {
        if let Some(value) = body.some(name) {
            chat.kwargs.insert(name, value.clone());
        }
    }
    match body.some("chat_template_kwargs") {
        None => {}
        Some(Json::Map(kwargs)) => chat.kwargs.update(kwargs),
        Some(_) => return Err(wrong("chat_template_kwargs", "not an object")),
    }
    Ok(chat)
}

/// Leaves keys without a value out, and gives the reasoning under all of the names that templates
/// know. "thinking" is put first and then set again: a message that has it itself keeps its place.
fn as_seen(mut message: Map) -> Map {
    let reasoning = REASONING.iter().find_map(|name| message.some(name)).cloned();
    message.retain(|_, value| !value.is_null());
    let Some(reasoning) = reasoning else {
        return message;
    };
    let first = [(Arc::from("thinking"), reasoning.clone())];
    let last = [(Arc::from("thinking"), reasoning.clone()), (Arc::from("reasoning_content"), reasoning)];
    first.into_iter().chain(message).chain(last).collect()
}

/// A flag that may be null; any other value than true or false is refused.
fn flag(body: &Map, name: &str, default: bool) -> Result<bool, Failure> {
    match body.some(name) {
        None => Ok(default),
        Some(Json::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong(name, "neither true nor false")),
    }
}
