//! A chat as pydantic reads it: ChatCompletionRequest and what it is made of (SGLang 0.5.23,
//! srt/entrypoints/openai/protocol.py). Templates get what `model_dump` of these types writes:
//! fields in the order of the types, not of the client, some missing ones as null and others not at
//! all. Each function here says which type it stands for.

use super::lax::{self, bool_of, check, flag, float_of};
use super::{fields, sampling};
use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

/// Values of `reasoning_effort`.
const EFFORTS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];

#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    Auto,
    Required,
    None,
    Named(Option<String>),
}

/// A request as pydantic has read it.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// As `model_dump` gives them, without keys that have no value. Contents are texts, or lists of
    /// parts.
    pub messages: Vec<Map>,
    /// As `model_dump` gives them.
    pub tools: Vec<Map>,
    pub tool_choice: ToolChoice,
    pub reasoning_effort: Option<Json>,
    /// chat_template_kwargs.
    pub kwargs: Map,
    pub continue_final_message: bool,
    /// The output follows a grammar of the request.
    pub constrained: bool,
    pub input_ids: Option<Vec<u32>>,
}

impl ChatRequest {
    /// Reads the body. INVALID_ARGUMENT: pydantic or a validator of the type refuses it.
    ///
    /// `reasoning` is read before the types are checked, as a validator of the engine rewrites it
    /// first. Without a `tool_choice` it is "auto" where there are tools, here or in messages, and
    /// "none" otherwise.
    pub fn of(mut body: Map) -> Result<Self, Failure> {
        let response_format = body.remove("response_format");
        normalize_reasoning(&mut body)?;
        check(&body, fields::SHARED)?;
        check(&body, fields::CHAT)?;
        let Some(Json::List(items)) = body.remove("messages") else {
            return Err(wrong("messages", "not an array"));
        };
        let mut messages = Vec::with_capacity(items.len());
        let mut have_tools = false;
        for item in items {
            let message = message_of(item)?;
            have_tools |= message.get("tools").is_some_and(Json::is_true);
            messages.push(message);
        }
        let tools = body.remove("tools").filter(|tools| !tools.is_null());
        let may_call = tools.is_some() || have_tools;
        let request = ChatRequest {
            messages,
            tools: match tools {
                Some(tools) => tools_of(tools)?,
                None => vec![],
            },
            tool_choice: tool_choice_of(body.some("tool_choice"), may_call)?,
            reasoning_effort: effort_of(body.some("reasoning_effort"))?,
            kwargs: match body.remove("chat_template_kwargs") {
                Some(Json::Map(kwargs)) => kwargs,
                _ => Map::new(),
            },
            continue_final_message: flag(&body, "continue_final_message"),
            constrained: constrains(response_format)?
                || ["regex", "ebnf"].iter().any(|name| body.get(name).is_some_and(Json::is_true)),
            input_ids: ids_of(body.some("input_ids"))?,
        };
        refuse_what_excludes(&body)?;
        sampling::check(&body)?;
        Ok(request)
    }
}

/// ChatCompletionMessageParam: ChatCompletionMessageGenericParam, else
/// ChatCompletionMessageUserParam.
/// A user's message has role and content alone; other keys are dropped. Other roles are taken in
/// any case and written in lower case, with the known keys that have a value, in the order of the
/// type.
pub fn message_of(message: Json) -> Result<Map, Failure> {
    const ROLES: [&str; 7] = ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];
    let Json::Map(mut message) = message else {
        return Err(wrong("messages", "not an array of objects"));
    };
    let role = message.text("role").ok_or_else(|| wrong("messages.role", "not a text"))?;
    let is_user = role == "user";
    let lower = role.to_lowercase();
    let mut seen = Map::new();
    let content = message.remove("content").unwrap_or(Json::Null);
    if is_user {
        seen.insert("role", "user");
        if content.is_null() {
            return Err(wrong("content of a user's message", "missing"));
        }
        seen.insert("content", content_of(content, false)?);
        return Ok(seen);
    }
    if !ROLES.contains(&lower.as_str()) {
        return Err(wrong("messages.role", "none that the engine knows"));
    }
    seen.insert("role", lower.as_str());
    seen.insert("content", content_of(content, lower == "assistant")?);
    for name in ["tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix"] {
        let value = match message.remove(name) {
            None | Some(Json::Null) => continue,
            Some(value) => value,
        };
        let refused = || wrong(&format!("messages.{name}"), "of a type that the engine refuses");
        let value = match name {
            "tool_calls" => Json::List(list(value, name)?.into_iter().map(tool_call_of).collect::<Result<_, _>>()?),
            "tools" => Json::List(tools_of(value)?.into_iter().map(Json::Map).collect()),
            "prefix" => Json::Bool(bool_of(&value).ok_or_else(refused)?),
            "phase" if !matches!(value.as_str(), Some("commentary" | "final_answer")) => return Err(refused()),
            _ if value.as_str().is_none() => return Err(refused()),
            _ => value,
        };
        seen.insert(name, value);
    }
    Ok(seen)
}

/// The items of a list.
fn list(value: Json, name: &str) -> Result<Vec<Json>, Failure> {
    match value {
        Json::List(items) => Ok(items),
        _ => Err(wrong(name, "not an array")),
    }
}

/// A text, or parts: those of texts and references to tools. Parts of reasoning are shown to no
/// template.
fn content_of(content: Json, is_assistant: bool) -> Result<Json, Failure> {
    let items = match content {
        Json::Null => return Ok("".into()),
        Json::Str(_) => return Ok(content),
        Json::List(items) => items,
        _ => return Err(wrong("messages.content", "neither a text nor an array")),
    };
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let Json::Map(mut part) = item else {
            return Err(wrong("messages.content", "not an array of objects"));
        };
        let kind = part.text("type").unwrap_or("").to_owned();
        let mut keep = |name: &str| match part.remove(name) {
            Some(Json::Str(text)) => {
                parts.push(Map::from_iter([("type", Json::from(&*kind)), (name, Json::Str(text))]).into());
                Ok(())
            }
            _ => Err(wrong(&format!("messages.content.{name}"), "not a text")),
        };
        match kind.as_str() {
            "text" => keep("text")?,
            "tool_reference" => keep("name")?,
            "thinking" | "reasoning" if is_assistant => {
                let given = ["thinking", "text"].map(|name| part.some(name));
                if given.iter().flatten().count() != 1 || given.iter().flatten().any(|text| text.as_str().is_none()) {
                    return Err(wrong("messages.content.thinking", "not one text"));
                }
            }
            "image_url" | "video_url" | "audio_url" | "input_audio" => {
                return Err(Failure::unknown_here(format!("contents with {kind}")));
            }
            _ => return Err(wrong("messages.content.type", &format!("{kind:?}, which the engine refuses"))),
        }
    }
    Ok(Json::List(parts))
}

/// ToolCall, as `model_dump` gives it.
fn tool_call_of(call: Json) -> Result<Json, Failure> {
    let Json::Map(mut call) = call else {
        return Err(wrong("messages.tool_calls", "not an array of objects"));
    };
    check(&call, fields::TOOL_CALL)?;
    let Some(Json::Map(mut function)) = call.remove("function") else {
        return Err(wrong("messages.tool_calls.function", "not an object"));
    };
    let function: Map = ["name", "arguments"].into_iter().map(|name| (name, Json::from(function.remove(name)))).collect();
    let index = call.some("index").and_then(lax::int_of).map(|index| Json::Int(index.into()));
    Ok(Json::Map(Map::from_iter([
        ("id", call.remove("id").into()),
        ("index", index.into()),
        ("type", Json::from("function")),
        ("function", Json::Map(function)),
    ])))
}

/// A list of Tool, as `model_dump` gives it.
pub fn tools_of(tools: Json) -> Result<Vec<Map>, Failure> {
    list(tools, "tools")?.into_iter().map(tool_of).collect()
}

/// Tool and Function with Function._serialize: keys in the client's order, those that it left out
/// behind them; `strict` and `defer_loading` of a function only where they are said.
pub fn tool_of(tool: Json) -> Result<Map, Failure> {
    let Json::Map(mut tool) = tool else {
        return Err(wrong("tools", "not an array of objects"));
    };
    check(&tool, fields::TOOL)?;
    let Some(Json::Map(given)) = tool.remove("function") else {
        return Err(wrong("tools.function", "not an object"));
    };
    let said = |value: Option<&Json>| Json::from(value.and_then(bool_of).map(Json::Bool));
    let defer_loading = said(tool.some("defer_loading"));
    let mut function = Map::new();
    for (name, value) in given {
        match &*name {
            "description" | "name" | "parameters" => function.insert(name, value),
            "strict" => function.insert(name, said(Some(&value))),
            "defer_loading" if value.is_null() => function.insert(name, defer_loading.clone()),
            "defer_loading" => function.insert(name, said(Some(&value))),
            _ => {}
        }
    }
    for (name, value) in [("description", Json::Null), ("parameters", Json::Null), ("defer_loading", defer_loading.clone())] {
        if !function.contains(name) {
            function.insert(name, value);
        }
    }
    function.retain(|name, value| !value.is_null() || (name != "strict" && name != "defer_loading"));
    let kind = tool.remove("type").unwrap_or_else(|| "function".into());
    Ok(Map::from_iter([("type", kind), ("function", Json::Map(function)), ("defer_loading", defer_loading)]))
}

/// normalize_reasoning_inputs: `reasoning` of the request becomes its effort, and effort two
/// variables of the template.
fn normalize_reasoning(body: &mut Map) -> Result<(), Failure> {
    let mut thinking = None;
    if let Some(Json::Map(reasoning)) = body.get("reasoning") {
        let effort = match reasoning.some("effort").or_else(|| reasoning.some("reasoning_effort")) {
            None => None,
            Some(Json::Str(text)) if EFFORTS.contains(&&**text) => Some(Json::Str(text.clone())),
            Some(value @ (Json::Int(_) | Json::Float(_) | Json::Str(_))) => {
                let number = float_of(value).ok_or_else(|| wrong("reasoning.effort", "neither a level nor a number"))?;
                Some(Json::Float(number))
            }
            Some(_) => return Err(wrong("reasoning.effort", "neither a level nor a number")),
        };
        let enabled = match reasoning.some("enabled").or_else(|| reasoning.get("enable")) {
            Some(Json::Str(text)) => {
                let text = crate::python::strip(text, None, true, true).to_lowercase();
                ["1", "true", "yes", "y", "on"].contains(&text.as_str())
            }
            value => value.is_some_and(Json::is_true),
        };
        thinking = enabled.then_some(true);
        if let Some(effort) = effort {
            body.insert("reasoning_effort", effort);
        }
    }
    if let Some(effort) = body.some("reasoning_effort") {
        thinking = Some(effort.as_str() != Some("none"));
    }
    let Some(thinking) = thinking else {
        return Ok(());
    };
    if body.get("chat_template_kwargs").is_none_or(|kwargs| kwargs.as_map().is_none()) {
        body.insert("chat_template_kwargs", Map::new());
    }
    if let Some(Json::Map(kwargs)) = body.get_mut("chat_template_kwargs") {
        for name in ["thinking", "enable_thinking"] {
            if !kwargs.contains(name) {
                kwargs.insert(name, thinking);
            }
        }
    }
    Ok(())
}

/// ReasoningEffortType: a level, or a number from 0 to 0.99.
fn effort_of(effort: Option<&Json>) -> Result<Option<Json>, Failure> {
    match effort {
        None => Ok(None),
        Some(Json::Str(level)) if EFFORTS.contains(&&**level) => Ok(Some(Json::Str(level.clone()))),
        Some(Json::Bool(_)) => Err(wrong("reasoning_effort", "a boolean")),
        Some(value) => match float_of(value).filter(|number| (0.0..=0.99).contains(number)) {
            Some(number) => Ok(Some(Json::Float(number))),
            None => Err(wrong("reasoning_effort", "neither a level nor a number from 0 to 0.99")),
        },
    }
}

/// `may_call`: there are tools.
fn tool_choice_of(choice: Option<&Json>, may_call: bool) -> Result<ToolChoice, Failure> {
    match choice {
        None if may_call => Ok(ToolChoice::Auto),
        None => Ok(ToolChoice::None),
        Some(Json::Str(choice)) => match &**choice {
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            "none" => Ok(ToolChoice::None),
            _ => Err(wrong("tool_choice", "none that the engine knows")),
        },
        Some(Json::Map(choice)) => {
            check(choice, fields::TOOL_CHOICE)?;
            let function = choice.get("function").and_then(Json::as_map);
            Ok(ToolChoice::Named(function.and_then(|function| function.text("name")).map(str::to_owned)))
        }
        Some(_) => Err(wrong("tool_choice", "neither a text nor an object")),
    }
}

/// Whether a response_format constrains what is generated. INVALID_ARGUMENT: what set_json_schema,
/// ResponseFormat and _validate_request refuse.
fn constrains(format: Option<Json>) -> Result<bool, Failure> {
    let format = match format {
        None | Some(Json::Null) => return Ok(false),
        Some(Json::Map(format)) => format,
        Some(_) => return Err(wrong("response_format", "not an object")),
    };
    let kind = format.text("type").unwrap_or("");
    let by_schema = format.get("json_schema").filter(|schema| !schema.is_null());
    let takes = |schema: &Json| {
        schema.as_map().is_some_and(|schema| {
            schema.text("name").is_some()
                && schema.some("description").is_none_or(|text| text.as_str().is_some())
                && schema.some("schema").is_none_or(|schema| schema.as_map().is_some())
                && schema.some("strict").is_none_or(|strict| strict.as_bool().is_some())
        })
    };
    match kind {
        "structural_tag" => Ok(true),
        "json_schema" if !by_schema.is_some_and(Json::is_true) => {
            match format.some("schema").and_then(Json::as_map).filter(|schema| !schema.is_empty()) {
                Some(_) => Ok(true),
                None => Err(wrong("response_format.json_schema", "missing")),
            }
        }
        "text" | "json_object" | "json_schema" if by_schema.is_none_or(takes) => {
            let schema = by_schema.and_then(Json::as_map).and_then(|schema| schema.some("schema"));
            match kind == "json_schema" && schema.is_none() {
                true => Err(wrong("response_format.json_schema.schema", "missing")),
                false => Ok(kind != "text"),
            }
        }
        _ => Err(wrong("response_format", "none that the engine knows")),
    }
}

/// INVALID_ARGUMENT: one is no id.
fn ids_of(ids: Option<&Json>) -> Result<Option<Vec<u32>>, Failure> {
    let Some(Json::List(ids)) = ids else {
        return Ok(None);
    };
    let ids = ids.iter().map(|id| lax::int_of(id).and_then(|id| u32::try_from(id).ok())).collect::<Option<Vec<_>>>();
    ids.map(Some).ok_or_else(|| wrong("input_ids", "not an array of ids of tokens"))
}

/// _validate_request and _convert_to_internal_request: what a stream cannot tell, and what needs
/// `return_meta_info`.
fn refuse_what_excludes(body: &Map) -> Result<(), Failure> {
    let is = |name: &str| flag(body, name);
    let in_meta = is("return_sampling_mask") || is("return_flat_raw_output_top_logprobs");
    if in_meta && !is("return_meta_info") {
        return Err(wrong("return_meta_info", "false, and needed"));
    }
    let whole = is("return_prompt_token_ids") || is("return_token_ids") || is("return_meta_info");
    if whole && is("stream") {
        return Err(wrong("stream", "excluded by what is to be returned"));
    }
    Ok(())
}
