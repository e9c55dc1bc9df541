//! Chat templates as Hugging Face's `apply_chat_template` renders them: Jinja2 with `trim_blocks`
//! and `lstrip_blocks`, loop controls, `generation` blocks, `raise_exception`, `strftime_now`, a
//! `tojson` that is Python's `json.dumps`, and Python's methods.
//! minijinja differs from Jinja2 in what it does with Python's values. The filters, tests and
//! methods that are registered in `Template::new` give it Python's behaviour, each for a difference
//! that templates of real models show. Fuel bounds the steps of a template, `work` its time.

use crate::json::{BigInt, Json, Map};
use crate::template_facts::{self, Facts};
use crate::{python, template_facts_sglang, work, Failure};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Rest, StringInput, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A model's templates by name, and what its requests share.
pub struct Templates {
    by_name: BTreeMap<String, Template>,
    /// The name that came first in the sources.
    first: Option<String>,
    special_tokens: Map,
}

impl Templates {
    /// `sources` by name: "default" is used, and "tool_use", where there is one, for prompts with
    /// tools. `special_tokens`: variables that every template sees. INVALID_ARGUMENT: a template
    /// that does not parse.
    pub fn new(sources: &Map, special_tokens: Map) -> Result<Self, Failure> {
        let mut by_name = BTreeMap::new();
        let first = sources.iter().next().map(|(name, _)| name.to_owned());
        for (name, source) in sources.iter() {
            let source = source.as_str().ok_or_else(|| Failure::invalid("a chat template that is no text"))?;
            let made = Template::new(source).map_err(|failure| match sources.len() {
                1 => failure,
                _ => Failure::invalid(format!("\"{name}\": {}", failure.text)),
            })?;
            by_name.insert(name.to_owned(), made);
        }
        Ok(Templates { by_name, first, special_tokens })
    }

    /// A request's own template, with what those of `model` see.
    pub fn of_request(source: &str, model: &Templates) -> Result<Self, Failure> {
        Templates::new(&Map::from_iter([("default", source)]), model.special_tokens.clone())
    }

    pub fn special_tokens(&self) -> &Map {
        &self.special_tokens
    }

    /// Whether a template has this word.
    pub fn mention(&self, word: &str) -> bool {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.by_name
            .values()
            .any(|template| template.source.split(|c| !is_part(c)).any(|found| found == word))
    }

    /// The template of this name, where a model has several.
    pub fn named(&self, name: &str) -> Option<&Template> {
        self.by_name.get(name).filter(|_| self.by_name.len() > 1)
    }

    /// The one that was named first, where an engine knows one template only.
    pub fn first(&self) -> Option<&Template> {
        self.first.as_ref().and_then(|name| self.by_name.get(name))
    }

    /// As apply_chat_template chooses: "tool_use" for prompts with tools, else "default", else the
    /// only one there is.
    pub fn choose(&self, has_tools: bool) -> Result<&Template, Failure> {
        if let Some(template) = self.by_name.get("tool_use").filter(|_| has_tools) {
            return Ok(template);
        }
        if let Some(template) = self.by_name.get("default") {
            return Ok(template);
        }
        let mut names = self.by_name.iter();
        match (names.next(), names.next()) {
            (None, _) => Err(Failure::invalid("this model has no chat template")),
            (Some((_, template)), None) => Ok(template),
            _ => Err(Failure::invalid(format!(
                "the model has several chat templates and none is the default: {}",
                self.by_name.keys().cloned().collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

/// One parsed template. What engines conclude from it is found out at the first request that needs
/// it, once.
pub struct Template {
    environment: Environment<'static>,
    /// With line ends as Jinja2 has them, otherwise as given.
    source: String,
    facts: OnceLock<Facts>,
    system_is_first: OnceLock<bool>,
    sglang: OnceLock<template_facts_sglang::Facts>,
}

/// Filters that make a text of their value first (Jinja2's soft_str, which is Python's str).
fn filters_of_texts(environment: &mut Environment) {
    /// The value that minijinja's own filter gets: itself, or the text of a value that minijinja
    /// prints otherwise.
    fn of(value: &Value) -> Value {
        python::odd_text(value).map_or_else(|| value.clone(), Value::from)
    }
    environment.add_filter("upper", |state: &State, value: &Value| {
        StringInput::new(state, &of(value)).map(minijinja::filters::upper)
    });
    environment.add_filter("lower", |state: &State, value: &Value| {
        StringInput::new(state, &of(value)).map(minijinja::filters::lower)
    });
    environment.add_filter("capitalize", |state: &State, value: &Value| {
        StringInput::new(state, &of(value)).map(minijinja::filters::capitalize)
    });
    environment.add_filter("title", |value: &Value| minijinja::filters::title(python::text(value)));
    environment.add_filter("replace", |state: &mut State, value: &Value, from: StringInput, to: StringInput| {
        let value = of(value);
        let value = StringInput::new(state, &value)?;
        minijinja::filters::replace(state, value, from, to)
    });
    environment.add_filter("indent", |state: &State, value: &Value, arguments: Rest<Value>| {
        let (width, first, blank, options): (_, _, _, Kwargs) = from_args(&arguments)?;
        let value = of(value);
        minijinja::filters::indent(StringInput::new(state, &value)?, width, first, blank, options)
    });
    environment.add_filter(
        "join",
        |state: &mut State, value: &Value, joiner: Option<StringInput>, attribute: Option<&str>, options: Kwargs| {
            let is_plain = attribute.is_none() && !options.has("attribute") && value.kind() == ValueKind::Seq;
            let items = match is_plain {
                true => Value::from(value.try_iter()?.map(|item| of(&item)).collect::<Vec<_>>()),
                false => value.clone(),
            };
            minijinja::filters::join(state, &items, joiner, attribute, options)
        },
    );
}

const NAME: &str = "chat template";
/// The steps of a template: far more than any conversation needs, and an end for a template that
/// has none.
const STEPS_MAX: u64 = 100_000_000;

impl Template {
    /// INVALID_ARGUMENT: the template does not parse. What is parsed is `parsed_source`, with
    /// checks of loops put in (`template_facts::with_checked_loops`).
    pub fn new(source: &str) -> Result<Self, Failure> {
        // Jinja2 makes one kind of line end of all.
        let source = &source.replace("\r\n", "\n").replace('\r', "\n");
        let mut environment = Environment::new();
        environment.set_syntax(syntax()?);
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|out, state, value| {
            work::step();
            match python::odd_text(value) {
                Some(text) => out.write_str(&text).map_err(Error::from),
                None => minijinja::escape_formatter(out, state, value),
            }
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
            python::strip(&python::text(value), chars, true, true).to_owned()
        });
        environment.add_filter("string", |value: &Value| match value.kind() {
            ValueKind::String => value.clone(),
            _ => Value::from(python::text(value).into_owned()),
        });
        filters_of_texts(&mut environment);
        // An undefined value has no items, and length 0.
        environment.add_filter("items", |value: &Value| match value.is_undefined() {
            true => Ok(Value::from(Vec::<Value>::new())),
            false => minijinja::filters::items(value),
        });
        for name in ["length", "count"] {
            environment.add_filter(name, |value: &Value| match (value.is_undefined(), value.len()) {
                (true, _) => Ok(0),
                (_, Some(length)) => Ok(length),
                _ => Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("length of a value of type {}", value.kind()),
                )),
            });
        }
        environment.add_filter(template_facts::LOOPED, |value: Value| match value.is_none() {
            true => Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable")),
            false => Ok(value),
        });
        environment.add_filter("first", |value: &Value| match value.is_undefined() {
            true => Ok(Value::UNDEFINED),
            false => minijinja::filters::first(value),
        });
        environment.add_filter("last", |value: Value| match value.is_undefined() {
            true => Ok(value),
            false => minijinja::filters::last(value),
        });
        // A value that is no number is 0, unless the template names a default.
        environment.add_filter(
            "int",
            |state: &State, value: &Value, default: Option<Value>, base: Option<u32>, options: Kwargs| {
                let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0));
                minijinja::filters::int(state, value, Some(default), base, options)
            },
        );
        environment.add_filter("float", |state: &State, value: &Value, default: Option<Value>, options: Kwargs| {
            let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0.0));
            minijinja::filters::float(state, value, Some(default), options)
        });
        // Jinja2's tests ask Python's iter() and len() with []: no value is not iterable, and texts
        // and dicts are sequences.
        environment.add_test("iterable", |value: &Value| {
            !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
        });
        environment.add_test("sequence", |value: &Value| {
            matches!(
                value.kind(),
                ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
            )
        });
        environment.add_test("number", |value: &Value| {
            value.is_number() || value.kind() == ValueKind::Bool || python::is_odd_number(value)
        });
        environment.add_test("integer", |value: &Value| {
            value.is_integer() || value.downcast_object_ref::<BigInt>().is_some()
        });
        environment.add_test("float", |value: &Value| python::float_text(value).is_some());
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, template_facts::with_checked_loops(&without_generation(source)))
            .map_err(|e| Failure::invalid(format!("the chat template: {e:#}")))?;
        Ok(Template {
            environment,
            source: source.to_owned(),
            facts: OnceLock::new(),
            system_is_first: OnceLock::new(),
            sglang: OnceLock::new(),
        })
    }

    /// The facts that vLLM concludes from the source.
    pub fn facts(&self) -> Facts {
        *self.facts.get_or_init(|| Facts::of(&without_generation(&self.source)))
    }

    /// Whether a plain Jinja2, that has no function and no block of transformers, fails to print a
    /// system message behind others. vLLM 0.33.0, entrypoints/anthropic/serving.py,
    /// _detect_merge_inline_system.
    pub fn system_is_first(&self) -> bool {
        *self.system_is_first.get_or_init(|| {
            let message = |role: &str| Map::from_iter([("role", role), ("content", "t")]);
            let messages = ["system", "user", "system", "user"].map(|role| Json::Map(message(role)));
            let variables = Map::from_iter([
                ("messages", Json::List(messages.into())),
                ("add_generation_prompt", Json::Bool(false)),
            ]);
            without_generation(&self.source) != self.source || self.print(Json::Map(variables).into_value()).is_err()
        })
    }

    /// The facts that SGLang concludes from the source.
    pub fn sglang(&self) -> &template_facts_sglang::Facts {
        self.sglang.get_or_init(|| template_facts_sglang::Facts::of(self))
    }

    /// The source that is parsed: without the tags that only transformers knows.
    pub fn parsed_source(&self) -> String {
        without_generation(&self.source)
    }

    /// As it was given, for searches of words.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text for these variables, and `strftime_now` at `now`. INVALID_ARGUMENT: the template
    /// refuses them, in its words.
    pub fn render(&self, variables: Map, now: i64) -> Result<String, Failure> {
        let now = Value::from_function(move |format: &str| python::strftime(format, now));
        let variables = Value::from_pairs(
            variables
                .into_iter()
                .map(|(name, value)| (Value::from(name), value.into_value()))
                .chain([(Value::from("strftime_now"), now)]),
        );
        self.print(variables)
            .map_err(|e| Failure::invalid(format!("the chat template: {e}")))
    }

    /// With these variables alone.
    pub fn print(&self, variables: Value) -> Result<String, Error> {
        self.environment.get_template(NAME).and_then(|template| template.render(variables))
    }
}

fn syntax() -> Result<SyntaxConfig, Failure> {
    let made = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    made.map_err(|e| Failure::internal(e.to_string()))
}

/// `{% generation %}` of transformers marks for training what the model said. minijinja does not
/// know the tag, so it becomes a block that is always printed, with its white space control kept.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else {
            break;
        };
        let tag = &rest[open + 2..open + length];
        let word = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let stands_for = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        out.push_str(&rest[..open + 2]);
        out.push_str(&if stands_for == word {
            tag.to_owned()
        } else {
            tag.replacen(word, stands_for, 1)
        });
        rest = &rest[open + length..];
    }
    out.push_str(rest);
    out
}

/// json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
/// The filter `tojson`, with the arguments that a template gives. With an indent, items end with
/// "," alone, as in Python.
fn to_json(_state: &State, value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut style = python::JsonStyle::default();
    let indent = match indent {
        Some(indent) => indent,
        None => options.get::<Option<Value>>("indent")?.unwrap_or_default(),
    };
    if let Some(text) = indent.as_str() {
        style.indent = Some(text.to_owned());
    } else if let Ok(width) = i64::try_from(indent.clone()) {
        style.indent = Some(" ".repeat(width.clamp(0, 64) as usize));
    }
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if style.indent.is_some() {
        style.item_separator = ",".to_owned();
    }
    if let Some(separators) = options.get::<Option<Value>>("separators")? {
        if separators.kind() != ValueKind::None {
            style.item_separator = separators.get_item_by_index(0)?.to_string();
            style.key_separator = separators.get_item_by_index(1)?.to_string();
        }
    }
    options.assert_all_used()?;
    let mut out = String::new();
    python::write_json(value, &style, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a template that sees `x`.
    fn printed(source: &str, x: &str) -> String {
        let variables = Map::from_iter([("x", Json::parse(x).unwrap())]);
        Template::new(source)
            .unwrap()
            .render(variables, 0)
            .unwrap_or_else(|failure| failure.text)
    }

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        for source in ["{{ x }}", "{{ '' ~ x }}", "{{ x | string }}", "{{ x | tojson }}"] {
            for text in ["1e-07", "1e+16", "1.5", "0.0001", "123456789.0"] {
                assert_eq!(printed(source, text), text, "{source}");
            }
        }
        assert_eq!(
            printed("{{ x }}", r#"{"a": [1e-7, 1.0, null, true, "b"]}"#),
            "{'a': [1e-07, 1.0, None, True, 'b']}"
        );
        assert_eq!(printed("{{ x }}{{ x | tojson }}", "NaN"), "nanNaN");
        assert_eq!(printed("{{ x is number and x is float and x is not integer }}", "1e-7"), "True");
        assert_eq!(
            printed(
                "{{ x is number }}{{ 'x' | int }}{{ 'x' | int(3) }}{{ '5' | int }}{{ 'x' | float }}",
                "true"
            ),
            "True0350.0"
        );
    }

    #[test]
    fn texts_in_lists_are_printed_as_repr_does() {
        let given = r#"["a\u2028b", {"k\u00a0": "\ud83d\udc69\u200d"}, "\t\u0007\u009f\u00ad", "\udb40\udc01", "'é", " 天"]"#;
        let text = "['a\\u2028b', {'k\\xa0': '👩\\u200d'}, '\\t\\x07\\x9f\\xad', '\\U000e0001', \"'é\", ' 天']";
        assert_eq!(printed("{{ x }}", given), text);
        assert_eq!(printed("{{ x | string }}", given), text);
        assert_eq!(printed("{{ x[0] }}", given), "a\u{2028}b");
    }

    #[test]
    fn filters_of_texts_get_lists_as_repr_prints_them() {
        let given = r#"["a\u2028b", {"k\u00a0": "\u200d"}]"#;
        let text = "['a\\u2028b', {'k\\xa0': '\\u200d'}]";
        for (source, expected) in [
            ("{{ x | trim }}", text),
            ("{{ x | lower }}", text),
            ("{{ x | replace('q', '') }}", text),
            ("{{ x | indent }}", text),
            ("{{ '' ~ x[1] }}", "{'k\\xa0': '\\u200d'}"),
            ("{{ x | upper }}", "['A\\U2028B', {'K\\XA0': '\\U200D'}]"),
            ("{{ [x[1], 'b', none] | join(',') }}", "{'k\\xa0': '\\u200d'},b,None"),
        ] {
            assert_eq!(printed(source, given), expected, "{source}");
        }
    }

    #[test]
    fn integers_of_any_size_are_printed() {
        let digits = "100000000000000000000000000000000000000000000";
        for source in ["{{ x }}", "{{ '' ~ x }}", "{{ x | string }}", "{{ x | tojson }}"] {
            assert_eq!(printed(source, digits), digits, "{source}");
            assert_eq!(printed(source, "18446744073709551616"), "18446744073709551616", "{source}");
        }
        assert_eq!(printed("{{ x }}", &format!("[{digits}]")), format!("[{digits}]"));
        assert_eq!(printed("{{ x is number and x is integer and x is not float }}", digits), "True");
    }

    #[test]
    fn methods_of_texts_are_pythons() {
        for (source, text) in [
            ("{{ 'aB\u{e9}'.swapcase() }}", "Ab\u{c9}"),
            ("{{ 'a.b.c'.partition('.') }}", "('a', '.', 'b.c')"),
            ("{{ 'a.b.c'.rpartition('.')[2] }}", "c"),
            ("{{ 'abc'.partition('.')[0] }}", "abc"),
            ("{{ '-5'.zfill(4) }}|{{ '5'.zfill(3) }}|{{ 'abcd'.zfill(2) }}", "-005|005|abcd"),
            (
                "[{{ 'a'.ljust(3) }}][{{ 'a'.rjust(3, '*') }}][{{ 'a'.center(4) }}][{{ 'ab'.center(5) }}]",
                "[a  ][**a][ a  ][  ab ]",
            ),
            ("{{ 'a.b.c'.rsplit('.', 1) }}", "['a.b', 'c']"),
            ("{{ 'a.b'.rsplit('.') }}", "['a', 'b']"),
            ("{{ \"don't a1b\".title() }}", "Don'T A1B"),
            ("{{ 'aba'.index('b') }}{{ 'aba'.rindex('a') }}{{ 'aB'.casefold() }}", "12ab"),
            ("{{ ' a  b c '.rsplit(none, 1) }}", "[' a  b', 'c']"),
            ("{{ ' a  b '.rsplit() }}", "['a', 'b']"),
        ] {
            assert_eq!(printed(source, "0"), text, "{source}");
        }
    }

    #[test]
    fn a_loop_over_no_value_fails_and_one_over_what_is_not_defined_is_empty() {
        assert!(printed("{% for y in x %}{% endfor %}", "null").contains("none is not iterable"));
        assert_eq!(
            printed(
                "{% for y in z %}{% endfor %}{% for y in x if y > 1 %}{{ y }}{{ loop.last }}{% endfor %}",
                "[1, 2]"
            ),
            "2True"
        );
    }

    #[test]
    fn what_is_not_defined_is_empty() {
        assert_eq!(
            printed(
                "{{ y | length }}{{ y | items | list }}{% for k, v in x | items %}{{ k }}{{ v }}{% endfor %}",
                r#"{"a": 1}"#
            ),
            "0[]a1"
        );
        assert_eq!(
            printed("{{ y | first }}{{ y | last }}{{ x | first }}{{ x | last }}", "[1, 2]"),
            "12"
        );
    }

    #[test]
    fn lines_of_a_template_end_as_jinja_reads_them() {
        assert_eq!(printed("a\r\n{{ x }}\rb", "1"), "a\n1\nb");
    }

    #[test]
    fn no_value_is_not_iterable() {
        assert_eq!(
            printed(
                "{{ x is iterable }}{{ x is sequence }}{{ '' is sequence }}{{ {} is sequence }}",
                "null"
            ),
            "FalseFalseTrueTrue"
        );
    }
}
