//! The prompt format of gpt-oss as the Python package `openai_harmony` encodes it (openai-harmony
//! 0.0.4 in SGLang, oss-harmony 0.0.11 in vLLM; src/encoding.rs, src/chat.rs of both): names of the
//! format are special tokens, every text between them is encoded by itself, and no text can hold a
//! special token. `Parts` says how that is done with a tokenizer that knows the names.

pub mod types;

use super::{Convention, Part, Reading};
use types::write_type;
use crate::json::Json;
use crate::{python, Failure};

/// The author of a message. A tool is named by its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
    System,
    Developer,
    Tool,
}

impl Role {
    pub fn of(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            "developer" => Role::Developer,
            "tool" => Role::Tool,
            _ => return Err(Failure::invalid(format!("gpt-oss knows no role {name:?}"))),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
            Role::Developer => "developer",
            Role::Tool => "tool",
        }
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    pub name: String,
    pub description: String,
    pub parameters: Option<Json>,
}

/// A part of a message. Each one is a text that is encoded by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Text(String),
    /// The text of the system; `effort` is "low", "medium" or "high".
    System { effort: &'static str },
    Developer { instructions: Option<String>, functions: Vec<Function> },
}

/// A message: header (role, name, recipient, channel, content type) and contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    /// A tool's: "functions.NAME".
    pub name: Option<String>,
    pub contents: Vec<Content>,
    pub channel: Option<&'static str>,
    pub recipient: Option<String>,
    /// Its content type is "json".
    pub is_call: bool,
}

impl Message {
    pub fn new(role: Role, contents: Vec<Content>) -> Self {
        Message { role, name: None, contents, channel: None, recipient: None, is_call: false }
    }
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Message::new(role, vec![Content::Text(text.into())])
    }
    pub fn developer(instructions: Option<String>, functions: Vec<Function>) -> Self {
        Message::new(Role::Developer, vec![Content::Developer { instructions, functions }])
    }
    /// A call of a function, on the channel "commentary".
    pub fn call(function: &str, arguments: impl Into<String>) -> Self {
        Message {
            recipient: Some(format!("functions.{function}")),
            is_call: true,
            ..Message::text(Role::Assistant, arguments).on("commentary")
        }
    }
    /// The result of a function.
    pub fn result(function: &str, text: impl Into<String>) -> Self {
        Message { name: Some(format!("functions.{function}")), ..Message::text(Role::Tool, text) }
    }
    /// Builders of the header.
    pub fn on(mut self, channel: &'static str) -> Self {
        self.channel = Some(channel);
        self
    }
    pub fn to(mut self, recipient: &str) -> Self {
        self.recipient = Some(recipient.to_owned());
        self
    }
}

/// Which package encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// openai-harmony up to 0.0.8: a recipient stands in front of the channel.
    Openai,
    /// oss-harmony 0.0.11 as vLLM 0.33.0 uses it: on the channel `commentary` a recipient stands
    /// behind it, but for calls, whose headers vLLM writes again in the older order
    /// (entrypoints/openai/parser/harmony_utils.py, _use_legacy_tool_call_headers).
    Vllm,
}

/// The prompt for the assistant's next message (render_conversation_for_completion).
/// 1. Leaves out thoughts of earlier turns (`drop_analysis`).
/// 2. Writes each message: <|start|>, header, <|message|>, contents, and <|end|>, or <|call|> for a
///    call.
/// 3. Begins the assistant's message, whose channel is the model's to choose.
///
/// The system's text depends on whether any developer's message has functions.
pub fn render(package: Package, convention: &Convention, mut messages: Vec<Message>) -> Result<Reading, Failure> {
    drop_analysis(package, &mut messages);
    let has_functions = messages.iter().flat_map(|message| &message.contents).any(|content| match content {
        Content::Developer { functions, .. } => !functions.is_empty(),
        _ => false,
    });
    let mut out = Parts::default();
    for message in messages {
        out.special("<|start|>");
        header(package, &message, &mut out)?;
        out.special("<|message|>");
        let is_call = message.role == Role::Assistant && message.recipient.is_some();
        for content in message.contents {
            out.ordinary(&match content {
                Content::Text(text) => text,
                Content::System { effort } => system_text(effort, has_functions, convention)?,
                Content::Developer { instructions, functions } => developer_text(package, instructions, &functions)?,
            })?;
        }
        out.special(if is_call { "<|call|>" } else { "<|end|>" });
    }
    out.special("<|start|>");
    out.ordinary("assistant")?;
    Ok(Reading { parts: out.parts, truncate: None })
}

/// Leaves out what the model thought once its answer is there. vLLM (harmony_utils.py,
/// auto_drop_analysis_messages): in front of the last answer. The package: in front of the first
/// answer, and only where the assistant's last message is one.
fn drop_analysis(package: Package, messages: &mut Vec<Message>) {
    let is_on = |message: &Message, channel: &str| message.channel == Some(channel);
    let is_answer = |message: &Message| message.role == Role::Assistant && is_on(message, "final");
    let before = match package {
        Package::Vllm => messages.iter().rposition(is_answer),
        Package::Openai => match messages.iter().rfind(|message| message.role == Role::Assistant) {
            Some(last) if is_answer(last) => messages.iter().position(|message| is_on(message, "final")),
            _ => None,
        },
    };
    let mut at = 0;
    messages.retain(|message| {
        at += 1;
        before.is_none_or(|before| at > before) || !is_on(message, "analysis")
    });
}

/// Author, recipient, channel and content type of a message. Words that adjoin here would be
/// encoded by themselves; each begins with a space behind a word, where the pattern ends a piece,
/// too.
fn header(package: Package, message: &Message, out: &mut Parts) -> Result<(), Failure> {
    let recipient = message.recipient.as_deref().filter(|recipient| *recipient != "all");
    if package == Package::Vllm && message.is_call && recipient.is_some_and(names_special) {
        return Err(Failure::invalid("the name of a function holds the name of a special token"));
    }
    let mut from = match (message.role, &message.name) {
        (Role::Tool, None) => return Err(Failure::invalid("a tool without a name")),
        (Role::Tool, Some(name)) => name.clone(),
        (role, _) => role.name().to_owned(),
    };
    let mut channel = message.channel.unwrap_or_default().to_owned();
    if let Some(recipient) = recipient {
        let is_behind = package == Package::Vllm && message.channel == Some("commentary") && !message.is_call;
        let place = if is_behind { &mut channel } else { &mut from };
        place.push_str(" to=");
        place.push_str(recipient);
    }
    if message.is_call {
        channel.push_str(" json");
    }
    out.ordinary(&from)?;
    if message.channel.is_some() {
        out.special("<|channel|>");
        out.ordinary(&channel)?;
    }
    Ok(())
}

/// vLLM encodes such a header by `HarmonyEncoding.encode`, which refuses names of special tokens.
fn names_special(text: &str) -> bool {
    const NAMES: [&str; 12] = [
        "startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call", "endofprompt", "refusal", "untrusted",
    ];
    text.match_indices("<|").any(|(at, _)| {
        let rest = &text[at + 2..];
        rest.starts_with("reserved_") || NAMES.iter().any(|name| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with("|>")))
    })
}

/// The system's message, as the package writes it, with the date in this machine's time zone.
fn system_text(effort: &str, has_functions: bool, convention: &Convention) -> Result<String, Failure> {
    let date = python::strftime("%Y-%m-%d", convention.now).map_err(|e| Failure::internal(e.to_string()))?;
    let mut text = format!(
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: {date}\n\n\
         Reasoning: {effort}\n\n\
         # Valid channels: analysis, commentary, final. Channel must be included for every message."
    );
    if has_functions {
        text.push_str("\nCalls to these tools must go to the commentary channel: 'functions'.");
    }
    Ok(text)
}

/// The developer's message: instructions, and functions as TypeScript (`types`).
fn developer_text(package: Package, instructions: Option<String>, functions: &[Function]) -> Result<String, Failure> {
    let mut out = match instructions {
        Some(instructions) => format!("# Instructions\n\n{instructions}"),
        None => String::new(),
    };
    if functions.is_empty() {
        return Ok(out);
    }
    if !out.is_empty() {
        out.push_str("\n\n");
    }
    out.push_str("# Tools\n\n## functions\n\nnamespace functions {\n");
    for function in functions {
        for line in function.description.lines() {
            out.push_str(&format!("\n// {line}"));
        }
        out.push_str(&format!("\ntype {} = (", function.name));
        if let Some(parameters) = &function.parameters {
            out.push_str("_: ");
            write_type(package, parameters, &mut out)?;
        }
        out.push_str(") => any;\n");
    }
    out.push_str("\n} // namespace functions");
    Ok(out)
}

/// Parts, of which each one yields a token or more; no context is so long (gpt-oss: 131,072).
const PARTS_MAX: usize = 1 << 20;

/// One text as far as possible: the tokenizer splits it at the names of special tokens and encodes
/// what is between them by itself.
///
/// A new part begins where two texts adjoin, and within `<|name` of a text behind the bar. There
/// the pattern of o200k ends a piece anyhow (a run of two signs or more, then a letter), so the ids
/// are those of the whole text, in which the name is no token.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    /// The last part ends with a text, not with a name.
    is_text: bool,
}

impl Parts {
    /// A special token by its name. It joins the text before it: the tokenizer takes it out.
    fn special(&mut self, name: &str) {
        self.push(name, false);
        self.is_text = false;
    }

    /// A text without special tokens, encoded by itself. UNIMPLEMENTED: the prompt has more than
    /// PARTS_MAX parts.
    fn ordinary(&mut self, text: &str) -> Result<(), Failure> {
        let mut from = 0;
        for (at, bar) in text.match_indices("<|") {
            let end = at + bar.len();
            if text[end..].starts_with(|c: char| c.is_ascii_alphabetic()) {
                self.push(&text[from..end], self.is_text);
                self.is_text = true;
                from = end;
            }
        }
        if from < text.len() {
            self.push(&text[from..], self.is_text);
            self.is_text = true;
        }
        match self.parts.len() > PARTS_MAX {
            true => Err(Failure::unknown_here("too many parts of a prompt")),
            false => Ok(()),
        }
    }

    /// Continues the last part, unless a new one begins.
    fn push(&mut self, more: &str, begins_part: bool) {
        match self.parts.last_mut() {
            Some(Part::Text { text, .. }) if !begins_part => text.push_str(more),
            _ => self.parts.push(Part::Text { text: more.into(), around: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Map;
    use crate::request::Engine;

    fn rendered(package: Package, messages: Vec<Message>) -> Vec<String> {
        let nothing = Map::new();
        let convention = Convention::of_test(Engine::Vllm, "gpt_oss", &nothing);
        let text = |part: Part| match part {
            Part::Text { text, around: false } => text,
            other => panic!("{other:?}"),
        };
        render(package, &convention, messages).unwrap().parts.into_iter().map(text).collect()
    }

    #[test]
    fn a_conversation_is_one_text() {
        let messages = vec![Message::text(Role::User, "q"), Message::text(Role::Assistant, "a").on("final")];
        assert_eq!(
            rendered(Package::Openai, messages),
            ["<|start|>user<|message|>q<|end|><|start|>assistant<|channel|>final<|message|>a<|end|><|start|>assistant"]
        );
    }

    #[test]
    fn names_of_special_tokens_in_texts_are_cut_behind_their_bar_and_parts_stay_apart() {
        let contents = vec![Content::Text("a<|end|>b<|1".into()), Content::Text("c".into())];
        assert_eq!(
            rendered(Package::Vllm, vec![Message::new(Role::User, contents)]),
            ["<|start|>user<|message|>a<|", "end|>b<|1", "c<|end|><|start|>assistant"]
        );
    }

    #[test]
    fn headers_of_calls_and_results() {
        let messages = || vec![Message::call("f", "{}"), Message::result("f", "1").on("commentary").to("assistant")];
        assert_eq!(
            rendered(Package::Vllm, messages()),
            ["<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>\
              <|start|>functions.f<|channel|>commentary to=assistant<|message|>1<|end|><|start|>assistant"]
        );
        assert_eq!(
            rendered(Package::Openai, messages()),
            ["<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>\
              <|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|><|start|>assistant"]
        );
    }

    #[test]
    fn thoughts_in_front_of_an_answer_are_dropped() {
        let turn = |n: &str| vec![Message::text(Role::Assistant, n).on("analysis"), Message::text(Role::Assistant, n).on("final")];
        let two = [turn("1"), turn("2")].concat();
        let three = [two.clone(), vec![Message::text(Role::User, "q"), Message::text(Role::Assistant, "3").on("analysis")]].concat();
        let thoughts = |package, messages: &Vec<Message>| rendered(package, messages.clone()).concat().matches("analysis").count();
        assert_eq!((thoughts(Package::Vllm, &two), thoughts(Package::Openai, &two)), (0, 1));
        assert_eq!((thoughts(Package::Vllm, &three), thoughts(Package::Openai, &three)), (1, 3));
    }

    #[test]
    fn a_name_of_a_special_token_in_a_function_is_refused_as_vllm_does() {
        let nothing = Map::new();
        let convention = Convention::of_test(Engine::Vllm, "gpt_oss", &nothing);
        assert!(render(Package::Vllm, &convention, vec![Message::call("a<|end|>", "")]).is_err());
        assert!(render(Package::Openai, &convention, vec![Message::call("a<|end|>", "")]).is_ok());
        assert!(render(Package::Openai, &convention, vec![Message::text(Role::Tool, "")]).is_err());
    }
}
