//! /v1/messages of SGLang 0.5.23: AnthropicMessagesRequest (srt/entrypoints/anthropic/protocol.py),
//! which AnthropicServing._convert_to_chat_completion_request
//! (srt/entrypoints/anthropic/serving.py) makes a chat of.
//!   body ─▶ check, check_values, check_blocks ─▶ Made: messages of a chat ─▶ ChatRequest
//!        ─▶ ChatRequest::process

use super::chat::{message_of, tool_of, ChatRequest, ToolChoice};
use super::lax::{check, int_of, Field, Type};
use super::{reasoning, sampling, template_of};
use crate::chat::Templates;
use crate::json::{number_str, Json, Map};
use crate::python::strip;
use crate::request::{wrong, Convention, Reading};
use crate::Failure;
use Type::{Bool, Dict, Either, Float, Int, List, Model, Null, OneOf, Str};

/// AnthropicMessagesRequest. Tools are read one by one (`tool_from`).
const REQUEST: &[Field] = &[
    ("model", Str, true),
    ("messages", List(&MESSAGE), true),
    ("max_tokens", Int, true),
    ("metadata", Null(&Dict), false),
    ("stop_sequences", Null(&List(&Str)), false),
    ("stream", Null(&Bool), false),
    ("system", Null(&CONTENT), false),
    ("temperature", Null(&Float), false),
    ("thinking", Null(&THINKING), false),
    ("tool_choice", Null(&TOOL_CHOICE), false),
    ("tools", Null(&List(&Dict)), false),
    ("top_k", Null(&Int), false),
    ("top_p", Null(&Float), false),
    ("output_config", Null(&OUTPUT_CONFIG), false),
    ("betas", Null(&List(&Str)), false),
    ("bootstrap_host", Null(&Either(&Str, &List(&Str))), false),
    ("bootstrap_port", Null(&Either(&Int, &List(&Null(&Int)))), false),
    ("bootstrap_room", Null(&Either(&Int, &List(&Int))), false),
    ("routed_dp_rank", Null(&Int), false),
    ("disagg_prefill_dp_rank", Null(&Int), false),
];
/// Blocks are checked one by one (`check_blocks`).
const CONTENT: Type = Either(&Str, &List(&Dict));
const MESSAGE: Type = Model(&[("role", OneOf(&["user", "assistant", "system"]), true), ("content", CONTENT, true)]);
const THINKING: Type = Model(&[
    ("type", OneOf(&["enabled", "disabled", "adaptive"]), true),
    ("budget_tokens", Null(&Int), false),
    ("display", Null(&OneOf(&["summarized", "omitted"])), false),
]);
const TOOL_CHOICE: Type = Model(&[
    ("type", OneOf(&["auto", "any", "tool", "none"]), true),
    ("name", Null(&Str), false),
    ("disable_parallel_tool_use", Bool, false),
]);
const OUTPUT_CONFIG: Type = Model(&[
    ("effort", Null(&OneOf(&["minimal", "low", "medium", "high", "xhigh", "max"])), false),
    ("task_budget", Null(&Model(&[("type", OneOf(&["tokens"]), true), ("total", Int, true), ("remaining", Null(&Int), false)])), false),
    ("format", Null(&Model(&[("type", OneOf(&["json_schema"]), true), ("schema", Dict, true)])), false),
]);
const CUSTOM_TOOL: &[Field] = &[
    ("type", Null(&OneOf(&["custom"])), false),
    ("name", Str, true),
    ("description", Null(&Str), false),
    ("input_schema", Dict, true),
    ("strict", Bool, false),
    ("defer_loading", Null(&Bool), false),
];
/// Tools that Anthropic's servers have themselves, by the beginnings of their types, with their
/// names.
const SERVER_TOOLS: [(&str, &[&str]); 4] = [
    ("web_search_", &["web_search"]),
    ("computer_", &["computer"]),
    ("bash_", &["bash"]),
    ("text_editor_", &["str_replace_editor", "str_replace_based_edit_tool"]),
];

/// The fields of a block by its `type`, which must be said (a discriminated union). None: no such
/// type.
fn block_fields(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "text" => &[("text", Str, true)],
        "image" => &[("source", Null(&Either(&Dict, &Str)), false)],
        "tool_use" => &[("id", Str, true), ("name", Str, true), ("input", Dict, false)],
        "tool_result" => &[
            ("tool_use_id", Null(&Str), false),
            ("id", Null(&Str), false),
            ("content", Null(&CONTENT), false),
            ("is_error", Null(&Bool), false),
        ],
        "tool_reference" => &[("name", Null(&Str), false), ("tool_name", Null(&Str), false), ("id", Null(&Str), false)],
        "search_result" => &[
            ("source", Null(&Either(&Str, &Dict)), false),
            ("title", Null(&Str), false),
            ("content", Null(&List(&Dict)), false),
        ],
        "thinking" => &[("thinking", Str, true), ("signature", Null(&Str), false)],
        "redacted_thinking" => &[("data", Null(&Str), false)],
        _ => return None,
    })
}

/// The blocks of a content and, below results of tools, of theirs.
fn check_blocks(content: Option<&Json>) -> Result<(), Failure> {
    let Some(Json::List(blocks)) = content else {
        return Ok(());
    };
    for block in blocks.iter().filter_map(Json::as_map) {
        let kind = block.text("type").unwrap_or("");
        let fields = block_fields(kind).ok_or_else(|| wrong("content.type", "none that the engine knows"))?;
        check(block, fields)?;
        if kind == "tool_result" {
            check_blocks(block.get("content"))?;
        }
    }
    Ok(())
}

/// 1. Checks the request and all blocks.
/// 2. Puts the system's texts in front: also those of system messages within, where the template
///    does not print these in place.
/// 3. Makes messages of a chat, which pydantic reads again as such (`message_of`).
/// 4. Thinking and effort set variables or the effort of the chat (`reasoning::switch`).
/// 5. Tools and the choice among them; then as any chat.
pub fn read(templates: &Templates, convention: &Convention, mut body: Map) -> Result<Reading, Failure> {
    check(&body, REQUEST)?;
    check_values(&body)?;
    sampling::check(&body)?;
    let facts = template_of(templates, convention)?.sglang();
    let mut made = Made { convention, messages: vec![] };
    let messages = match body.remove("messages") {
        Some(Json::List(messages)) => messages,
        _ => vec![],
    };
    // All blocks are checked before anything is made, as pydantic does.
    for message in messages.iter().filter_map(Json::as_map) {
        check_blocks(message.get("content"))?;
    }
    check_blocks(body.get("system"))?;
    made.system(body.some("system"), &messages, !facts.inline_system);
    for message in messages {
        let Json::Map(message) = message else { continue };
        if facts.inline_system || message.text("role") != Some("system") {
            made.message(message)?;
        }
    }
    let mut request = ChatRequest {
        messages: made.messages.into_iter().map(|message| message_of(Json::Map(message))).collect::<Result<_, _>>()?,
        tools: vec![],
        tool_choice: ToolChoice::None,
        reasoning_effort: None,
        kwargs: Map::new(),
        continue_final_message: false,
        constrained: false,
        input_ids: None,
    };
    if let Some(thinking) = body.some("thinking").and_then(Json::as_map) {
        reasoning::switch(&mut request, convention, facts.reasoning, thinking.text("type") != Some("disabled"))?;
    }
    if let Some(config) = body.some("output_config").and_then(Json::as_map) {
        request.constrained = config.some("format").is_some();
        if let Some(effort) = config.text("effort") {
            request.reasoning_effort = Some(if effort == "xhigh" { "max" } else { effort }.into());
        }
    }
    if let Some(Json::List(tools)) = body.remove("tools") {
        for tool in tools {
            request.tools.extend(tool_from(tool)?);
        }
    }
    request.tool_choice = tool_choice_of(body.some("tool_choice").and_then(Json::as_map), &request)?;
    request.validate(convention)?;
    request.process(templates, convention)
}

/// Values that pydantic refuses beside their types.
fn check_values(body: &Map) -> Result<(), Failure> {
    if body.text("model") == Some("") {
        return Err(wrong("model", "empty"));
    }
    if body.get("max_tokens").and_then(int_of).is_some_and(|tokens| tokens <= 0) {
        return Err(wrong("max_tokens", "not positive"));
    }
    if let Some(thinking) = body.some("thinking").and_then(Json::as_map) {
        let budget = thinking.some("budget_tokens").map(|budget| int_of(budget).unwrap_or(0));
        let taken = match thinking.text("type") {
            Some("enabled") => budget.is_some_and(|budget| budget >= 1024),
            Some("disabled") => budget.is_none() && thinking.some("display").is_none(),
            _ => budget.is_none(),
        };
        if !taken {
            return Err(wrong("thinking", "not of the shape that its type has"));
        }
    }
    let config = body.some("output_config").and_then(Json::as_map);
    if let Some(budget) = config.and_then(|config| config.some("task_budget")).and_then(Json::as_map) {
        let is_at_least = |name: &str, min: i64| budget.some(name).and_then(int_of).is_none_or(|tokens| tokens >= min);
        if !is_at_least("total", 1) || !is_at_least("remaining", 0) {
            return Err(wrong("output_config.task_budget", "not positive"));
        }
    }
    Ok(())
}

/// The messages of the chat, as they are made, in order.
struct Made<'a> {
    convention: &'a Convention<'a>,
    messages: Vec<Map>,
}

fn text_part(text: &str) -> Map {
    Map::from_iter([("type", "text"), ("text", text)])
}

/// A content of parts: a single text part is its text.
fn content(mut parts: Vec<Map>) -> Json {
    match (parts.len(), parts.first().map(|part| part.text("type") == Some("text"))) {
        (1, Some(true)) => parts.remove(0).remove("text").into(),
        _ => Json::List(parts.into_iter().map(Json::Map).collect()),
    }
}

impl Made<'_> {
    /// `system`, and the system messages within where the template does not print them there, are
    /// one message in front.
    fn system(&mut self, system: Option<&Json>, messages: &[Json], merges: bool) {
        let mut texts: Vec<String> = match system {
            Some(Json::Str(text)) if !strip(text, None, true, true).is_empty() => vec![text.to_string()],
            Some(Json::List(blocks)) => texts_of(blocks).filter(|text| !text.is_empty()).map(str::to_owned).collect(),
            _ => vec![],
        };
        let within = messages.iter().filter_map(Json::as_map).filter(|message| merges && message.text("role") == Some("system"));
        for message in within {
            let stripped: Vec<&str> = match message.get("content") {
                Some(Json::Str(text)) => vec![strip(text, None, true, true)],
                Some(Json::List(blocks)) => texts_of(blocks).map(|text| strip(text, None, true, true)).collect(),
                _ => vec![],
            };
            let text = stripped.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
            if !text.is_empty() {
                texts.push(text);
            }
        }
        if !texts.is_empty() {
            self.push("system", texts.join("\n").into());
        }
    }

    fn push(&mut self, role: &str, content: Json) {
        self.messages.push(Map::from_iter([("role", Json::from(role)), ("content", content)]));
    }

    /// Makes the messages of one message.
    ///
    /// - An assistant's reasoning comes first, as a text (`reasoning`).
    /// - A result of a tool is a message of its own in a user's message: the parts in front of it
    ///   become a user's message first, so that the order stays. In other messages it is a text.
    /// - Calls of tools go to the message that is made of the rest. An empty rest of a user is left
    ///   out.
    fn message(&mut self, mut message: Map) -> Result<(), Failure> {
        let role = message.text("role").unwrap_or("").to_owned();
        let blocks = match message.remove("content") {
            Some(Json::List(blocks)) => blocks,
            text => {
                self.push(&role, text.into());
                return Ok(());
            }
        };
        let mut parts = vec![];
        let mut calls = vec![];
        if role == "assistant" {
            parts.extend(self.reasoning(&blocks)?);
        }
        for block in blocks {
            let Json::Map(mut block) = block else { continue };
            match block.text("type").unwrap_or("") {
                "text" => parts.push(text_part(block.text("text").unwrap_or(""))),
                "image" if is_image(block.get("source")) => return Err(Failure::unknown_here("contents with image")),
                "search_result" => parts.extend(search_text(&block)?.map(|text| text_part(&text))),
                "tool_use" => calls.push(call_of(block)?),
                // The id is under one of two names.
                "tool_result" => {
                    let id = ["tool_use_id", "id"].iter().filter_map(|name| block.text(name)).find(|id| !id.is_empty());
                    let id = id.unwrap_or("").to_owned();
                    let (contents, text) = result_of(block.remove("content"))?;
                    if role != "user" {
                        parts.push(text_part(&format!("Tool result: {text}")));
                        continue;
                    }
                    // Text in front of a result stays in front of it.
                    if !parts.is_empty() {
                        self.push("user", content(std::mem::take(&mut parts)));
                    }
                    for content in contents {
                        self.messages.push(Map::from_iter([
                            ("role", Json::from("tool")),
                            ("tool_call_id", id.as_str().into()),
                            ("content", content),
                        ]));
                    }
                }
                _ => {}
            }
        }
        let has_calls = !calls.is_empty();
        let mut made = Map::from_iter([("role", role.as_str())]);
        if has_calls {
            made.insert("tool_calls", calls);
        }
        if !parts.is_empty() {
            made.insert("content", content(parts));
        } else if !has_calls {
            if role == "user" {
                return Ok(());
            }
            made.insert("content", "");
        }
        self.messages.push(made);
        Ok(())
    }

    /// _convert_assistant_thinking_blocks: the reasoning of a former turn, as a text that the
    /// parser of the engine would find again.
    fn reasoning(&self, blocks: &[Json]) -> Result<Option<Map>, Failure> {
        let of = |kind: &'static str| blocks.iter().filter_map(Json::as_map).filter(move |block| block.text("type") == Some(kind));
        if of("redacted_thinking").next().is_some() {
            return Err(wrong("content", "with redacted_thinking, which the engine refuses"));
        }
        let texts: Vec<&str> = of("thinking").filter_map(|block| block.text("thinking")).filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return Ok(None);
        }
        Ok(reasoning::as_text(self.convention, &texts.join("\n"))?.map(|text| text_part(&text)))
    }
}

/// The texts of text blocks.
fn texts_of(blocks: &[Json]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(Json::as_map).filter(|block| block.text("type") == Some("text")).filter_map(|block| block.text("text"))
}

/// Whether the engine sees an image in the block's source; else the block says nothing.
fn is_image(source: Option<&Json>) -> bool {
    let Some(Json::Map(source)) = source else {
        return false;
    };
    match source.text("type") {
        Some("base64") => source.get("data").is_none_or(Json::is_true) && source.contains("data"),
        _ => source.get("url").is_some_and(Json::is_true),
    }
}

fn call_of(mut block: Map) -> Result<Json, Failure> {
    let id = block.text("id").filter(|id| !id.is_empty()).map(str::to_owned);
    // The engine invents an id, which is not known here.
    let id = id.ok_or_else(|| Failure::unknown_here("a tool_use without an id"))?;
    let function = Map::from_iter([
        ("name", Json::from(block.remove("name"))),
        ("arguments", block.remove("input").unwrap_or_else(|| Map::new().into())),
    ]);
    Ok(Map::from_iter([("id", Json::from(id)), ("type", "function".into()), ("function", function.into())]).into())
}

/// _convert_tool_result_content: contents of tool messages (references to tools by themselves), and
/// all texts as one.
fn result_of(content_given: Option<Json>) -> Result<(Vec<Json>, String), Failure> {
    let blocks = match content_given {
        Some(Json::List(blocks)) => blocks,
        Some(Json::Str(text)) => return Ok((vec![Json::Str(text.clone())], text.to_string())),
        _ => return Ok((vec!["".into()], String::new())),
    };
    let mut texts: Vec<String> = vec![];
    let mut groups: Vec<Vec<Map>> = vec![];
    for block in blocks.iter().filter_map(Json::as_map) {
        let part = match block.text("type").unwrap_or("") {
            "text" => block.text("text").filter(|text| !text.is_empty()).map(str::to_owned),
            "search_result" => search_text(block)?,
            "image" if is_image(block.get("source")) => return Err(Failure::unknown_here("contents with image")),
            "tool_reference" => {
                let name = ["tool_name", "name"].iter().filter_map(|name| block.text(name)).find(|name| !name.is_empty());
                if let Some(name) = name {
                    group(&mut groups, Map::from_iter([("type", "tool_reference"), ("name", name)]));
                }
                None
            }
            _ => None,
        };
        if let Some(text) = part {
            group(&mut groups, text_part(&text));
            texts.push(text);
        }
    }
    let mut contents: Vec<Json> = groups.into_iter().map(content).collect();
    if contents.is_empty() {
        contents.push("".into());
    }
    Ok((contents, texts.join("\n")))
}

/// Adds a part to the last group, if that is of its kind: references, or texts.
fn group(groups: &mut Vec<Vec<Map>>, part: Map) {
    // References and texts are never in one group.
    let is_reference = |part: &Map| part.text("type") == Some("tool_reference");
    match groups.last_mut() {
        Some(last) if last.first().is_some_and(|first| is_reference(first) == is_reference(&part)) => last.push(part),
        _ => groups.push(vec![part]),
    }
}

/// _text_from_search_result.
/// None: the block says nothing.
fn search_text(block: &Map) -> Result<Option<String>, Failure> {
    let mut lines = vec![];
    if let Some(title) = block.text("title").filter(|title| !title.is_empty()) {
        lines.push(format!("Title: {title}"));
    }
    let source = match block.get("source") {
        Some(Json::Map(source)) => ["url", "text"].iter().filter_map(|name| source.get(name)).find(|value| value.is_true()),
        source => source.filter(|source| source.is_true()),
    };
    if let Some(source) = source {
        let text = source.as_str().map(str::to_owned).or_else(|| number_str(source));
        let text = text.ok_or_else(|| Failure::unknown_here("a search_result with a source that is no text"))?;
        lines.push(format!("Source: {text}"));
    }
    let mut contents = vec![];
    for part in block.get("content").and_then(Json::as_list).unwrap_or(&[]).iter().filter_map(Json::as_map) {
        match part.get("text").filter(|text| text.is_true() && part.text("type") == Some("text")) {
            None => {}
            Some(Json::Str(text)) => contents.push(&**text),
            Some(_) => return Err(wrong("search_result.content.text", "not a text")),
        }
    }
    if !contents.is_empty() {
        lines.push(format!("Content: {}", contents.join("\n")));
    }
    Ok((!lines.is_empty()).then(|| lines.join("\n")))
}

/// A tool of a chat; None: one of Anthropic's servers.
/// A type of Anthropic's tools ends with a date of eight digits.
fn tool_from(tool: Json) -> Result<Option<Map>, Failure> {
    let Json::Map(mut tool) = tool else {
        return Err(wrong("tools", "not an array of objects"));
    };
    let kind = match tool.some("type") {
        None => "",
        Some(Json::Str(kind)) => kind,
        Some(_) => return Err(wrong("tools.type", "not a text")),
    };
    if let Some((begin, names)) = SERVER_TOOLS.iter().find(|(begin, _)| kind.starts_with(begin)) {
        let date = &kind[begin.len()..];
        // The type of such a tool is a name and a date: web_search_20250305.
        let has_date = date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
        let must_say = names.len() > 1;
        let is_named = match tool.get("name") {
            None => !must_say,
            Some(name) => name.as_str().is_some_and(|name| names.contains(&name)),
        };
        return match has_date && is_named {
            true => Ok(None),
            false => Err(wrong("tools.type", "none that the engine knows")),
        };
    }
    if kind.is_empty() && tool.contains("type") && !tool.get("type").is_some_and(Json::is_null) {
        return Err(wrong("tools.type", "empty"));
    }
    check(&tool, CUSTOM_TOOL)?;
    let mut schema = tool.remove("input_schema").unwrap_or(Json::Null);
    if let Json::Map(schema) = &mut schema {
        if !schema.contains("type") {
            schema.insert("type", "object");
        }
    }
    let description = tool.remove("description").filter(|description| !description.is_null());
    let function = Map::from_iter([
        ("name", Json::from(tool.remove("name"))),
        ("description", description.unwrap_or_else(|| "".into())),
        ("parameters", schema),
        ("strict", tool.remove("strict").unwrap_or(Json::Bool(false))),
    ]);
    let tool = Map::from_iter([
        ("type", Json::from("function")),
        ("function", function.into()),
        ("defer_loading", tool.remove("defer_loading").into()),
    ]);
    tool_of(tool.into()).map(Some)
}

/// Without tools there is no choice; "any" and "tool" are refused then.
fn tool_choice_of(choice: Option<&Map>, request: &ChatRequest) -> Result<ToolChoice, Failure> {
    let has_tools = !request.tools.is_empty();
    let Some(choice) = choice else {
        return Ok(if has_tools { ToolChoice::Auto } else { ToolChoice::None });
    };
    match choice.text("type").unwrap_or("") {
        "any" | "tool" if !has_tools => Err(wrong("tool_choice", "a tool, and there is none")),
        "auto" if has_tools => Ok(ToolChoice::Auto),
        "any" => Ok(ToolChoice::Required),
        // `validate` refuses a name that is not there.
        "tool" => Ok(ToolChoice::Named(choice.text("name").map(str::to_owned))),
        _ => Ok(ToolChoice::None),
    }
}

#[cfg(test)]
mod tests {
    use crate::chat::Templates;
    use crate::json::Map;
    use crate::request::{read, Convention, Engine, Part, Path};

    const PLAIN: &str = "{% for m in messages %}{{ m | tojson }}{% endfor %}|{{ tools | tojson }}|{{ enable_thinking | default('-') }}";

    fn shown_by(source: &str, reasoning_parser: &str, more: &str) -> String {
        let templates = Templates::new(&Map::from_iter([("default", source)]), Map::new()).unwrap();
        let nothing = Map::new();
        let convention = Convention { reasoning_parser, ..Convention::of_test(Engine::Sglang, "qwen3", &nothing) };
        let body = format!(r#"{{"model": "m", "max_tokens": 9, {more}}}"#);
        match read(&templates, &convention, Path::Messages, &body).map(|reading| reading.parts) {
            Ok(parts) => match &parts[..] {
                [Part::Text { text, around: false }] => text.clone(),
                parts => format!("{parts:?}"),
            },
            Err(failure) => format!("{}: {}", failure.code, failure.text),
        }
    }

    fn shown(more: &str) -> String {
        shown_by(PLAIN, "", more)
    }

    #[test]
    fn results_of_tools_stand_where_they_came() {
        let more = r#""system": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}], "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "text", "text": "before"},
              {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
              {"type": "text", "text": "after"}]}]"#;
        assert_eq!(
            shown(more),
            r#"{"role": "system", "content": "s\nt"}"#.to_owned()
                + r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "index": null, "type": "function", "#
                + r#""function": {"name": "f", "arguments": {"a": 1}}}]}{"role": "user", "content": "before"}"#
                + r#"{"role": "tool", "content": "x y", "tool_call_id": "t1"}{"role": "user", "content": "after"}|null|-"#
        );
    }

    #[test]
    fn a_tool_has_a_type_a_description_and_strict() {
        let more = r#""messages": [{"role": "user", "content": "q"}], "tools": [{"name": "f", "input_schema": {}, "cache_control": {}},
            {"type": "web_search_20250305", "name": "web_search"}]"#;
        let tools = r#"[{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}, "strict": false}, "defer_loading": null}]"#;
        assert_eq!(shown(more), format!(r#"{{"role": "user", "content": "q"}}|{tools}|-"#));
    }

    #[test]
    fn a_system_message_within_goes_to_the_front_where_the_template_does_not_print_it() {
        let more = r#""messages": [{"role": "user", "content": "q"}, {"role": "system", "content": " r "}], "system": "s""#;
        let any = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
        let in_place = r#"{"role": "system", "content": "s"}{"role": "user", "content": "q"}{"role": "system", "content": " r "}"#;
        assert_eq!(shown_by(any, "", more), in_place);
        let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}{{ m | tojson }}{% endfor %}";
        assert_eq!(shown_by(first, "", more), r#"{"role": "system", "content": "s\nr"}{"role": "user", "content": "q"}"#);
    }

    #[test]
    fn former_reasoning_is_shown_where_a_parser_tells_its_marks() {
        let more = r#""messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, {"type": "text", "text": "a"}]},
            {"role": "user", "content": "q"}]"#;
        assert!(shown(more).starts_with(r#"{"role": "assistant", "content": "a"}"#));
        assert!(shown_by(PLAIN, "qwen3", more).starts_with(r#"{"role": "assistant", "content": "<think>h\n</think> a"}"#));
        let redacted = more.replace(r#""thinking", "thinking": "h""#, r#""redacted_thinking""#);
        assert!(shown(&redacted).starts_with("3: "));
    }

    #[test]
    fn thinking_is_switched_by_the_parser_and_the_template() {
        let more = |thinking: &str| format!(r#""messages": [{{"role": "user", "content": "q"}}], "thinking": {thinking}"#);
        let enabled = more(r#"{"type": "enabled", "budget_tokens": 2048}"#);
        assert!(shown(&enabled).starts_with("3: "));
        assert!(shown_by(PLAIN, "qwen3", &enabled).ends_with("|True"));
        assert!(shown_by(PLAIN, "qwen3", &more(r#"{"type": "disabled"}"#)).ends_with("|False"));
        assert!(shown_by(PLAIN, "deepseek-r1", &more(r#"{"type": "disabled"}"#)).starts_with("3: "));
        assert!(shown_by(PLAIN, "qwen3", &more(r#"{"type": "enabled", "budget_tokens": 5}"#)).starts_with("3: "));
    }
}
