//! Facts that SGLang (0.5.23) concludes from a chat template's source when it starts
//! (srt/parser/template_manager.py). SGLang searches the source as text, by regular expressions,
//! and the syntax tree for few things. The functions here search in the same way; words in comments
//! of a template count as well.

use crate::chat::Template;
use crate::json::{Json, Map};
use crate::template_ast::{parse, walk, Node};
use minijinja::machinery::ast::{CallArg, Expr, Filter, Stmt};
use regex::Regex;

#[derive(Debug, PartialEq)]
pub struct Facts {
    /// Contents that are lists stay lists ("openai"); else their texts are joined ("string").
    pub lists_stay: bool,
    /// A system message within the conversation is printed there.
    pub inline_system: bool,
    pub reasoning: Option<Reasoning>,
}

/// ReasoningToggleConfig of srt/parser/template_detection.py.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reasoning {
    /// The variable that turns reasoning on and off, and what it is where it is not set.
    pub toggle: Option<&'static str>,
    pub enabled_by_default: Option<bool>,
    /// A rule of its own in place of a toggle.
    pub special: Option<Special>,
    /// The variable that is true for the effort "low".
    pub effort_kwarg: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Special {
    /// The model always reasons.
    Always,
    /// The effort of the request switches, in Mistral's or Hunyuan's names.
    Mistral,
    Hunyuan,
}

impl Facts {
    pub fn of(template: &Template) -> Self {
        let source = template.parsed_source();
        let tree = parse(&source).ok();
        Facts {
            lists_stay: lists_stay(template.source(), tree.as_ref()),
            inline_system: inline_system(template),
            reasoning: reasoning(template.source(), tree.as_ref()),
        }
    }
}

/// detect_jinja_template_content_format, srt/parser/jinja_template_utils.py.
/// A template that mentions media gets lists, whatever it loops over.
fn lists_stay(source: &str, tree: Option<&Stmt>) -> bool {
    if ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word)) {
        return true;
    }
    let mut found = false;
    if let Some(tree) = tree {
        walk(tree, &mut |node| {
            if let Node::Stmt(Stmt::ForLoop(each)) = node {
                found |= is_content(&each.iter);
            }
        });
    }
    found
}

/// Whether this is the content of a message, filtered, tested or sliced.
fn is_content(expr: &Expr) -> bool {
    let is_message = |expr: &Expr| matches!(expr, Expr::Var(v) if ["message", "msg", "m"].contains(&v.id));
    match expr {
        Expr::Filter(e) => e.expr.as_ref().is_some_and(is_content),
        Expr::Test(e) => is_content(&e.expr),
        Expr::Slice(e) => is_content(&e.expr),
        Expr::GetItem(e) => {
            is_message(&e.expr) && matches!(&e.subscript_expr, Expr::Const(c) if c.value.as_str() == Some("content"))
        }
        Expr::GetAttr(e) => is_message(&e.expr) && e.name == "content",
        _ => false,
    }
}

/// detect_inline_system_support, srt/parser/template_detection.py: a conversation is rendered, in
/// an environment without the functions of transformers.
fn inline_system(template: &Template) -> bool {
    const MARK: &str = "__kvatlas_inline_system__";
    if template.parsed_source() != template.source() {
        return false;
    }
    let message = |role: &str, content: &str| Json::Map(Map::from_iter([("role", role), ("content", content)]));
    let messages =
        vec![message("system", "t"), message("user", "t"), message("system", MARK), message("user", "t")];
    let variables = Map::from_iter([("messages", Json::List(messages)), ("add_generation_prompt", Json::Bool(false))]);
    template.print(Json::Map(variables).into_value()).is_ok_and(|text| text.contains(MARK))
}

fn matches(source: &str, pattern: &str) -> bool {
    Regex::new(pattern).is_ok_and(|regex| regex.is_match(source))
}

/// REASONING_MODE_RULES, srt/parser/template_detection.py: the first that holds.
fn reasoning(source: &str, tree: Option<&Stmt>) -> Option<Reasoning> {
    let has = |text: &str| source.contains(text);
    let special = |special| Some(Reasoning { special: Some(special), ..Reasoning::default() });
    let toggle = |name, on| Reasoning { toggle: Some(name), enabled_by_default: Some(on), ..Reasoning::default() };
    if has("<ifm|think>") && has("<ifm|think_fast>") && has("reasoning_effort") || has("<|channel|>") {
        return special(Special::Always);
    }
    if matches(source, r"<\|im_start\|>assistant\\n<think>\\n") && !has("thinking") || is_glm53(source) {
        return special(Special::Always);
    }
    if has("reasoning_effort") && has("[THINK]") {
        return special(Special::Mistral);
    }
    if has("reasoning_effort") && has("reasoning_mode_token") && has("no_think") {
        return special(Special::Hunyuan);
    }
    if set_where_missing(source, "enable_thinking", "(?:false|False)")
        || has_default(tree, "enable_thinking", false)
    {
        return Some(toggle("enable_thinking", false));
    }
    if has("low_effort") && has("truncate_history_thinking") {
        return Some(Reasoning { effort_kwarg: Some("low_effort"), ..toggle("enable_thinking", true) });
    }
    if on_by_default(source, tree, "enable_thinking") {
        return Some(toggle("enable_thinking", true));
    }
    if set_where_missing(source, "thinking", "(?:false|False)") || has_default(tree, "thinking", false) {
        return Some(toggle("thinking", false));
    }
    on_by_default(source, tree, "thinking").then(|| toggle("thinking", true))
}

/// GLM-5.3's template, which SGLang also has in Python.
pub fn is_glm53(source: &str) -> bool {
    ["[gMASK]<sop>", "Reasoning Effort:", "<tool_call>", "<arg_key>", "<arg_value>"].iter().all(|w| source.contains(w))
        && !source.contains("enable_thinking")
}

/// `{% if not NAME is defined %} … {% set NAME = VALUE %}`.
fn set_where_missing(source: &str, name: &str, value: &str) -> bool {
    matches(
        source,
        &format!(r"(?s)\{{%\s*if\s+not\s+{name}\s+is\s+defined\s*%\}}.*?\{{%\s*set\s+{name}\s*=\s*{value}\s*%\}}"),
    )
}

/// The forms in which templates say that a variable is true unless it is given.
fn on_by_default(source: &str, tree: Option<&Stmt>, name: &str) -> bool {
    set_where_missing(source, name, "(?:true|True)")
        || [
            format!(r"set\s+{name}\s*=\s*{name}\s+if\s+{name}\s+is\s+defined\s+else\s+(?:true|True)"),
            format!(r"{name}\s+is\s+defined\s+and\s+(?:{name}\s+is\s+false|not\s+{name})"),
            format!(r"{name}\s+is\s+not\s+defined\s+or\s+{name}"),
            format!(r"namespace\([^)]*{name}\s*=\s*true"),
        ]
        .iter()
        .any(|pattern| matches(source, pattern))
        || has_default(tree, name, true)
}

/// _has_toggle_default_assignment: `name | default(value)`.
fn has_default(tree: Option<&Stmt>, name: &str, value: bool) -> bool {
    let mut found = false;
    if let Some(tree) = tree {
        walk(tree, &mut |node| {
            if let Node::Expr(Expr::Filter(filter)) = node {
                found |= is_default(filter, name) == Some(value);
            }
        });
    }
    found
}

/// The value of `NAME | default(value)` with a constant; None: another filter, or one that cannot
/// be told.
fn is_default(filter: &Filter, name: &str) -> Option<bool> {
    let is_name = matches!(&filter.expr, Some(Expr::Var(v)) if v.id == name);
    if !is_name || !["default", "d"].contains(&filter.name) {
        return None;
    }
    let mut placed = vec![];
    let mut boolean = None;
    for arg in &filter.args {
        match arg {
            CallArg::Pos(expr) => placed.push(expr),
            CallArg::Kwarg("boolean", expr) => boolean = Some(expr),
            CallArg::Kwarg(..) => {}
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return None,
        }
    }
    let Some(Expr::Const(value)) = placed.first() else {
        return None;
    };
    let value = bool::try_from(value.value.clone()).ok()?;
    let replaces_false = match placed.get(1).copied().or(boolean) {
        Some(Expr::Const(boolean)) => boolean.value.is_true(),
        Some(_) => return None,
        None => false,
    };
    // default(true, true) replaces false as well, so the variable switches nothing.
    (!(replaces_false && value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(source: &str) -> Facts {
        Facts::of(&Template::new(source).unwrap())
    }

    #[test]
    fn lists_stay_where_a_template_loops_over_contents() {
        for source in [
            "{% for c in message['content'] %}{% endfor %}",
            "{% for m in messages %}{% for c in m.content | selectattr('type') %}{% endfor %}{% endfor %}",
            "{% macro p(msg) %}{% for c in msg.content[1:] %}{% endfor %}{% endmacro %}",
            "{# no vision #}",
        ] {
            assert!(facts(source).lists_stay, "{source}");
        }
        for source in [
            "{% for c in content %}{% endfor %}",
            "{% for c in messages[0].content %}{% endfor %}",
            "{% set content = message.content %}",
        ] {
            assert!(!facts(source).lists_stay, "{source}");
        }
    }

    #[test]
    fn a_system_message_within_is_printed_or_not() {
        assert!(facts("{% for m in messages %}{{ m.content }}{% endfor %}").inline_system);
        assert!(!facts("{{ messages[0].content }}").inline_system);
        let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}\
                     {% endif %}{{ m.content }}{% endfor %}";
        assert!(!facts(first).inline_system);
        assert!(!facts("{% for m in messages %}{{ m.content }}{% endfor %}{{ strftime_now('%d') }}").inline_system);
    }

    #[test]
    fn toggles_of_thinking() {
        let on = |name| Some(Reasoning { toggle: Some(name), enabled_by_default: Some(true), ..Reasoning::default() });
        let off = |name| Some(Reasoning { toggle: Some(name), enabled_by_default: Some(false), ..Reasoning::default() });
        let cases = [
            ("{% if enable_thinking is defined and enable_thinking is false %}{% endif %}", on("enable_thinking")),
            ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", off("thinking")),
            ("{% set enable_thinking = enable_thinking | default(false) %}", off("enable_thinking")),
            ("{% set enable_thinking = enable_thinking | default(true, true) %}", None),
            ("{% set enable_thinking = enable_thinking | d(true, boolean=false) %}", on("enable_thinking")),
            ("{{ '<|channel|>' }}", Some(Reasoning { special: Some(Special::Always), ..Reasoning::default() })),
            ("{{ content }}", None),
        ];
        for (source, expected) in cases {
            assert_eq!(facts(source).reasoning, expected, "{source}");
        }
    }
}
