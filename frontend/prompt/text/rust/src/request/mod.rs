//! The prompt that an engine reads of a request: from the body of a client to the text, or the ids,
//! whose blocks the engine caches.
//!
//!   body ─▶ Json ─▶ convention of the engine (by path) ─▶ Chat ─▶ transformers::render ─▶ Reading
//!                      vllm*, sglang*, plain                 a chat as a template gets it      parts that are encoded one by one
//!
//! *Truth*: the text is the engine's own, or there is none. INVALID_ARGUMENT: the engine refuses
//! such a request, too. UNIMPLEMENTED: it takes the request, and what it reads cannot be said here.
//! Fields that do not change the prompt are checked as well, as a refused request has no prompt.
//!
//! *How to read these files*: each rule names the file and function of the engine that it follows.
//! Where an engine's new version changes that function, the rule changes with it. What pydantic or
//! orjson do to a body before the engine's own code sees it is part of the convention: it decides
//! on the order of keys, on null for missing ones, and on which of several types a value becomes,
//! all of which templates can print.

pub mod harmony;
pub mod plain;
pub mod sglang;
pub mod transformers;
pub mod vllm;

use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `apply_chat_template` of transformers, without what an engine does before it.
    Plain,
    Vllm,
    Sglang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Completions,
    Chat,
    Responses,
    Messages,
    /// SGLang's own `/generate`.
    Generate,
}

/// The values of `include` of the Responses API (openai.types.responses.ResponseIncludable).
pub const RESPONSES_INCLUDE: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
];

/// How the engine was started, as far as that changes what it reads, and what this process adds.
/// One for each request.
pub struct Convention<'a> {
    pub engine: Engine,
    /// SGLang's --reasoning-parser and --tool-call-parser; empty: started without.
    pub reasoning_parser: &'a str,
    pub tool_call_parser: &'a str,
    /// `model_type` of the model's config.json.
    pub model_type: &'a str,
    /// The model's folder has a tekken.json or a tokenizer.model.v*: vLLM encodes with
    /// mistral_common, where it is such a folder as Mistral publishes (tokenizers/registry.py).
    pub mistral_tokenizer: bool,
    /// Variables of templates that every request has unless it says another value
    /// (--default-chat-template-kwargs).
    pub default_kwargs: &'a Map,
    /// Whether a request's own `chat_template` is rendered.
    pub trust_templates: bool,
    /// Seconds since 1970, for templates that print a date.
    pub now: i64,
    /// The longest prompt in tokens that the engine takes; 0: not known.
    pub context_max: usize,
}

#[cfg(test)]
impl<'a> Convention<'a> {
    /// An engine that was started without options.
    pub fn of_test(engine: Engine, model_type: &'a str, default_kwargs: &'a Map) -> Self {
        Convention {
            engine,
            reasoning_parser: "",
            tool_call_parser: "",
            model_type,
            mistral_tokenizer: false,
            default_kwargs,
            trust_templates: false,
            now: 0,
            context_max: 0,
        }
    }
}

/// A conversation as a chat template gets it; what every convention makes of a request.
#[derive(Clone, Debug)]
pub struct Chat {
    pub messages: Vec<Map>,
    pub tools: Option<Vec<Json>>,
    /// Variables beside messages and tools.
    pub kwargs: Map,
    /// The request's own.
    pub chat_template: Option<String>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
}

impl Default for Chat {
    fn default() -> Self {
        Chat {
            messages: vec![],
            tools: None,
            kwargs: Map::new(),
            chat_template: None,
            add_generation_prompt: true,
            continue_final_message: false,
        }
    }
}

/// A part of a prompt that is encoded by itself; the ids of the parts follow each other. Nearly
/// every prompt has one part.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Names of special tokens in the text are these tokens. `around`: with what the tokenizer's
    /// post-processor adds (BOS and its like).
    Text { text: String, around: bool },
    Ids(Vec<u32>),
}

/// Which tokens the engine keeps of a prompt that is too long. The cut is made by the caller, which
/// has the tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Truncate {
    KeepLast(usize),
    KeepFirst(usize),
    /// The last tokens of the text, so many that with what the tokenizer puts around it there are
    /// no more than this.
    KeepLastOfText(usize),
}

/// The prompt that the engine reads of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub parts: Vec<Part>,
    pub truncate: Option<Truncate>,
}

impl Reading {
    pub fn text(text: impl Into<String>, around: bool) -> Self {
        Reading { parts: vec![Part::Text { text: text.into(), around }], truncate: None }
    }
}

/// The prompt of a body; of several prompts the first one. The body is parsed as the engine parses
/// it: SGLang reads requests with orjson, others as Python's json does.
pub fn read(templates: &Templates, convention: &Convention, path: Path, body: &str) -> Result<Reading, Failure> {
    let body = match convention.engine {
        // srt/entrypoints/http_server.py, ORJSONRequest.
        Engine::Sglang => Json::parse_orjson(body)?,
        _ => Json::parse(body)?,
    };
    let Json::Map(body) = body else {
        return Err(Failure::invalid("the body is not a JSON object"));
    };
    match convention.engine {
        Engine::Plain => plain::read(templates, convention, path, body),
        Engine::Vllm => vllm::read(templates, convention, path, body),
        Engine::Sglang => sglang::read(templates, convention, path, body),
    }
}

/// A refusal that names a field.
pub fn wrong(field: &str, what: &str) -> Failure {
    Failure::invalid(format!("{field} is {what}"))
}
