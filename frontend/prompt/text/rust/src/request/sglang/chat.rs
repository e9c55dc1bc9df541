//! /v1/chat/completions of SGLang 0.5.23: ChatCompletionRequest
//! (srt/entrypoints/openai/protocol.py) and what OpenAIServingChat
//! (srt/entrypoints/openai/serving_chat.py) makes of it.
//!
//!   body ─▶ ChatRequest::of ─▶ validate ─▶ process ─▶ Reading
//!           pydantic           refusals    _process_messages, _apply_jinja_template

pub use super::chat_request::{message_of, tool_of, ChatRequest, ToolChoice};
use super::{schema, template_of};
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::request::{transformers, wrong, Chat, Convention, Part, Reading};
use crate::template_facts_sglang::Special;
use crate::Failure;
use std::collections::HashSet;

/// Roles of messages that may bring tools.
const TOOL_ROLES: [&str; 3] = ["root", "system", "developer"];

/// The prompt of a chat.
pub fn read(templates: &Templates, convention: &Convention, body: Map) -> Result<Reading, Failure> {
    let mut request = ChatRequest::of(body)?;
    request.validate(convention)?;
    request.process(templates, convention)
}

impl ChatRequest {
    /// OpenAIServingChat._validate_request.
    /// Looks at the tools of the request and of its messages: rewrites the names of types in their
    /// schemas, which the template is shown, checks the schemas, and collects their names for
    /// `tool_choice`. Names that come twice are refused only where messages bring tools.
    pub fn validate(&mut self, convention: &Convention) -> Result<(), Failure> {
        if self.messages.is_empty() {
            return Err(Failure::invalid("messages are empty"));
        }
        if self.kwargs.contains("chat_template") && !convention.trust_templates {
            return Err(Failure::unknown_here("chat templates of requests are not trusted here"));
        }
        let mut names = HashSet::new();
        let mut names_twice = false;
        let mut of_messages = false;
        let in_messages = self.messages.iter_mut().filter_map(message_tools).inspect(|_| of_messages = true).flatten();
        for tool in self.tools.iter_mut().chain(in_messages) {
            let Some(Json::Map(function)) = tool.get_mut("function") else {
                continue;
            };
            if let Some(parameters) = function.get_mut("parameters").filter(|value| !value.is_null()) {
                schema::rewrite_types(parameters);
                schema::check(parameters)?;
            }
            names_twice |= !names.insert(function.text("name").unwrap_or("").to_owned());
        }
        match &self.tool_choice {
            ToolChoice::Required if names.is_empty() => Err(wrong("tool_choice", "\"required\", and there are no tools")),
            ToolChoice::Named(name) if !name.as_ref().is_some_and(|name| names.contains(name)) => {
                Err(wrong("tool_choice", "a tool that is not there"))
            }
            _ if of_messages && names_twice => Err(wrong("tools", "not unique by name")),
            _ => Ok(()),
        }
    }

    /// The request or one of its messages has tools.
    fn has_tools(&self) -> bool {
        !self.tools.is_empty() || self.messages.iter().any(has_message_tools)
    }

    /// OpenAIServingChat._convert_to_internal_request, as far as it makes the prompt.
    /// 1. A tool must be called, and a grammar is given: refused, as both constrain the output.
    /// 2. Ids that the request brings are the prompt.
    /// 3. Efforts: of the variables and of the request; the engine's defaults; Hunyuan's names for
    ///    them.
    /// 4. Messages as the template gets them (`shown_message`), and the last one of the assistant
    ///    (`last_assistant`).
    /// 5. Variables: the effort, then the request's, then the one that stands for a low effort.
    /// 6. Renders the template; a text to be continued is a part of its own behind it.
    pub fn process(mut self, templates: &Templates, convention: &Convention) -> Result<Reading, Failure> {
        let must_call = matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if must_call && self.constrained {
            // to_sampling_params. Some parsers of tool calls constrain nothing, so it is not known
            // for them.
            return Err(match convention.tool_call_parser {
                "" => wrong("tool_choice", "excluded by response_format, regex or ebnf"),
                _ => Failure::unknown_here("tool_choice together with response_format"),
            });
        }
        if let Some(ids) = self.input_ids {
            return Ok(Reading { parts: vec![Part::Ids(ids)], truncate: None });
        }
        let template = template_of(templates, convention)?;
        let facts = template.sglang();
        let is_hunyuan = convention.reasoning_parser == "hunyuan"
            && facts.reasoning.and_then(|reasoning| reasoning.special) == Some(Special::Hunyuan);
        if !is_hunyuan {
            if let Some(effort) = self.kwargs.remove("reasoning_effort").filter(|effort| !effort.is_null()) {
                if convention.model_type == "gpt_oss" && effort.as_str() == Some("none") {
                    return Err(wrong("reasoning_effort", "\"none\", which harmony does not know"));
                }
                self.reasoning_effort = Some(effort);
            }
        }
        self.add_defaults(convention);
        if is_hunyuan {
            self.hunyuan_effort()?;
        }
        let tools = self.shown_tools();
        let lists_stay = facts.lists_stay;
        let mut messages = Vec::with_capacity(self.messages.len());
        for message in self.messages {
            messages.push(shown_message(message, lists_stay)?);
        }
        let prefix = last_assistant(&mut messages, self.continue_final_message);
        let mut kwargs = Map::new();
        if let Some(effort) = &self.reasoning_effort {
            kwargs.insert("reasoning_effort", effort.clone());
        }
        kwargs.update(&self.kwargs);
        let effort_kwarg = facts.reasoning.and_then(|reasoning| reasoning.effort_kwarg);
        if let Some(name) = effort_kwarg.filter(|name| !kwargs.contains(name)) {
            if self.reasoning_effort.as_ref().and_then(Json::as_str) == Some("low") {
                kwargs.insert(name, true);
            }
        }
        let chat_template = arguments(&mut kwargs)?;
        let text = render(templates, convention, Chat { messages, kwargs, chat_template, ..Chat::default() }, tools)?;
        let around = super::is_multimodal(convention);
        let mut reading = Reading::text(text, around);
        if let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) {
            if around || convention.reasoning_parser == "response_template" || begins_with_bos(&prefix, templates) {
                return Err(Failure::unknown_here("continue_final_message of this model"));
            }
            // The engine encodes it by itself, with special tokens, and takes BOS off.
            reading.parts.push(Part::Text { text: prefix.to_string(), around: false });
        }
        Ok(reading)
    }

    /// --default-chat-template-kwargs: variables that the request does not set. Only where there
    /// are defaults is a missing effort read from the variables.
    fn add_defaults(&mut self, convention: &Convention) {
        for (name, value) in convention.default_kwargs.iter() {
            if !self.kwargs.contains(name) {
                self.kwargs.insert(name, value.clone());
            }
        }
        if self.reasoning_effort.is_none() && !convention.default_kwargs.is_empty() {
            self.reasoning_effort = self.kwargs.some("reasoning_effort").cloned();
        }
    }

    /// normalize_hunyuan_reasoning_effort, srt/parser/hunyuan_reasoning.py.
    fn hunyuan_effort(&mut self) -> Result<(), Failure> {
        let in_kwargs = self.kwargs.remove("reasoning_effort").filter(|effort| !effort.is_null());
        let effort = self.reasoning_effort.take().or(in_kwargs);
        let level = match effort.as_ref().map(Json::as_str) {
            None | Some(Some("medium" | "high" | "xhigh" | "max")) => "high",
            Some(Some("none" | "no_think")) => "no_think",
            Some(Some("minimal" | "low")) => "low",
            _ => return Err(wrong("reasoning_effort", "none that Hunyuan knows")),
        };
        self.reasoning_effort = Some(level.into());
        Ok(())
    }

    /// The tools that the template gets: all, the named one, or none. Tools of messages stay in
    /// their messages.
    fn shown_tools(&mut self) -> Option<Vec<Json>> {
        if self.tool_choice == ToolChoice::None || !self.has_tools() {
            return None;
        }
        let mut tools = std::mem::take(&mut self.tools);
        if let ToolChoice::Named(name) = &self.tool_choice {
            tools.retain(|tool| tool_name(tool) == name.as_deref());
        }
        (!tools.is_empty()).then(|| tools.into_iter().map(Json::Map).collect())
    }
}

fn tool_name(tool: &Map) -> Option<&str> {
    tool.get("function").and_then(Json::as_map).and_then(|function| function.text("name"))
}

/// Only some roles may bring tools.
fn has_message_tools(message: &Map) -> bool {
    message.text("role").is_some_and(|role| TOOL_ROLES.contains(&role)) && message.get("tools").is_some_and(Json::is_true)
}

fn message_tools(message: &mut Map) -> Option<impl Iterator<Item = &mut Map>> {
    if !has_message_tools(message) {
        return None;
    }
    match message.get_mut("tools") {
        Some(Json::List(tools)) => Some(tools.iter_mut().filter_map(|tool| match tool {
            Json::Map(tool) => Some(tool),
            _ => None,
        })),
        _ => None,
    }
}

/// A template that fails is tried again with functions in place of tools (_apply_jinja_template).
fn render(
    templates: &Templates,
    convention: &Convention,
    mut chat: Chat,
    tools: Option<Vec<Json>>,
) -> Result<String, Failure> {
    let own = transformers::own_template(templates, convention, chat.chat_template.as_deref())?;
    let template = match &own {
        Some(own) => own.choose(false)?,
        None => template_of(templates, convention)?,
    };
    let Some(tools) = tools else {
        return transformers::render_in(template, templates, convention, chat);
    };
    let first = Chat { tools: Some(tools.clone()), ..chat.clone() };
    if let Ok(text) = transformers::render_in(template, templates, convention, first) {
        return Ok(text);
    }
    let function = |tool: Json| match tool {
        Json::Map(mut tool) => tool.remove("function").unwrap_or(Json::Map(tool)),
        tool => tool,
    };
    chat.tools = Some(tools.into_iter().map(function).collect());
    transformers::render_in(template, templates, convention, chat)
}

/// Removes arguments of `apply_chat_template`, which are no variables of the template, and refuses
/// those that the engine gives itself. Returns the template that the request brings.
fn arguments(kwargs: &mut Map) -> Result<Option<String>, Failure> {
    const TWICE: [&str; 8] = [
        "self", "conversation", "conversations", "messages", "tools", "tokenize", "return_dict", "add_generation_prompt",
    ];
    if let Some(name) = TWICE.iter().find(|name| kwargs.contains(name)) {
        return Err(wrong(&format!("chat_template_kwargs.{name}"), "given twice"));
    }
    for name in ["continue_final_message", "return_assistant_tokens_mask"] {
        if kwargs.remove(name).is_some_and(|value| value.is_true()) {
            return Err(wrong(&format!("chat_template_kwargs.{name}"), "excluded by add_generation_prompt"));
        }
    }
    for name in ["padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs"] {
        kwargs.remove(name);
    }
    match kwargs.some("documents") {
        None => {}
        Some(Json::List(documents)) if documents.iter().all(|document| document.as_map().is_some()) => {}
        Some(_) => return Err(wrong("chat_template_kwargs.documents", "not an array of objects")),
    }
    match kwargs.remove("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Str(source)) => Ok(Some(source.to_string())),
        Some(_) => Err(wrong("chat_template_kwargs.chat_template", "not a text")),
    }
}

/// A continued text that begins with BOS would lose that token: its form is not known here.
fn begins_with_bos(text: &str, templates: &Templates) -> bool {
    templates.special_tokens().text("bos_token").is_some_and(|bos| !bos.is_empty() && text.starts_with(bos))
}

/// normalize_assistant_tool_call_arguments, process_content_for_template_format and
/// normalize_tool_content.
/// Arguments of calls become objects. Contents that are lists stay lists where the template loops
/// over them (`lists_stay`); otherwise, and for results of tools that are texts alone, their texts
/// are joined by blanks.
fn shown_message(mut message: Map, lists_stay: bool) -> Result<Map, Failure> {
    if message.text("role") == Some("assistant") {
        if let Some(Json::List(calls)) = message.get_mut("tool_calls") {
            calls.iter_mut().try_for_each(parse_arguments)?;
        }
    }
    let parts = match message.get_mut("content") {
        Some(Json::List(parts)) => std::mem::take(parts),
        _ => return Ok(message),
    };
    let is_text = |part: &Json| part.as_map().is_some_and(|part| part.text("type") == Some("text"));
    let join = |parts: &[Json]| -> Json {
        let texts = parts.iter().filter_map(|part| part.as_map().filter(|_| is_text(part))?.text("text"));
        texts.collect::<Vec<_>>().join(" ").into()
    };
    if !lists_stay {
        message.insert("content", join(&parts));
        return Ok(message);
    }
    message.remove("content");
    if message.text("role") == Some("tool") && parts.iter().all(is_text) {
        message.insert("content", join(&parts));
    } else {
        message.insert("content", parts);
    }
    Ok(message)
}

/// parse_tool_call_arguments: a text must be an object for orjson.
fn parse_arguments(call: &mut Json) -> Result<(), Failure> {
    let Json::Map(call) = call else { return Ok(()) };
    let Some(Json::Map(function)) = call.get_mut("function") else { return Ok(()) };
    if let Some(Json::Str(text)) = function.get("arguments") {
        let parsed = Json::parse_orjson(text).map_err(|failure| match failure.code {
            3 => wrong("tool_calls.function.arguments", "no JSON"),
            _ => failure,
        })?;
        if parsed.as_map().is_none() {
            return Err(wrong("tool_calls.function.arguments", "no JSON object"));
        }
        function.insert("arguments", parsed);
    }
    Ok(())
}

/// _handle_last_assistant_message: a text of the assistant at the end is taken off to be continued,
/// or is the user's.
fn last_assistant(messages: &mut Vec<Map>, continues: bool) -> Option<std::sync::Arc<str>> {
    let last = messages.last_mut().filter(|message| message.text("role") == Some("assistant"))?;
    let Some(Json::Str(text)) = last.get("content") else {
        return None;
    };
    let text = text.clone();
    if continues {
        messages.pop();
        return Some(text);
    }
    *last = Map::from_iter([("role", Json::from("user")), ("content", Json::Str(text))]);
    None
}

#[cfg(test)]
mod tests {
    use crate::chat::Templates;
    use crate::json::Map;
    use crate::request::{read, Convention, Engine, Part, Path};

    /// The output of a template that prints all it gets; a refusal as "3: …" or "12: …".
    fn shown(body: &str) -> String {
        let source = "{% for m in messages %}{{ m | tojson }}{% endfor %}|{{ tools | tojson }}|{{ reasoning_effort | default('-') }},\
                      {{ thinking | default('-') }},{{ enable_thinking | default('-') }}";
        shown_by(source, body)
    }

    fn shown_by(source: &str, body: &str) -> String {
        let templates = Templates::new(&Map::from_iter([("default", source)]), Map::new()).unwrap();
        let nothing = Map::new();
        let convention = Convention::of_test(Engine::Sglang, "qwen3", &nothing);
        match read(&templates, &convention, Path::Chat, body) {
            Ok(reading) => reading
                .parts
                .into_iter()
                .map(|part| match part {
                    Part::Text { text, .. } => text,
                    Part::Ids(ids) => format!("{ids:?}"),
                })
                .collect::<Vec<_>>()
                .join("+"),
            Err(failure) => format!("{}: {}", failure.code, failure.text),
        }
    }

    fn code(body: &str) -> String {
        shown(body).split(':').next().unwrap_or("").to_owned()
    }

    #[test]
    fn a_message_keeps_what_the_engine_knows_in_its_order() {
        let body = r#"{"messages": [
            {"name": "n", "content": [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": "b"}], "role": "user"},
            {"role": "Assistant", "reasoning": "no", "reasoning_content": "r", "content": null, "refusal": null,
             "tool_calls": [{"function": {"arguments": "{\"n\": 100000000000000000000, \"a\": 1.0}", "name": "f", "x": 1}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]}"#;
        assert_eq!(
            shown(body),
            r#"{"role": "user", "content": "a b"}{"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": "#.to_owned()
                + r#"[{"id": null, "index": null, "type": "function", "function": {"name": "f", "arguments": {"n": 1e+20, "a": 1.0}}}]}"#
                + r#"{"role": "tool", "content": "1 2", "tool_call_id": "c"}|null|-,-,-"#
        );
    }

    #[test]
    fn lists_stay_where_the_template_loops_over_contents() {
        let source = "{% for m in messages %}{{ m | tojson }}{% for p in m.content %}{% endfor %}{% endfor %}";
        let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "b"}]}"#;
        assert_eq!(
            shown_by(source, body),
            r#"{"role": "user", "content": [{"type": "text", "text": "a"}]}{"role": "user", "content": "b"}"#
        );
    }

    #[test]
    fn a_tool_has_the_clients_order_and_null_for_what_is_missing() {
        let body = r#"{"messages": [{"role": "user", "content": "q"}], "tools": [
            {"type": "function", "function": {"parameters": {"type": "varchar"}, "name": "f", "x": 1, "strict": "yes"}, "cache_control": 1},
            {"function": {"name": "g", "strict": null}, "defer_loading": true}]}"#;
        let tools = r#"[{"type": "function", "function": {"parameters": {"type": "string"}, "name": "f", "strict": true, "description": null}, "defer_loading": null}, "#
            .to_owned()
            + r#"{"type": "function", "function": {"name": "g", "description": null, "parameters": null, "defer_loading": true}, "defer_loading": true}]"#;
        assert_eq!(shown(body), format!(r#"{{"role": "user", "content": "q"}}|{tools}|-,-,-"#));
    }

    #[test]
    fn a_choice_of_tools_shows_all_or_none_or_one() {
        let tools = |choice: &str| {
            let body = format!(
                r#"{{"messages": [{{"role": "user", "content": "q"}}], "tools": [{{"function": {{"name": "f"}}}},
                   {{"function": {{"name": "g"}}}}], "tool_choice": {choice}}}"#
            );
            let shown = shown(&body);
            [shown.contains("\"f\""), shown.contains("\"g\"")]
        };
        assert_eq!(tools("null"), [true, true]);
        assert_eq!(tools("\"required\""), [true, true]);
        assert_eq!(tools("\"none\""), [false, false]);
        assert_eq!(tools(r#"{"type": "function", "function": {"name": "g"}}"#), [false, true]);
        assert_eq!(tools(r#"{"type": "function", "function": {"name": "h"}}"#), [false, false]);
    }

    #[test]
    fn tools_are_tried_as_functions_where_the_template_fails() {
        let body = r#"{"messages": [{"role": "user", "content": "q"}], "tools": [{"function": {"name": "f"}}]}"#;
        let source = "{% for t in tools %}{% if t.function %}{{ raise_exception('flat, please') }}{% endif %}{{ t.name }}{% endfor %}";
        assert_eq!(shown_by(source, body), "f");
    }

    #[test]
    fn effort_and_reasoning_set_the_variables_of_thinking() {
        let variables = |more: &str| {
            let text = shown(&format!(r#"{{"messages": [{{"role": "user", "content": "q"}}], {more}}}"#));
            text.rsplit('|').next().unwrap_or("").to_owned()
        };
        assert_eq!(variables(r#""reasoning_effort": "none""#), "none,False,False");
        assert_eq!(variables(r#""reasoning_effort": "0.5""#), "0.5,True,True");
        assert_eq!(variables(r#""reasoning": {"effort": "high", "enabled": false}"#), "high,True,True");
        assert_eq!(variables(r#""reasoning": {"enabled": "Yes"}, "chat_template_kwargs": {"thinking": 5}"#), "-,5,True");
        assert_eq!(variables(r#""reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}"#), "x,True,True");
    }

    #[test]
    fn a_last_assistant_is_the_users_or_is_continued() {
        let body = |more: &str| format!(r#"{{"messages": [{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "a"}}]{more}}}"#);
        assert!(shown(&body("")).starts_with(r#"{"role": "user", "content": "q"}{"role": "user", "content": "a"}|"#));
        assert_eq!(shown(&body(r#", "continue_final_message": true"#)), r#"{"role": "user", "content": "q"}|null|-,-,-+a"#);
    }

    #[test]
    fn what_the_engine_refuses_is_refused() {
        let message = |message: &str| format!(r#"{{"messages": [{message}]}}"#);
        let call = |arguments: &str| {
            message(&format!(r#"{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}"#))
        };
        for body in [
            r#"{"messages": []}"#.to_owned(),
            message(r#"{"role": "User", "content": "q"}"#),
            message(r#"{"role": "user", "content": null}"#),
            message(r#"{"role": "user", "content": [{"type": "input_text", "text": "q"}]}"#),
            message(r#"{"role": "user", "content": [{"type": "thinking", "thinking": "q"}]}"#),
            message(r#"{"role": "user", "content": "\ud800"}"#),
            call("\"\""), call("\"[]\""), call("\"{\\\"a\\\": NaN}\""), call("5"),
            r#"{"messages": [{"role": "user", "content": "q"}], "temperature": NaN}"#.to_owned(),
            r#"{"messages": [{"role": "user", "content": "q"}], "tool_choice": "required"}"#.to_owned(),
            r#"{"messages": [{"role": "user", "content": "q"}], "reasoning_effort": 1}"#.to_owned(),
            r#"{"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"messages": []}}"#.to_owned(),
        ] {
            assert_eq!(code(&body), "3", "{body}");
        }
        for body in [
            message(r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}"#),
            r#"{"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"chat_template": "x"}}"#.to_owned(),
        ] {
            assert_eq!(code(&body), "12", "{body}");
        }
    }

    #[test]
    fn ids_of_a_chat_are_its_prompt() {
        assert_eq!(shown(r#"{"messages": [{"role": "user", "content": "q"}], "input_ids": [1, 2.0, "3"]}"#), "[1, 2, 3]");
    }
}
