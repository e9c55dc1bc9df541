//! A message of a chat: what pydantic takes for one, and what becomes of it before a template sees
//! it.
//!
//! renderers/chat_utils/types.py, ChatCompletionMessageParam: a union of the message types of the
//! package openai (3.57) by role and of one for any role (`Custom` here). Pydantic takes of a
//! union's fitting members the one with the most known fields, and of two of them the first.
//! Contents of the members by role are looked at when they are read, and then by narrower rules.
//! `validate` is pydantic's part: it refuses, and puts some keys in another order. `convert` is the
//! engine's: it writes a new message with the keys that the engine knows.

use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;
use std::borrow::Cow;
use std::sync::Arc;

/// Keys of parts that the engine knows; a part keeps others for the template.
/// renderers/chat_utils/chat_message.py, _KNOWN_CONTENT_PART_FIELDS.
const PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];
/// chat_message.py, MM_PARSER_MAP without texts and tool_reference: they need more than a
/// tokenizer.
const MEDIA: [&str; 11] = [
    "input_image",
    "image_url",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
    "audio_url",
    "input_audio",
    "video_url",
    "file",
];
/// The header that Claude Code writes in front of its system prompt; the engine takes it off.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// A message as pydantic hands it on. INVALID_ARGUMENT: it refuses it.
/// 1. Renames and repairs, as the request's own validator does before the types are looked at.
/// 2. Counts the known fields of the member by role and of the custom one; the member with more of
///    them reads the message, of equal ones the one by role.
/// 3. The member by role has stricter parts (`check_parts`).
/// 4. Calls of tools get their keys in the order of the types.
pub fn validate(message: Json) -> Result<Map, Failure> {
    let Json::Map(mut message) = message else {
        return Err(wrong("messages", "not a list of objects"));
    };
    if message.contains("author") {
        return Err(Failure::unknown_here("a message of openai_harmony"));
    }
    rename_reasoning(&mut message)?;
    let Some(role) = message.text("role").map(str::to_owned) else {
        return Err(wrong("role", "missing in a message"));
    };
    let by_role = count_by_role(&role, &message);
    let custom = count_custom(&message);
    match (by_role, custom) {
        (None, None) => return Err(wrong("messages", &format!("wrong in a message of {role}"))),
        // The lists of the member by role are looked at when they are read.
        (Some(fields), custom) if custom.is_none_or(|custom| custom <= fields) => check_parts(&role, &mut message)?,
        _ => {}
    }
    if role == "assistant" {
        if let Some(Json::List(calls)) = message.get_mut("tool_calls") {
            for call in calls {
                *call = in_order(std::mem::replace(call, Json::Null))?;
            }
        }
    }
    Ok(message)
}

/// entrypoints/openai/chat_completion/protocol.py, _normalize_messages_before.
fn rename_reasoning(message: &mut Map) -> Result<(), Failure> {
    let listed = match message.get_mut("tool_calls") {
        None | Some(Json::Null | Json::List(_)) => None,
        // Python's list() of a text or of an object: what is in them is no call, so that nothing
        // may be in them.
        Some(Json::Str(text)) => Some(text.chars().map(|c| Json::from(c.to_string())).collect::<Vec<_>>()),
        Some(Json::Map(map)) => Some(map.iter().map(|(key, _)| Json::from(key)).collect()),
        Some(_) => return Err(wrong("tool_calls", "no list")),
    };
    if let Some(listed) = listed {
        message.insert("tool_calls", listed);
    }
    if let Some(reasoning) = message.remove("reasoning_content") {
        if !reasoning.is_null() && message.some("reasoning").is_none() {
            message.insert("reasoning", reasoning);
        }
    }
    Ok(())
}

/// The known fields of the member of this role; None: there is none, or it does not fit.
fn count_by_role(role: &str, message: &Map) -> Option<usize> {
    let is_text = |name: &str| message.get(name).is_none_or(|value| value.as_str().is_some());
    let present = |names: &[&str]| names.iter().filter(|name| message.contains(name)).count();
    let content = match message.get("content") {
        None => role == "assistant",
        Some(Json::Null) => matches!(role, "assistant" | "function"),
        Some(Json::Str(_)) => true,
        Some(Json::List(_) | Json::Map(_)) => role != "function",
        Some(_) => false,
    };
    if !content {
        return None;
    }
    match role {
        "developer" | "system" | "user" => is_text("name").then(|| present(&["content", "role", "name"])),
        "tool" => message.text("tool_call_id").map(|_| 3),
        "function" => message.text("name").map(|_| 3),
        "assistant" => {
            let audio = match message.get("audio") {
                None | Some(Json::Null) => Some(0),
                Some(Json::Map(audio)) => audio.text("id").map(|_| 1),
                Some(_) => None,
            };
            let function_call = match message.get("function_call") {
                None | Some(Json::Null) => Some(0),
                Some(Json::Map(call)) => (call.text("arguments").is_some() && call.text("name").is_some()).then_some(2),
                Some(_) => None,
            };
            let refusal = matches!(message.get("refusal"), None | Some(Json::Null | Json::Str(_)));
            let calls = matches!(message.get("tool_calls"), None | Some(Json::List(_)));
            let fields = present(&["role", "audio", "content", "function_call", "name", "refusal", "tool_calls"]);
            (is_text("name") && refusal && calls).then_some(fields + audio? + function_call?)
        }
        _ => None,
    }
}

/// The known fields of a CustomChatCompletionMessageParam, with those in its lists; None: the
/// message is none.
fn count_custom(message: &Map) -> Option<usize> {
    let mut fields = 0;
    for (name, value) in message.iter() {
        fields += match (name, value) {
            ("role" | "content" | "name", Json::Str(_)) => 1,
            ("tool_call_id" | "task" | "reasoning", Json::Str(_) | Json::Null) => 1,
            ("tool_calls" | "tools", Json::Null) => 1,
            ("content", Json::List(parts)) => parts.iter().try_fold(1, |sum, part| Some(sum + count_part(part)?))?,
            ("tool_calls", Json::List(calls)) => calls.iter().try_fold(1, |sum, call| Some(sum + count_call(call)?))?,
            ("tools", Json::List(tools)) => tools.iter().try_fold(1, |sum, tool| Some(sum + count_tool(tool)?))?,
            ("reasoning", Json::Map(part)) => (part.text("type") == Some("prompt_embeds") && part.text("data").is_some()).then_some(3)?,
            ("role" | "content" | "name" | "tool_call_id" | "task" | "reasoning" | "tool_calls" | "tools", _) => return None,
            _ => 0,
        };
    }
    Some(fields)
}

/// The known fields of the part type that has the most of them. Some types ask for no field, so
/// that any object is a part.
fn count_part(part: &Json) -> Option<usize> {
    let part = match part {
        Json::Str(_) => return Some(0),
        Json::Map(part) => part,
        _ => return None,
    };
    let of_type = |name: &str| part.text("type") == Some(name);
    let nullable = |name: &str| usize::from(matches!(part.get(name), Some(Json::Null | Json::Str(_))));
    let mut most = nullable("image_url").max(nullable("video_url")) + nullable("uuid");
    most = most.max(nullable("audio_url"));
    if text_part(part).is_some() {
        most = most.max(2 + 2 * usize::from(part.contains("prompt_cache_breakpoint")));
    }
    if of_type("refusal") && part.text("refusal").is_some() {
        most = most.max(2);
    }
    let closed = part.get("closed").map(super::fields::bool_of);
    if of_type("thinking") && part.text("thinking").is_some() && closed != Some(None) {
        most = most.max(2 + usize::from(closed.is_some()));
    }
    let name = part.get("name").map(Json::as_str);
    if name != Some(None) && (of_type("tool_reference") || !part.contains("type")) {
        most = most.max(usize::from(name.is_some()) + usize::from(part.contains("type")));
    }
    if MEDIA.iter().any(|name| of_type(name)) {
        most = most.max(2);
    }
    Some(most)
}

/// The text of a ChatCompletionContentPartTextParam.
fn text_part(part: &Map) -> Option<&str> {
    let breakpoint = match part.get("prompt_cache_breakpoint") {
        None => true,
        Some(Json::Map(point)) => {
            point.text("mode") == Some("explicit") && point.get("ttl").is_none_or(|ttl| matches!(ttl.as_str(), Some("30m" | "12h")))
        }
        Some(_) => false,
    };
    part.text("text").filter(|_| breakpoint && part.text("type") == Some("text"))
}

/// A call of a function has five known fields, its own and its function's.
fn count_call(call: &Json) -> Option<usize> {
    let call = call.as_map()?;
    let function = call.get("function").and_then(Json::as_map)?;
    let fits = call.text("id").is_some()
        && call.text("type") == Some("function")
        && function.text("name").is_some()
        && function.text("arguments").is_some();
    fits.then_some(5)
}

/// The package openai's ChatCompletionFunctionToolParam.
fn count_tool(tool: &Json) -> Option<usize> {
    let tool = tool.as_map()?;
    let function = tool.get("function").and_then(Json::as_map)?;
    let fits = tool.text("type") == Some("function")
        && function.text("name").is_some()
        && function.get("description").is_none_or(|text| text.as_str().is_some())
        && function.get("parameters").is_none_or(|map| map.as_map().is_some())
        && function
            .get("strict")
            .is_none_or(|strict| strict.is_null() || super::fields::bool_of(strict).is_some());
    let named = ["name", "description", "parameters", "strict"];
    fits.then(|| 2 + named.iter().filter(|name| function.contains(name)).count())
}

/// Parts as the member of this role has them; an empty object is a list of none.
fn check_parts(role: &str, message: &mut Map) -> Result<(), Failure> {
    match message.get("content") {
        Some(Json::Map(map)) if map.is_empty() => message.insert("content", Json::List(vec![])),
        Some(Json::Map(_)) => return Err(wrong("content", "neither text nor parts")),
        Some(Json::List(parts)) => {
            for part in parts {
                let Json::Map(part) = part else {
                    return Err(wrong("content", "not a list of objects"));
                };
                let refusal = role == "assistant" && part.text("type") == Some("refusal") && part.text("refusal").is_some();
                let media = role == "user" && part.text("type").is_some_and(|name| MEDIA.contains(&name));
                if text_part(part).is_none() && !refusal && !media {
                    return Err(wrong("content", "of a part that the engine does not take"));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// A call with its keys in the order of the types, which templates that print it whole show: id,
/// function (arguments, name), type.
fn in_order(call: Json) -> Result<Json, Failure> {
    let refused = || wrong("tool_calls", "not a list of calls of functions");
    let Json::Map(mut call) = call else { return Err(refused()) };
    let (Some(Json::Str(id)), Some(Json::Map(mut function)), Some(Json::Str(kind))) =
        (call.remove("id"), call.remove("function"), call.remove("type"))
    else {
        return Err(refused());
    };
    let (Some(Json::Str(arguments)), Some(Json::Str(name))) = (function.remove("arguments"), function.remove("name")) else {
        return Err(refused());
    };
    if &*kind != "function" {
        return Err(refused());
    }
    let function = ordered([("arguments", Json::Str(arguments)), ("name", Json::Str(name))], function);
    Ok(Json::Map(ordered(
        [("id", Json::Str(id)), ("function", Json::Map(function)), ("type", Json::Str(kind))],
        call,
    )))
}

/// These keys first, then the rest.
fn ordered<const N: usize>(first: [(&str, Json); N], rest: Map) -> Map {
    first.into_iter().map(|(key, value)| (Arc::from(key), value)).chain(rest).collect()
}

/// A message as the template gets it. chat_message.py, parse_chat_message_content and
/// _postprocess_messages.
///
/// `as_parts`: the template loops over contents.
/// Keys come in the order in which the engine inserts them: role, content, those of the role, name,
/// task. Other keys of the client are dropped.
pub fn convert(mut message: Map, as_parts: bool) -> Result<Map, Failure> {
    let Some(Json::Str(role)) = message.remove("role") else {
        return Err(wrong("role", "missing in a message"));
    };
    if message
        .get("reasoning")
        .and_then(Json::as_map)
        .is_some_and(|part| part.text("type") == Some("prompt_embeds"))
    {
        return Err(Failure::unknown_here("prompt_embeds in a message"));
    }
    let mut content = content_of(&role, message.remove("content").unwrap_or(Json::Null), as_parts)?;
    let mut out = Map::new();
    if &*role == "tool" {
        content = tool_content(content)?;
    }
    out.insert("role", role.clone());
    out.insert("content", content);
    match &*role {
        "assistant" => {
            if let Some(calls) = message.remove("tool_calls").filter(|calls| !calls.is_null()) {
                if let Some(calls) = calls_of(calls)? {
                    out.insert("tool_calls", calls);
                }
            }
            if let Some(reasoning) = message.remove("reasoning").filter(|reasoning| !reasoning.is_null()) {
                out.insert("reasoning", reasoning.clone());
                out.insert("reasoning_content", reasoning);
            }
        }
        "tool" => {
            if let Some(id) = message.remove("tool_call_id") {
                out.insert("tool_call_id", id);
            }
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(value) = message.remove(name).filter(|value| value.as_str().is_some()) {
            out.insert(name, value);
        }
    }
    if &*role == "developer" {
        out.insert("tools", message.remove("tools"));
    }
    Ok(out)
}

/// The content as the template gets it. With `as_parts` a list, in which a text is one part;
/// otherwise one text, its parts joined by line ends, without empty ones.
fn content_of(role: &str, content: Json, as_parts: bool) -> Result<Json, Failure> {
    let mut parts = match content {
        Json::Null => vec![],
        Json::Str(text) if !as_parts => {
            return Ok(Json::Str(match role {
                "system" => without_billing_header(text).unwrap_or_default(),
                _ => text,
            }));
        }
        Json::Str(text) => vec![Json::Str(text)],
        Json::List(parts) => parts,
        _ => return Err(wrong("content", "neither text nor parts")),
    };
    if role == "system" {
        parts = parts.into_iter().filter_map(strip_part).collect();
    }
    if as_parts {
        let wrapped: Result<Vec<Option<Json>>, Failure> = parts.into_iter().map(wrap_part).collect();
        return Ok(Json::List(wrapped?.into_iter().flatten().collect()));
    }
    let mut texts: Vec<Arc<str>> = vec![];
    for part in parts {
        let (_, value) = value_of(&part)?;
        match value.into_owned() {
            Json::Str(text) if text.is_empty() => {}
            Json::Str(text) => texts.push(text),
            value if !value.is_true() => {}
            _ => return Err(wrong("content", "of a part without a text")),
        }
    }
    match <[Arc<str>; 1]>::try_from(texts) {
        Ok([text]) => Ok(Json::Str(text)),
        Err(texts) => Ok(Json::from(texts.join("\n"))),
    }
}

/// The part's type and what it says. chat_message.py, parse_chat_message_content_mm_part.
fn value_of(part: &Json) -> Result<(&str, Cow<'_, Json>), Failure> {
    let part = match part {
        Json::Str(_) => return Ok(("text", Cow::Borrowed(part))),
        Json::Map(part) => part,
        _ => return Err(wrong("content", "not a list of parts")),
    };
    let kind = part.get("type").filter(|kind| !kind.is_null());
    let named = part.some("uuid").is_none();
    let get = |name: &str| part.get(name).map_or(Cow::Owned(Json::Null), Cow::Borrowed);
    match kind.map(Json::as_str) {
        Some(Some(kind @ ("text" | "input_text" | "output_text"))) if named => Ok((kind, get("text"))),
        Some(Some(kind @ ("thinking" | "refusal"))) if named => Ok((kind, get(kind))),
        Some(Some("tool_reference")) if named => Ok(("tool_reference", get("name"))),
        Some(Some(kind)) if MEDIA.contains(&kind) => Err(Failure::unknown_here(format!("a part of type {kind}"))),
        Some(None) if named => Err(wrong("type", "no text in a part")),
        Some(Some(kind)) if named => Err(wrong("type", &format!("{kind} in a part, which the engine does not take"))),
        _ => match MEDIA.iter().find(|name| part.contains(name)) {
            Some(name) => Err(Failure::unknown_here(format!("a part with {name}"))),
            None if part.contains("tool_reference") => Ok(("tool_reference", get("name"))),
            None => Err(wrong("type", "missing in a part")),
        },
    }
}

/// A part for a template that loops over parts: every kind of text becomes a "text", and unknown
/// keys of the client stay. None: a text that is null.
fn wrap_part(part: Json) -> Result<Option<Json>, Failure> {
    let (kind, value) = value_of(&part)?;
    if matches!(kind, "text" | "refusal") && value.is_null() {
        return Ok(None);
    }
    let value = value.into_owned();
    if kind == "tool_reference" {
        return Ok(Some(Json::Map(Map::from_iter([("type", Json::from(kind)), ("name", value)]))));
    }
    let first = [("type", Json::from("text")), ("text", value)];
    let Json::Map(mut rest) = part else {
        return Ok(Some(Json::Map(Map::from_iter(first))));
    };
    rest.retain(|key, _| !PART_FIELDS.contains(&key));
    Ok(Some(Json::Map(ordered(first, rest))))
}

/// Tool results are one text, unless something else is among them.
fn tool_content(content: Json) -> Result<Json, Failure> {
    let Json::List(parts) = &content else {
        return Ok(content);
    };
    let mut texts = vec![];
    for part in parts {
        match part.as_map() {
            Some(part) if part.text("type") == Some("text") => match part.get("text") {
                Some(Json::Str(text)) => texts.push(&**text),
                _ => return Err(wrong("content", "of a part without a text")),
            },
            _ => return Ok(content),
        }
    }
    Ok(Json::from(texts.join("\n")))
}

/// chat_message.py, _strip_claude_code_billing_header. None: there is nothing behind it.
fn without_billing_header(text: Arc<str>) -> Option<Arc<str>> {
    match text.starts_with(BILLING_HEADER) {
        false => Some(text),
        true => text
            .split_once('\n')
            .map(|(_, rest)| Arc::from(rest))
            .filter(|rest: &Arc<str>| !rest.is_empty()),
    }
}

/// The part without the header; None: nothing is left of it.
fn strip_part(part: Json) -> Option<Json> {
    match part {
        Json::Str(text) => without_billing_header(text).map(Json::Str),
        Json::Map(mut part) if part.text("type") == Some("text") => {
            if let Some(Json::Str(text)) = part.get("text") {
                let text = without_billing_header(text.clone())?;
                part.insert("text", text);
            }
            Some(Json::Map(part))
        }
        part => Some(part),
    }
}

/// Calls with objects as arguments; None: there are none. chat_message.py, _postprocess_messages.
fn calls_of(calls: Json) -> Result<Option<Json>, Failure> {
    let Json::List(mut calls) = calls else {
        return Err(wrong("tool_calls", "no list"));
    };
    for call in &mut calls {
        let refused = || wrong("tool_calls", "not a list of calls of functions");
        let Json::Map(call) = call else { return Err(refused()) };
        if call.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
            return Err(refused());
        }
        let Some(Json::Map(function)) = call.get_mut("function") else {
            return Err(refused());
        };
        let object = match function.get_mut("arguments") {
            Some(Json::Map(object)) => std::mem::take(object),
            Some(Json::Str(text)) => match Json::parse(text) {
                Ok(Json::Map(object)) => object,
                Err(failure) if failure.code != Failure::invalid("").code => return Err(failure),
                _ => Map::new(),
            },
            _ => Map::new(),
        };
        function.insert("arguments", object);
    }
    Ok((!calls.is_empty()).then_some(Json::List(calls)))
}
