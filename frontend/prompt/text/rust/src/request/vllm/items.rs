//! Items of a response's input as pydantic hands them on: the union of ResponseInputItemParam and
//! ResponseOutputItem of the openai package (3.57), after ResponsesRequest.input_item_parsing
//! (entrypoints/openai/responses/protocol.py).
//!
//! Where several types fit, the union takes the one with more of its fields set. Types that no
//! conversion takes are refused at once.

use super::fields::{self, Field, Kind};
use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

/// Values of `status` and `phase` of an item.
const STATUS: Kind = Kind::OneOf(&["in_progress", "completed", "incomplete"]);
const PHASE: Kind = Kind::OneOf(&["commentary", "final_answer"]);

/// An item, as far as a prompt depends on it.
#[derive(Debug, PartialEq)]
pub enum Item {
    /// A message as it came, with all of its keys (TypedDicts have the configuration of the model
    /// around them, which allows others).
    Message { message: Map, is_unfinished: bool },
    /// ResponseOutputMessage: its parts' texts; None: a refusal.
    Said { texts: Vec<Option<String>>, is_unfinished: bool },
    Reasoning { content: Vec<String>, summary: Vec<String>, is_encrypted: bool, is_unfinished: bool },
    Call { id: String, name: String, namespace: Option<String>, arguments: String },
    CustomCall { id: String, name: String, input: String },
    /// A text, or parts.
    Output { id: Option<String>, output: Json, is_custom: bool },
}

impl Item {
    /// should_continue_final_message of responses/utils.py.
    pub fn is_unfinished(&self) -> bool {
        match self {
            Item::Message { is_unfinished, .. } | Item::Said { is_unfinished, .. } | Item::Reasoning { is_unfinished, .. } => *is_unfinished,
            _ => false,
        }
    }
}

/// By `type`, which a message may leave out. INVALID_ARGUMENT: no type fits. UNIMPLEMENTED: the
/// item refers to something that the engine stores.
pub fn validate(item: Json) -> Result<Item, Failure> {
    let Json::Map(item) = item else { return Err(wrong("input", "a list of something else than objects")) };
    if item.some("type").is_some_and(|kind| kind.as_str().is_none()) {
        return Err(wrong("type", "no text in an item"));
    }
    match item.get("type").map(Json::as_str) {
        // ItemReference takes anything that has an id.
        None | Some(None | Some("item_reference")) if item.text("id").is_some() => match item.contains("role") {
            true => Ok(Item::Message { is_unfinished: !item.contains("type") && is_unfinished(&item), message: item }),
            false => Err(Failure::unknown_here("an item that the engine stores")),
        },
        None | Some(Some("message")) => message(item),
        Some(Some("function_call")) => call(item),
        Some(Some("custom_tool_call")) => custom_call(item),
        Some(Some(kind @ ("function_call_output" | "custom_tool_call_output"))) => {
            let is_custom = kind == "custom_tool_call_output";
            output(item, is_custom)
        }
        Some(Some("reasoning")) => reasoning(item),
        Some(Some("additional_tools")) => Err(Failure::unknown_here("tools in the input")),
        _ => Err(wrong("input", "a list with an item of a type that the engine does not take")),
    }
}

/// The field's text, which must be there.
fn text(item: &Map, name: &str) -> Result<String, Failure> {
    item.text(name).map(str::to_owned).ok_or_else(|| wrong(name, "no text in an item"))
}

/// The status of an item that was cut off.
fn is_unfinished(item: &Map) -> bool {
    matches!(item.text("status"), Some("in_progress" | "incomplete"))
}

/// A message is one of three types, of which the union takes the one with more fields:
/// ResponseOutputMessage (`said`), an output message given as input, or an easy one. Its keys stay
/// as they came.
fn message(mut item: Map) -> Result<Item, Failure> {
    let role = match item.text("role") {
        Some(role @ ("user" | "assistant" | "system" | "developer")) => role.to_owned(),
        _ => return Err(wrong("role", "none that the engine takes")),
    };
    let is_typed = item.contains("type");
    let content = item.remove("content");
    if let (true, "assistant", Some(Json::List(parts))) = (is_typed, &*role, &content) {
        if let Some(texts) = said(&item, parts)? {
            return Ok(Item::Said { texts, is_unfinished: is_unfinished(&item) });
        }
    }
    let content = match content {
        Some(Json::Str(text)) if role == "assistant" && is_typed && item.text("id").is_some() && has_status(&item) => {
            // ResponseOutputMessageParam has more fields then, and a text is no list of parts,
            // unless it is empty.
            match text.is_empty() {
                true => Json::List(vec![]),
                false => return Err(wrong("content", "a text in a message with id and status")),
            }
        }
        Some(Json::Str(text)) => Json::Str(text),
        Some(Json::List(parts)) => {
            parts.iter().try_for_each(check_part)?;
            Json::List(parts)
        }
        _ => return Err(wrong("content", "neither a text nor a list of parts")),
    };
    // EasyInputMessageParam knows the phase, Message the status.
    let is_easy = fields::check(&item, &[("phase", PHASE, true)]).is_ok();
    let is_message = content.as_list().is_some() && role != "assistant" && (has_status(&item) || !item.contains("status"));
    if !is_easy && !is_message {
        return Err(wrong("phase", "none that the engine takes"));
    }
    item.insert("content", content);
    Ok(Item::Message { is_unfinished: is_unfinished(&item), message: item })
}

fn has_status(item: &Map) -> bool {
    item.contains("status") && fields::check(item, &[("status", STATUS, false)]).is_ok()
}

/// The texts of a ResponseOutputMessage, where it is one.
fn said(item: &Map, parts: &[Json]) -> Result<Option<Vec<Option<String>>>, Failure> {
    let table: &[Field] = &[("id", Kind::Str, false), ("status", STATUS, false), ("phase", PHASE, true)];
    if fields::check(item, table).is_err() {
        return Ok(None);
    }
    let mut texts = vec![];
    for part in parts {
        let Some(part) = part.as_map() else { return Ok(None) };
        match part.text("type") {
            Some("output_text") if part.text("text").is_some() => {
                let table: &[Field] = &[("annotations", Kind::ListOf(&Kind::Map), false), ("logprobs", Kind::ListOf(&Kind::Map), true)];
                if fields::check(part, table).is_err() {
                    return Ok(None);
                }
                let annotations = part.get("annotations").and_then(Json::as_list).unwrap_or_default();
                if !annotations.iter().filter_map(Json::as_map).all(is_annotation) {
                    return Ok(None);
                }
                texts.push(part.text("text").map(str::to_owned));
            }
            Some("refusal") if part.text("refusal").is_some() => match part.get("text") {
                None => texts.push(None),
                Some(_) => return Err(Failure::unknown_here("a refusal with a text")),
            },
            _ => return Ok(None),
        }
    }
    Ok(Some(texts))
}

/// An annotation of an output text, by its type.
fn is_annotation(annotation: &Map) -> bool {
    let (texts, numbers): (&[&str], &[&str]) = match annotation.text("type") {
        Some("file_citation") => (&["file_id", "filename"], &["index"]),
        Some("url_citation") => (&["title", "url"], &["start_index", "end_index"]),
        Some("container_file_citation") => (&["container_id", "file_id", "filename"], &["start_index", "end_index"]),
        Some("file_path") => (&["file_id"], &["index"]),
        _ => return false,
    };
    texts.iter().all(|name| annotation.text(name).is_some())
        && numbers.iter().all(|name| annotation.get(name).and_then(fields::int_of).is_some())
}

/// ResponseInputTextParam, ResponseInputImageParam, ResponseInputFileParam.
fn check_part(part: &Json) -> Result<(), Failure> {
    let bad = || wrong("content", "a list with a part that the engine does not take");
    let part = part.as_map().ok_or_else(bad)?;
    match part.text("type") {
        Some("input_text") if part.text("text").is_some() => match part.get("prompt_cache_breakpoint") {
            None => Ok(()),
            Some(Json::Map(place)) if place.text("mode") == Some("explicit") => Ok(()),
            Some(_) => Err(bad()),
        },
        Some("input_image") => {
            let detail = Kind::OneOf(&["low", "high", "auto", "original"]);
            fields::check(part, &[("detail", detail, false), ("file_id", Kind::Str, true), ("image_url", Kind::Str, true)])
        }
        Some("input_file") => fields::check(
            part,
            &[("file_data", Kind::Str, true), ("file_id", Kind::Str, true), ("file_url", Kind::Str, true), ("filename", Kind::Str, true)],
        ),
        _ => Err(bad()),
    }
}

/// `caller` of a call or a result.
fn check_caller(item: &Map) -> Result<(), Failure> {
    match item.get("caller") {
        None | Some(Json::Null) => Ok(()),
        Some(Json::Map(caller)) if caller.text("type") == Some("direct") => Ok(()),
        Some(Json::Map(caller)) if caller.text("type") == Some("program") && caller.text("caller_id").is_some() => Ok(()),
        Some(_) => Err(wrong("caller", "none that the engine takes")),
    }
}

fn call(item: Map) -> Result<Item, Failure> {
    fields::check(&item, &[("id", Kind::Str, true), ("async", Kind::Bool, true), ("namespace", Kind::Str, true), ("status", STATUS, true)])?;
    check_caller(&item)?;
    Ok(Item::Call {
        id: text(&item, "call_id")?,
        name: text(&item, "name")?,
        namespace: item.text("namespace").map(str::to_owned),
        arguments: text(&item, "arguments")?,
    })
}

fn custom_call(item: Map) -> Result<Item, Failure> {
    fields::check(&item, &[("id", Kind::Str, true), ("async", Kind::Bool, true), ("namespace", Kind::Str, true)])?;
    check_caller(&item)?;
    Ok(Item::CustomCall { id: text(&item, "call_id")?, name: text(&item, "name")?, input: text(&item, "input")? })
}

fn output(mut item: Map, is_custom: bool) -> Result<Item, Failure> {
    if is_custom {
        text(&item, "call_id")?;
        fields::check(&item, &[("id", Kind::Str, false)])?;
    } else {
        let table: &[Field] = &[
            ("id", Kind::Str, true),
            ("call_id", Kind::Str, true),
            ("name", Kind::Str, true),
            ("namespace", Kind::Str, true),
            ("status", STATUS, true),
        ];
        fields::check(&item, table)?;
    }
    check_caller(&item)?;
    let output = match item.remove("output") {
        Some(Json::Str(text)) => Json::Str(text),
        Some(Json::List(_)) if item.contains("created_by") => return Err(Failure::unknown_here("an output of parts with created_by")),
        Some(Json::List(parts)) => {
            parts.iter().try_for_each(check_part)?;
            Json::List(parts)
        }
        _ => return Err(wrong("output", "neither a text nor a list of parts")),
    };
    Ok(Item::Output { id: item.text("call_id").map(str::to_owned), output, is_custom })
}

/// Only `content` may be missing.
fn reasoning(item: Map) -> Result<Item, Failure> {
    fields::check(&item, &[("id", Kind::Str, false), ("encrypted_content", Kind::Str, true), ("status", STATUS, true)])?;
    let texts = |name: &str, kind: &str| {
        let bad = || wrong(name, "no list of its texts");
        match item.get(name) {
            None | Some(Json::Null) if name == "content" => Ok(vec![]),
            Some(Json::List(parts)) => parts
                .iter()
                .map(|part| part.as_map().filter(|part| part.text("type") == Some(kind)).and_then(|part| part.text("text")))
                .map(|text| text.map(str::to_owned).ok_or_else(bad))
                .collect::<Result<Vec<String>, Failure>>(),
            _ => Err(bad()),
        }
    };
    Ok(Item::Reasoning {
        content: texts("content", "reasoning_text")?,
        summary: texts("summary", "summary_text")?,
        is_encrypted: item.text("encrypted_content").is_some_and(|text| !text.is_empty()),
        is_unfinished: is_unfinished(&item),
    })
}
