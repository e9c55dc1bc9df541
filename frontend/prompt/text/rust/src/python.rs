//! Behaviour of Python that templates rely on: JSON, numbers, white space, methods and dates. Each
//! function says which one of Python it is. Where the outcome of Python is an exception, the
//! outcome here is an error, which refuses the request.

use crate::json::{BigInt, Dict, OddFloat};
use crate::work;
use minijinja::value::{from_args, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use regex::Regex;
use std::borrow::Cow;
use std::fmt::Write;
use std::sync::LazyLock;

/// The arguments of json.dumps. The default is that of transformers' `tojson`.
pub struct JsonStyle {
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle {
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// Appends a value as json.dumps writes it. Maps keep the order of their keys; a key that is no
/// text becomes one, as in Python. `depth`: of indentation.
pub fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    work::step();
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number_text(value)),
        ValueKind::String => write_text(value.as_str().unwrap_or(""), style.ensure_ascii, out),
        ValueKind::Seq => {
            let mut items = value.try_iter()?;
            write_items('[', ']', style, depth, out, |out| match items.next() {
                Some(item) => write_json(&item, style, depth + 1, out).map(|()| true),
                None => Ok(false),
            })?;
        }
        ValueKind::Map if !style.sort_keys && value.downcast_object_ref::<Dict>().is_some() => {
            let pairs = value.downcast_object_ref::<Dict>().map_or(&[][..], Dict::pairs);
            let mut pairs = pairs.iter();
            write_items('{', '}', style, depth, out, |out| {
                let Some((key, value)) = pairs.next() else {
                    return Ok(false);
                };
                write_text(key, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                write_json(value, style, depth + 1, out).map(|()| true)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort_by_key(|key| key.to_string());
            }
            let mut keys = keys.into_iter();
            write_items('{', '}', style, depth, out, |out| {
                let Some(key) = keys.next() else {
                    return Ok(false);
                };
                let name = match key.kind() {
                    ValueKind::Bool => (if key.is_true() { "true" } else { "false" }).to_owned(),
                    ValueKind::None => "null".to_owned(),
                    ValueKind::Number => number_text(&key),
                    _ => key.to_string(),
                };
                write_text(&name, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                write_json(&value.get_item(&key)?, style, depth + 1, out).map(|()| true)
            })?;
        }
        ValueKind::Plain if is_odd_number(value) => out.push_str(&number_text(value)),
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: {other} is not JSON serializable"),
            ))
        }
    }
    Ok(())
}

/// Brackets around what `item` writes, until it says that there is no more.
fn write_items(
    open: char,
    close: char,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut item: impl FnMut(&mut String) -> Result<bool, Error>,
) -> Result<(), Error> {
    out.push(open);
    let mut is_empty = true;
    loop {
        let before = out.len();
        if !is_empty {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        if !item(out)? {
            out.truncate(before);
            break;
        }
        is_empty = false;
    }
    if !is_empty {
        new_line(style, depth, out);
    }
    out.push(close);
    Ok(())
}

/// Nothing without an indent.
fn new_line(style: &JsonStyle, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

/// A quoted string. Characters beyond the Basic Multilingual Plane are escaped as two units of
/// UTF-16.
fn write_text(text: &str, ensure_ascii: bool, out: &mut String) {
    let is_escaped = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\' || (ensure_ascii && byte > b'~');
    out.push('"');
    let mut rest = text;
    loop {
        // The byte begins a character or is ASCII, so the text can be cut in front of it.
        let at = rest.bytes().position(is_escaped).unwrap_or(rest.len());
        out.push_str(&rest[..at]);
        let Some(c) = rest[at..].chars().next() else {
            break;
        };
        rest = &rest[at + c.len_utf8()..];
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// As `json.dumps` writes a number.
fn number_text(value: &Value) -> String {
    match float_text(value) {
        Some(text) => match text.as_str() {
            "nan" => "NaN".into(),
            "inf" => "Infinity".into(),
            "-inf" => "-Infinity".into(),
            _ => text,
        },
        None => value.to_string(),
    }
}

/// A number that minijinja does not know as one.
pub fn is_odd_number(value: &Value) -> bool {
    value.downcast_object_ref::<BigInt>().is_some() || value.downcast_object_ref::<OddFloat>().is_some()
}

/// Python's repr of a float; None for what is no float.
pub fn float_text(value: &Value) -> Option<String> {
    if let Some(odd) = value.downcast_object_ref::<OddFloat>() {
        return Some(odd.1.clone());
    }
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok().map(float_repr)
}

/// Python's repr of a float.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Rust prints the same digits as Python and changes to exponents at the same sizes; only the
    // form of the exponent differs.
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{}e{exponent:+03}", digits.strip_suffix(".0").unwrap_or(digits))
}

/// Python's str(value).
pub fn text(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(odd_text(value).unwrap_or_else(|| value.to_string())),
    }
}

/// Python's str(value) where minijinja may print the value otherwise: a float, a list or a dict.
pub fn odd_text(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => Some(as_repr(value.to_string())),
        _ => float_text(value),
    }
}

/// What minijinja prints of a list or a dict, as Python prints it. The same but for texts within:
/// repr() escapes every character that str.isprintable() does not count (Objects/unicodectype.c:
/// categories "other" and "separator", without the blank).
pub fn as_repr(text: String) -> String {
    static UNPRINTABLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[[\p{C}\p{Z}]--[ ]]").expect("a class of characters"));
    if text.is_ascii() || !UNPRINTABLE.is_match(&text) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !UNPRINTABLE.is_match(c.encode_utf8(&mut [0; 4])) {
            out.push(c);
            continue;
        }
        let _ = match c as u32 {
            code @ ..=0xff => write!(out, "\\x{code:02x}"),
            code @ ..=0xffff => write!(out, "\\u{code:04x}"),
            code => write!(out, "\\U{code:08x}"),
        };
    }
    out
}

/// Characters that a text is padded to at most.
const PADDED_MAX: usize = 1 << 20;

/// str.isspace: also the four separators U+001C to U+001F.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// str.strip, lstrip and rstrip: of white space, or of any of `chars`.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right {
        text.trim_end_matches(matches)
    } else {
        text
    }
}

/// str.title: the first letter of each run of letters.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        match in_word {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        in_word = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// str.rsplit: at most `most` splits from the right. Without a separator at runs of white space.
fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Result<Value, Error> {
    let mut left = most.filter(|most| *most >= 0).unwrap_or(i64::MAX);
    let mut words = vec![];
    let mut rest = Some(text);
    while let Some(before) = rest {
        let word = match separator {
            Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
            Some(separator) if left > 0 => before.rsplit_once(separator),
            Some(_) => None,
            None => {
                let before = strip(before, None, false, true);
                if before.is_empty() {
                    break;
                }
                match before.rfind(is_space) {
                    Some(at) if left > 0 => before[at..].chars().next().map(|c| (&before[..at], &before[at + c.len_utf8()..])),
                    _ => {
                        words.push(before);
                        break;
                    }
                }
            }
        };
        left -= 1;
        rest = word.map(|(before, _)| before);
        words.push(word.map_or(before, |(_, word)| word));
    }
    Ok(words.into_iter().rev().map(Value::from).collect())
}

/// str.zfill, ljust, rjust and center. Widths above PADDED_MAX are refused rather than filled: a
/// template could ask for gigabytes.
fn pad(text: &str, name: &str, width: i64, fill: Option<&str>) -> Result<String, Error> {
    let mut chars = fill.unwrap_or(" ").chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{name}: the fill is not one character")));
    };
    let length = text.chars().count();
    let width = usize::try_from(width).unwrap_or(0);
    if width > PADDED_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{name}: more than {PADDED_MAX} characters")));
    }
    let missing = width.saturating_sub(length);
    let fills = |count: usize| fill.to_string().repeat(count);
    Ok(match name {
        "zfill" => {
            let sign = usize::from(text.starts_with(['+', '-']));
            format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..])
        }
        "ljust" => format!("{text}{}", fills(missing)),
        "rjust" => format!("{}{text}", fills(missing)),
        // CPython puts the odd one to the left where the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fills(left), fills(missing - left))
        }
    })
}

/// Methods of Python's types that minijinja lacks, or that its crate of them does in another way.
/// Called by minijinja for every method it does not know; what is not here is left to that crate.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    work::step();
    if let Some(text) = value.as_str() {
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let (chars,): (Option<&str>,) = from_args(args)?;
                return Ok(Value::from(strip(text, chars, name != "rstrip", name != "lstrip")));
            }
            // Splits at Python's white space; with arguments the crate does it.
            "split" if args.is_empty() => {
                let words = text.split(is_space).filter(|word| !word.is_empty());
                return Ok(words.map(Value::from).collect());
            }
            "swapcase" => {
                let () = from_args(args)?;
                let swap = |c: char| match c.is_uppercase() {
                    true => c.to_lowercase().to_string(),
                    false => c.to_uppercase().to_string(),
                };
                return Ok(Value::from(text.chars().map(swap).collect::<String>()));
            }
            "title" => {
                let () = from_args(args)?;
                return Ok(Value::from(title(text)));
            }
            "casefold" if text.is_ascii() => {
                let () = from_args(args)?;
                return Ok(Value::from(text.to_ascii_lowercase()));
            }
            "index" | "rindex" => {
                let (what,): (&str,) = from_args(args)?;
                let found = if name == "index" { text.find(what) } else { text.rfind(what) };
                let at = found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
                return Ok(Value::from(text[..at].chars().count()));
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                if separator.is_empty() {
                    return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
                }
                let parts = match name {
                    "partition" => text.split_once(separator).map_or([text, "", ""], |(before, after)| [before, separator, after]),
                    _ => text.rsplit_once(separator).map_or(["", "", text], |(before, after)| [before, separator, after]),
                };
                return Ok(Value::from(Tuple::from(parts.map(Value::from))));
            }
            "rsplit" => {
                let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
                return rsplit(text, separator, most);
            }
            "zfill" | "ljust" | "rjust" | "center" => {
                let (width, fill): (i64, Option<&str>) = from_args(args)?;
                return pad(text, name, width, fill).map(Value::from);
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// datetime.fromtimestamp(now).strftime(format), in the local time zone.
/// A result of more than 1,024 bytes is empty, as strftime of C then gives nothing.
pub fn strftime(format: &str, now: i64) -> Result<String, Error> {
    let failed = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {what}"));
    let format = std::ffi::CString::new(format).map_err(|_| failed("a zero byte"))?;
    if format.as_bytes().is_empty() {
        return Ok(String::new());
    }
    let mut buffer = vec![0u8; 1024];
    // SAFETY: both structures are plain memory, and strftime writes at most as many bytes as the
    // buffer has.
    let length = unsafe {
        let mut broken_down: libc::tm = std::mem::zeroed();
        let seconds: libc::time_t = now;
        if libc::localtime_r(&seconds, &mut broken_down).is_null() {
            return Err(failed("no such time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &broken_down)
    };
    buffer.truncate(length);
    String::from_utf8(buffer).map_err(|_| failed("not UTF-8"))
}
