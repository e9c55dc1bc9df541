//! What kvatlas needs of the `tokenizers` and `minijinja` crates, behind the C interface of `kvatlas_text.h`, which is
//! the manual. Here are its functions alone: each looks at its arguments, catches panics and turns errors into codes.

mod added;
mod chat;
mod cuts;
mod encoder;
mod fast_hash;
mod merges;
mod own;
mod pattern;
mod python;
mod rules;

use std::os::raw::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a call failed, with the code that absl::StatusCode gives it.
pub struct Failure {
    pub code: c_int,
    pub text: String,
}

impl Failure {
    pub fn invalid(text: impl Into<String>) -> Self {
        Failure { code: 3, text: text.into() }
    }
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

/// Runs `body`; what it fails with, a panic included, goes to `error`.
fn guarded(error: Sink, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
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

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_template_new(
    source: View,
    out: *mut *mut chat::Template,
    error: Sink,
) -> c_int {
    guarded(error, || {
        let made = chat::Template::new(source.text("the chat template")?)?;
        *out = Box::into_raw(Box::new(made));
        Ok(())
    })
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_template_free(template: *mut chat::Template) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

/// # Safety
/// As kvatlas_text.h says.
#[no_mangle]
pub unsafe extern "C" fn kvatlas_template_render(
    template: *const chat::Template,
    variables: View,
    now: i64,
    out: Sink,
    error: Sink,
) -> c_int {
    guarded(error, || {
        out.put(&(*template).render(variables.text("the template's variables")?, now)?);
        Ok(())
    })
}
