//! The C interface of `kvatlas_text.h`, which is the manual. This file has its functions alone:
//! each checks its arguments, catches panics and turns errors into codes. The structs are laid out
//! as in the header and must change with it; handles are boxes that C++ holds as raw pointers.

mod added;
pub mod chat;
mod cuts;
pub mod encoder;
mod fast_hash;
pub mod json;
mod merges;
mod own;
mod pattern;
pub mod python;
pub mod request;
mod rules;
mod template_ast;
mod template_facts;
pub mod template_facts_sglang;
pub mod work;

use std::os::raw::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a call failed. `code` is the number that absl::StatusCode has for it: 3 invalid argument, 4
/// deadline exceeded, 12 unimplemented, 13 internal.
#[derive(Debug)]
pub struct Failure {
    pub code: c_int,
    pub text: String,
}

impl Failure {
    /// The engine refuses the request, too, or a file cannot be used.
    pub fn invalid(text: impl Into<String>) -> Self {
        Failure { code: 3, text: text.into() }
    }
    /// The time of the call is over (`work`).
    pub fn spent() -> Self {
        Failure { code: 4, text: "the time to make tokens of the prompt is over".to_owned() }
    }
    /// A request that an engine may take, and that cannot be read here.
    pub fn unknown_here(text: impl Into<String>) -> Self {
        Failure { code: 12, text: text.into() }
    }
    /// A bug, or a library that failed for no reason of the input.
    pub fn internal(text: impl Into<String>) -> Self {
        Failure { code: 13, text: text.into() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const c_char,
    size: usize,
}

impl View {
    /// SAFETY: `data` points to `size` bytes that live as long as the call.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data as *const u8, self.size)
    }

    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes()).map_err(|e| {
            Failure::invalid(format!("{what} is not UTF-8: a bad sequence at byte {}", e.valid_up_to()))
        })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sink {
    to: *mut c_void,
    text: unsafe extern "C" fn(*mut c_void, *const c_char, usize),
}

impl Sink {
    fn put(self, text: &str) {
        unsafe { (self.text)(self.to, text.as_ptr() as *const c_char, text.len()) }
    }
}

/// Runs `body` of a C function. A failure goes to `error` as text and is returned as its code; 0:
/// none. No panic passes: unwinding into C++ is undefined. A panic of `work::Spent` is the
/// deadline, any other is an internal error. The handles stay usable after a panic: they are
/// immutable but for memories of words, which are taken out while they are used.
fn guarded(error: Sink, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) if panic.is::<work::Spent>() => Failure::spent(),
        Err(panic) => {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no reason given");
            Failure::internal(format!("the tokenizer library gave up: {said}"))
        }
    };
    error.put(&failure.text);
    failure.code
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_tokenizer_new(
    json: View,
    options: View,
    out: *mut *mut encoder::Encoder,
    error: Sink,
) -> c_int {
    guarded(error, || {
        let made = encoder::Encoder::new(json.bytes(), options.text("the options")?)?;
        *out = Box::into_raw(Box::new(made));
        Ok(())
    })
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_tokenizer_free(tokenizer: *mut encoder::Encoder) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(tokenizer))));
    }
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_tokenizer_describe(
    tokenizer: *const encoder::Encoder,
    out: Sink,
    error: Sink,
) -> c_int {
    guarded(error, || {
        out.put(&(*tokenizer).describe().to_string());
        Ok(())
    })
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_tokenizer_encode(
    tokenizer: *const encoder::Encoder,
    text: View,
    continues: c_int,
    piece_bytes_min: usize,
    to: *mut c_void,
    piece: unsafe extern "C" fn(*mut c_void, usize, *const u32, usize),
    error: Sink,
) -> c_int {
    guarded(error, || {
        (*tokenizer).encode(text.text("the text")?, continues != 0, piece_bytes_min, &mut |end, ids| unsafe {
            piece(to, end, ids.as_ptr(), ids.len())
        })
    })
}

/// As kvatlas_text.h says.
#[no_mangle]
pub extern "C" fn kvatlas_work_begin(microseconds: u64) {
    work::begin(std::time::Duration::from_micros(microseconds));
}

/// As kvatlas_text.h says.
#[no_mangle]
pub extern "C" fn kvatlas_work_end() {
    work::end();
}

/// As kvatlas_text.h says.
#[repr(C)]
pub struct CConvention {
    engine: c_int,
    path: c_int,
    reasoning_parser: View,
    tool_call_parser: View,
    model_type: View,
    mistral_tokenizer: c_int,
    default_kwargs: View,
    trust_templates: c_int,
    now: i64,
    context_max: usize,
}

/// As kvatlas_text.h says.
#[repr(C)]
pub struct CReading {
    to: *mut c_void,
    text: unsafe extern "C" fn(*mut c_void, *const c_char, usize, c_int),
    ids: unsafe extern "C" fn(*mut c_void, *const u32, usize),
    keep_last: usize,
    keep_first: usize,
    keep_last_of_text: usize,
}

/// A JSON object, or none for an empty text.
fn map_of(text: &str, what: &str) -> Result<json::Map, Failure> {
    match text.is_empty() {
        true => Ok(json::Map::new()),
        false => match json::Json::parse(text) {
            Ok(json::Json::Map(map)) => Ok(map),
            Ok(_) => Err(Failure::invalid(format!("{what} are not a JSON object"))),
            Err(failure) => Err(Failure::invalid(format!("{what}: {}", failure.text))),
        },
    }
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_templates_new(
    sources: View,
    special_tokens: View,
    out: *mut *mut chat::Templates,
    error: Sink,
) -> c_int {
    guarded(error, || {
        let sources = map_of(sources.text("the chat templates")?, "the chat templates")?;
        let special_tokens = map_of(special_tokens.text("the special tokens")?, "the special tokens")?;
        *out = Box::into_raw(Box::new(chat::Templates::new(&sources, special_tokens)?));
        Ok(())
    })
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_templates_free(templates: *mut chat::Templates) {
    if !templates.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(templates))));
    }
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_request_read(
    templates: *const chat::Templates,
    given: *const CConvention,
    body: View,
    out: *mut CReading,
    error: Sink,
) -> c_int {
    guarded(error, || {
        let given = &*given;
        let default_kwargs = map_of(given.default_kwargs.text("the template's variables")?, "the template's variables")?;
        let convention = request::Convention {
            engine: match given.engine {
                0 => request::Engine::Plain,
                1 => request::Engine::Vllm,
                2 => request::Engine::Sglang,
                other => return Err(Failure::invalid(format!("no engine has the number {other}"))),
            },
            reasoning_parser: given.reasoning_parser.text("the reasoning parser")?,
            tool_call_parser: given.tool_call_parser.text("the tool call parser")?,
            model_type: given.model_type.text("the model type")?,
            mistral_tokenizer: given.mistral_tokenizer != 0,
            default_kwargs: &default_kwargs,
            trust_templates: given.trust_templates != 0,
            now: given.now,
            context_max: given.context_max,
        };
        let path = match given.path {
            0 => request::Path::Completions,
            1 => request::Path::Chat,
            2 => request::Path::Responses,
            3 => request::Path::Messages,
            4 => request::Path::Generate,
            other => return Err(Failure::invalid(format!("no path has the number {other}"))),
        };
        let reading = request::read(&*templates, &convention, path, body.text("the body")?)?;
        // Nothing is written to `out` before this: the request was read without an error.
        let out = &mut *out;
        match reading.truncate {
            None => {}
            Some(request::Truncate::KeepLast(tokens)) => out.keep_last = tokens,
            Some(request::Truncate::KeepFirst(tokens)) => out.keep_first = tokens,
            Some(request::Truncate::KeepLastOfText(tokens)) => out.keep_last_of_text = tokens,
        }
        for part in reading.parts {
            match part {
                request::Part::Ids(ids) => (out.ids)(out.to, ids.as_ptr(), ids.len()),
                request::Part::Text { text, around } => {
                    (out.text)(out.to, text.as_ptr() as *const c_char, text.len(), c_int::from(around))
                }
            }
        }
        Ok(())
    })
}
