//! JSON as Python's `json` reads and writes it: the objects that engines hand to their templates.
//!
//! No crate reads it so: integers of any size, floats beyond f64 as infinity, the last of two equal
//! keys at the place of the first. What Python takes and text here cannot hold (half a pair of
//! surrogates, `NaN`) is told apart from what is no JSON.
//! `Json` is the value; `Parser` makes it of text, by the rules of Python's json or of orjson;
//! `into_value` hands it to templates, with objects of our own (`Dict`, `OddFloat`, `BigInt`) where
//! minijinja's values behave otherwise than Python's.

use crate::python::{self, float_repr};
use crate::{work, Failure};
use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Levels of nesting. Python's own limit follows its stack (about 1,000); recursion costs stack
/// here, too, so deeper bodies are UNIMPLEMENTED, not refused.
const DEPTH_MAX: usize = 256;
/// Python refuses integers of more digits (sys.get_int_max_str_digits).
const DIGITS_MAX: usize = 4300;
/// Up to so many keys an object is searched key by key, which is faster than hashing. A larger one
/// gets a table while it is read, so that a body of many keys costs no square of them.
const COMPARED_KEYS: usize = 16;

/// A value of JSON. Texts are shared: a clone copies none.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Int(i128),
    /// The digits of an integer that i128 does not hold.
    BigInt(Arc<str>),
    Float(f64),
    Str(Arc<str>),
    List(Vec<Json>),
    Map(Map),
}

/// An object: pairs in the order of their first appearance, each key once. Looking a key up is
/// linear.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map(Vec<(Arc<str>, Json)>);

impl Map {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(name, _)| &**name == key).map(|(_, value)| value)
    }
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.0.iter_mut().find(|(name, _)| &**name == key).map(|(_, value)| value)
    }
    /// The value that is there and not null: most fields of requests treat null as missing.
    pub fn some(&self, key: &str) -> Option<&Json> {
        self.get(key).filter(|value| !matches!(value, Json::Null))
    }
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Json::as_str)
    }
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }
    /// A key that is there keeps its place.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: impl Into<Json>) {
        let key = key.into();
        match self.get_mut(&key) {
            Some(place) => *place = value.into(),
            None => self.0.push((key, value.into())),
        }
    }
    pub fn remove(&mut self, key: &str) -> Option<Json> {
        let at = self.0.iter().position(|(name, _)| &**name == key)?;
        Some(self.0.remove(at).1)
    }
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Json) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
    }
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Json)> {
        self.0.iter_mut().map(|(key, value)| (&**key, value))
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// As Python's dict.update.
    pub fn update(&mut self, other: &Map) {
        self.extend(other.0.iter().cloned());
    }
    /// Inserts pairs in turn, in time linear in the pairs of both maps.
    pub fn extend(&mut self, pairs: impl IntoIterator<Item = (Arc<str>, Json)>) {
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        for (key, value) in pairs {
            if self.0.len() < COMPARED_KEYS {
                self.insert(key, value);
                continue;
            }
            for (at, (name, _)) in self.0.iter().enumerate().skip(places.len()) {
                places.insert(name.clone(), at);
            }
            match places.get(&key) {
                Some(at) => self.0[*at].1 = value,
                None => self.0.push((key, value)),
            }
        }
    }
}

impl<K: Into<Arc<str>>, V: Into<Json>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Map::new();
        map.extend(pairs.into_iter().map(|(key, value)| (key.into(), value.into())));
        map
    }
}

impl IntoIterator for Map {
    type Item = (Arc<str>, Json);
    type IntoIter = std::vec::IntoIter<(Arc<str>, Json)>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Json::Str(text.into())
    }
}
impl From<String> for Json {
    fn from(text: String) -> Self {
        Json::Str(text.into())
    }
}
impl From<Arc<str>> for Json {
    fn from(text: Arc<str>) -> Self {
        Json::Str(text)
    }
}
impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Json::Bool(value)
    }
}
impl From<Map> for Json {
    fn from(map: Map) -> Self {
        Json::Map(map)
    }
}
impl From<Vec<Json>> for Json {
    fn from(items: Vec<Json>) -> Self {
        Json::List(items)
    }
}
impl From<Option<Json>> for Json {
    fn from(value: Option<Json>) -> Self {
        value.unwrap_or(Json::Null)
    }
}

impl Json {
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text),
            _ => None,
        }
    }
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Json::Map(map) => Some(map),
            _ => None,
        }
    }
    pub fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(items) => Some(items),
            _ => None,
        }
    }
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Json::Int(value) => Some(*value),
            _ => None,
        }
    }
    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }
    /// Python's bool(value).
    pub fn is_true(&self) -> bool {
        match self {
            Json::Null => false,
            Json::Bool(value) => *value,
            Json::Int(value) => *value != 0,
            Json::BigInt(_) => true,
            Json::Float(value) => *value != 0.0,
            Json::Str(text) => !text.is_empty(),
            Json::List(items) => !items.is_empty(),
            Json::Map(map) => !map.is_empty(),
        }
    }

    /// As Python's json.loads. INVALID_ARGUMENT: text that it refuses. UNIMPLEMENTED: text that it
    /// takes and that cannot be held here.
    pub fn parse(text: &str) -> Result<Json, Failure> {
        // json.loads of bytes skips a byte order mark in front.
        Self::parse_as(text.strip_prefix('\u{feff}').unwrap_or(text), false)
    }

    /// As the Python package `orjson` (3.13) reads it: no NaN, no infinity, no half of a pair of
    /// surrogates, no mark in front; integers that 64 bits do not hold are floats.
    pub fn parse_orjson(text: &str) -> Result<Json, Failure> {
        Self::parse_as(text, true)
    }

    /// The value must be all of the text, but for white space.
    fn parse_as(text: &str, orjson: bool) -> Result<Json, Failure> {
        let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, orjson };
        parser.skip_space();
        let value = parser.value(0)?;
        parser.skip_space();
        match parser.at == text.len() {
            true => Ok(value),
            false => Err(parser.wrong()),
        }
    }

    /// `json.dumps(value, ensure_ascii=False)` with Python's separators, or with those of a compact
    /// form.
    pub fn dump(&self, style: &python::JsonStyle) -> String {
        let mut out = String::new();
        // A value of JSON can always be written; only objects of templates cannot.
        let _ = python::write_json(&self.clone().into_value(), style, 0, &mut out);
        out
    }

    /// As templates get it. Integers that fit are minijinja's own; others are objects that can only
    /// be printed and tested.
    pub fn into_value(self) -> Value {
        work::step();
        match self {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(value),
            Json::Int(value) => match i64::try_from(value) {
                Ok(small) => Value::from(small),
                Err(_) => Value::from(value),
            },
            Json::BigInt(digits) => Value::from_object(BigInt(digits)),
            Json::Float(value) => {
                let text = float_repr(value);
                match text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
                    true => Value::from_object(OddFloat(value, text)),
                    false => Value::from(value),
                }
            }
            Json::Str(text) => Value::from(text),
            Json::List(items) => Value::from(items.into_iter().map(Json::into_value).collect::<Vec<_>>()),
            Json::Map(map) => Value::from_object(Dict {
                pairs: map.0.into_iter().map(|(key, value)| (key, value.into_value())).collect(),
                places: OnceLock::new(),
            }),
        }
    }
}

/// A float that minijinja prints otherwise than Python, alone and within a list or a map that is
/// printed whole: with an exponent, or not finite.
#[derive(Debug)]
pub struct OddFloat(pub f64, pub String);

impl Object for OddFloat {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }
    fn is_true(self: &Arc<Self>) -> bool {
        self.0 != 0.0
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

/// A map as templates get it. minijinja's own map hashes each key when it is made, which costs more
/// than the few look-ups of most keys.
#[derive(Debug)]
pub struct Dict {
    pairs: Vec<(Arc<str>, Value)>,
    /// The table of a large map, made at the first look-up.
    places: OnceLock<HashMap<Arc<str>, usize>>,
}

impl Dict {
    pub fn pairs(&self) -> &[(Arc<str>, Value)] {
        &self.pairs
    }

    fn get(&self, key: &str) -> Option<&Value> {
        if self.pairs.len() <= COMPARED_KEYS {
            return self.pairs.iter().find(|(name, _)| &**name == key).map(|(_, value)| value);
        }
        let places = self
            .places
            .get_or_init(|| self.pairs.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect());
        places.get(key).map(|at| &self.pairs[*at].1)
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?).cloned()
    }
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.get(key).cloned()
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_key_value_enumerator(|this| {
            Box::new(this.pairs.iter().map(|(key, value)| (Value::from(key.clone()), value.clone())))
        })
    }
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.pairs.len())
    }
    /// Where no filter and no formatter of ours is asked: behind `~`.
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Pairs<'a>(&'a Dict);
        impl fmt::Debug for Pairs<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_map().entries(self.0.pairs.iter().map(|(key, value)| (Value::from(key.clone()), value))).finish()
            }
        }
        // Of nested ones the outermost escapes, so that no text is copied for each level.
        thread_local!(static IS_WITHIN: Cell<bool> = const { Cell::new(false) });
        if IS_WITHIN.replace(true) {
            return write!(f, "{:?}", Pairs(self));
        }
        let text = format!("{:?}", Pairs(self));
        IS_WITHIN.set(false);
        f.write_str(&python::as_repr(text))
    }
}

/// An integer beyond i128, as its digits. Templates can print and test it; arithmetic with it
/// fails.
#[derive(Debug)]
pub struct BigInt(pub Arc<str>);

impl Object for BigInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A recursive descent over the text. `at` is always at a character boundary when a value begins.
/// `orjson`: by the rules of that package.
struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    orjson: bool,
}

impl<'a> Parser<'a> {
    /// The refusal, with the place.
    fn wrong(&self) -> Failure {
        Failure::invalid(match self.bytes.is_empty() {
            true => "the body is empty; expected a JSON object".to_owned(),
            false => format!("the body is not JSON: wrong at byte {}", self.at + 1),
        })
    }

    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Moves behind `word`, if it is next.
    fn take(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// A value, without white space around it. Each one is a step of `work`.
    fn value(&mut self, depth: usize) -> Result<Json, Failure> {
        if depth > DEPTH_MAX {
            return Err(Failure::unknown_here(format!("JSON of more than {DEPTH_MAX} levels")));
        }
        work::step();
        match self.bytes.get(self.at) {
            Some(b'"') => Ok(Json::Str(self.string()?.into())),
            Some(b'{') => self.map(depth),
            Some(b'[') => self.list(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') if self.take("true") => Ok(Json::Bool(true)),
            Some(b'f') if self.take("false") => Ok(Json::Bool(false)),
            Some(b'n') if self.take("null") => Ok(Json::Null),
            Some(b'N') if !self.orjson && self.take("NaN") => Ok(Json::Float(f64::NAN)),
            Some(b'I') if !self.orjson && self.take("Infinity") => Ok(Json::Float(f64::INFINITY)),
            _ => Err(self.wrong()),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, Failure> {
        self.at += 1;
        let mut items = vec![];
        self.skip_space();
        if self.take("]") {
            return Ok(Json::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take("]") {
                return Ok(Json::List(items));
            }
            if !self.take(",") {
                return Err(self.wrong());
            }
        }
    }

    /// The last of equal keys counts, at the place of the first. `places` is filled only once there
    /// are more than COMPARED_KEYS.
    fn map(&mut self, depth: usize) -> Result<Json, Failure> {
        self.at += 1;
        let mut pairs: Vec<(Arc<str>, Json)> = vec![];
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        self.skip_space();
        if self.take("}") {
            return Ok(Json::Map(Map(pairs)));
        }
        loop {
            self.skip_space();
            if self.bytes.get(self.at) != Some(&b'"') {
                return Err(self.wrong());
            }
            let key: Arc<str> = self.string()?.into();
            self.skip_space();
            if !self.take(":") {
                return Err(self.wrong());
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            // The place of an equal key, if there is one.
            let before = if pairs.len() < COMPARED_KEYS {
                pairs.iter().position(|(name, _)| *name == key)
            } else {
                for (at, (name, _)) in pairs.iter().enumerate().skip(places.len()) {
                    places.insert(name.clone(), at);
                }
                places.get(&key).copied()
            };
            match before {
                Some(at) => pairs[at].1 = value,
                None => pairs.push((key, value)),
            }
            self.skip_space();
            if self.take("}") {
                return Ok(Json::Map(Map(pairs)));
            }
            if !self.take(",") {
                return Err(self.wrong());
            }
        }
    }

    /// A number as Python's json matches one: a point without digits behind it, or an exponent
    /// without digits, is not part of the number, and what follows is then wrong. Integers are
    /// exact; orjson makes floats of those beyond 64 bits.
    fn number(&mut self) -> Result<Json, Failure> {
        let start = self.at;
        let negative = self.take("-");
        if negative && !self.orjson && self.take("Infinity") {
            return Ok(Json::Float(f64::NEG_INFINITY));
        }
        let digits = self.digits();
        // "01" is no number; "0" and "-0" are.
        let leading_zero = digits > 1 && self.bytes[self.at - digits] == b'0';
        if digits == 0 || leading_zero {
            return Err(self.wrong());
        }
        let mut is_float = false;
        if self.bytes.get(self.at) == Some(&b'.') && matches!(self.bytes.get(self.at + 1), Some(b'0'..=b'9')) {
            is_float = true;
            self.at += 1;
            self.digits();
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            let before = self.at;
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            match self.digits() {
                0 => self.at = before,
                _ => is_float = true,
            }
        }
        let text = &self.text[start..self.at];
        if is_float {
            return self.float(text);
        }
        match text.parse::<i128>() {
            Ok(value) if self.orjson && !(i64::MIN.into()..=u64::MAX.into()).contains(&value) => self.float(text),
            Err(_) if self.orjson => self.float(text),
            Ok(value) => Ok(Json::Int(value)),
            Err(_) if digits > DIGITS_MAX => Err(self.wrong()),
            Err(_) => Ok(Json::BigInt(text.into())),
        }
    }

    /// Python reads 1e400 as infinity; orjson refuses it.
    fn float(&self, text: &str) -> Result<Json, Failure> {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() || !self.orjson => Ok(Json::Float(value)),
            _ => Err(self.wrong()),
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    /// The text between quotation marks. Borrowed from the body unless it has escapes.
    fn string(&mut self) -> Result<Cow<'a, str>, Failure> {
        self.at += 1;
        let mut made = String::new();
        let mut start = self.at;
        loop {
            let rest = &self.bytes[self.at..];
            let found = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            // Control characters must be escaped.
            let found = rest[..found].iter().position(|byte| *byte < 0x20).unwrap_or(found);
            self.at += found;
            if self.at == self.bytes.len() {
                return Err(self.wrong());
            }
            match self.bytes[self.at] {
                b'"' => {
                    let last = &self.text[start..self.at];
                    self.at += 1;
                    if made.is_empty() {
                        return Ok(Cow::Borrowed(last));
                    }
                    made.push_str(last);
                    return Ok(Cow::Owned(made));
                }
                b'\\' => {
                    made.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    made.push(self.escape()?);
                    start = self.at;
                }
                _ => return Err(self.wrong()),
            }
        }
    }

    /// The character of an escape. Two units of a surrogate pair are one character; half a pair is
    /// a text that Python can hold and Rust cannot.
    fn escape(&mut self) -> Result<char, Failure> {
        let Some(byte) = self.bytes.get(self.at) else {
            return Err(self.wrong());
        };
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let mut code = first;
                if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
                    let before = self.at;
                    self.at += 2;
                    let second = self.unit()?;
                    match (0xdc00..0xe000).contains(&second) {
                        true => code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                        false => self.at = before,
                    }
                }
                char::from_u32(code).ok_or_else(|| match self.orjson {
                    true => self.wrong(),
                    false => Failure::unknown_here("half a pair of surrogates in a text"),
                })?
            }
            _ => return Err(self.wrong()),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, Failure> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or_else(|| self.wrong())?;
        let mut unit = 0;
        for digit in digits {
            let value = (*digit as char).to_digit(16).ok_or_else(|| self.wrong())?;
            unit = unit * 16 + value;
        }
        self.at += 4;
        Ok(unit)
    }
}

/// Python's str(value) of a number; None for what is none.
pub fn number_str(value: &Json) -> Option<String> {
    match value {
        Json::Int(value) => Some(value.to_string()),
        Json::BigInt(digits) => Some(digits.to_string()),
        Json::Float(value) => Some(float_repr(*value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(text: &str) -> String {
        match Json::parse(text) {
            Ok(json) => json.dump(&python::JsonStyle::default()),
            Err(failure) => format!("{}: {}", failure.code, failure.text),
        }
    }

    #[test]
    fn numbers_are_pythons() {
        assert_eq!(dumped("[1.0, 1e5, -0.0, 1e16, 1e-7, 1E400, -1e400]"), "[1.0, 100000.0, -0.0, 1e+16, 1e-07, Infinity, -Infinity]");
        assert_eq!(dumped("[NaN, Infinity, -Infinity]"), "[NaN, Infinity, -Infinity]");
        assert_eq!(dumped("[-0, 18446744073709551616, 100000000000000000000000000000000000000000]"),
                   "[0, 18446744073709551616, 100000000000000000000000000000000000000000]");
        for text in ["01", "-", "1.", ".5", "+1", "1e", "0x1"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts_at_the_place_of_the_first() {
        assert_eq!(dumped(r#"{"a": 1, "b": 2, "a": 3}"#), r#"{"a": 3, "b": 2}"#);
        let many: String = (0..100_000).map(|i| format!("\"k{i}\": 1, ")).collect();
        let Ok(Json::Map(map)) = Json::parse(&format!("{{{many}\"k5\": 7}}")) else { panic!() };
        assert_eq!(map.len(), 100_000);
        assert_eq!(map.get("k5"), Some(&Json::Int(7)));
    }

    #[test]
    fn a_map_of_many_keys_is_joined_to_another_in_no_square_of_them() {
        let mut map: Map = (0..20_000).map(|i| (format!("k{i}"), "a")).collect();
        let other: Map = (10_000..30_000).map(|i| (format!("k{i}"), "b")).collect();
        map.update(&other);
        assert_eq!(map.len(), 30_000);
        assert_eq!((map.text("k9999"), map.text("k10000")), (Some("a"), Some("b")));
        assert_eq!(map.iter().nth(10_000).map(|(key, _)| key), Some("k10000"));
    }

    #[test]
    fn orjson_knows_no_nan_and_makes_floats_of_long_integers() {
        for text in ["NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", &"1".repeat(400), "\u{feff}1", r#""\ud83d""#, r#""\udc00""#] {
            assert!(matches!(Json::parse_orjson(text), Err(Failure { code: 3, .. })), "{text}");
        }
        for (text, is) in [
            ("18446744073709551615", Json::Int(u64::MAX.into())),
            ("18446744073709551616", Json::Float(18446744073709551616.0)),
            ("-9223372036854775808", Json::Int(i64::MIN.into())),
            ("-9223372036854775809", Json::Float(-9223372036854775808.0)),
            ("1e-400", Json::Float(0.0)),
        ] {
            assert_eq!(Json::parse_orjson(text).ok(), Some(is), "{text}");
        }
    }

    #[test]
    fn texts() {
        assert_eq!(dumped(r#""a\u00e9\ud83d\ude00\n\/""#), "\"aé😀\\n/\"");
        assert!(dumped(r#""\ud83d""#).starts_with("12: "));
        assert!(dumped("\"\n\"").starts_with("3: "));
        assert!(dumped(&"[".repeat(DEPTH_MAX + 2)).starts_with("12: "));
        assert!(dumped("").starts_with("3: the body is empty"));
        assert!(dumped("[1,]").starts_with("3: "));
    }
}
