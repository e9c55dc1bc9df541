//! Facts that engines find out about a chat template before they render it: its syntax tree decides
//! the form of the messages.
//!
//! The functions follow vLLM's step by step, also where it concludes something odd: the template
//! gets its messages in the form that vLLM concludes.

use crate::template_ast::{parse, walk, Node};
use minijinja::machinery::ast;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The template loops over the content of messages, so vLLM hands every content to it as a list
    /// of parts. vLLM 0.33.0, renderers/hf.py, _detect_content_format: "openai".
    pub content_is_parts: bool,
    /// It names the role developer. vLLM 0.33.0, renderers/hf.py, _detect_developer_role_support.
    pub knows_developer: bool,
}

impl Facts {
    /// A template that does not parse, and a search that vLLM gives up, count as "string" contents.
    pub fn of(source: &str) -> Self {
        let content_is_parts = parse(source).is_ok_and(|tree| loops_over_content(&tree).unwrap_or(false));
        let knows_developer = source.contains("\"developer\"") || source.contains("'developer'");
        Facts {
            content_is_parts,
            knows_developer,
        }
    }
}

/// The filter that `with_checked_loops` puts behind a variable that is looped over. Python refuses
/// to loop over None, and minijinja does not: the filter fails for it.
pub const LOOPED: &str = "kvatlas_looped";

/// `source` with `|LOOPED` behind each variable that a loop is over. A source that does not parse
/// stays as it is, and fails later with its own error.
pub fn with_checked_loops(source: &str) -> String {
    let Ok(tree) = parse(source) else {
        return source.to_owned();
    };
    let loops = Nodes::of(&tree).loops;
    let of_variables = loops.iter().filter(|node| variable(&node.iter).is_some());
    let mut ends: Vec<usize> = of_variables.map(|node| node.iter.span().end_offset as usize).collect();
    ends.sort_unstable();
    let mut out = String::with_capacity(source.len() + ends.len() * (LOOPED.len() + 1));
    let mut from = 0;
    for end in ends {
        let Some(text) = source.get(from..end) else {
            return source.to_owned();
        };
        out.push_str(text);
        out.push('|');
        out.push_str(LOOPED);
        from = end;
    }
    out.push_str(&source[from..]);
    out
}

/// The nodes that the search is about, in the order of the text.
#[derive(Default)]
struct Nodes<'t, 's> {
    loops: Vec<&'t ast::ForLoop<'s>>,
    sets: Vec<&'t ast::Set<'s>>,
    macros: Vec<&'t ast::Macro<'s>>,
    calls: Vec<&'t ast::Call<'s>>,
}

impl<'t, 's> Nodes<'t, 's> {
    fn of(tree: &'t ast::Stmt<'s>) -> Self {
        let mut nodes = Nodes::default();
        walk(tree, &mut |node| match node {
            Node::Stmt(ast::Stmt::ForLoop(node)) => nodes.loops.push(node),
            Node::Stmt(ast::Stmt::Set(node)) => nodes.sets.push(node),
            Node::Stmt(ast::Stmt::Macro(node)) => nodes.macros.push(node),
            Node::Stmt(ast::Stmt::CallBlock(node)) => nodes.calls.push(&node.call),
            Node::Stmt(ast::Stmt::Do(node)) => nodes.calls.push(&node.call),
            Node::Expr(ast::Expr::Call(node)) => nodes.calls.push(node),
            _ => {}
        });
        nodes
    }
}

/// vLLM 0.33.0, renderers/hf.py, _iter_nodes_assign_content_item: whether there is a loop over a
/// message's content, over what a macro gets of it, or, outside of macros, over a variable
/// `content`? None: a loop that is looked at has no single variable (vLLM gives up).
/// 1. Names that stand for the messages (`names_of`).
/// 2. Variables of loops over these: a message each.
/// 3. Parameters of macros that get a message's content (`params_with`).
/// 4. The first loop over a content, by any of these, decides.
fn loops_over_content(tree: &ast::Stmt) -> Option<bool> {
    let nodes = Nodes::of(tree);
    let messages = names_of(&nodes, "messages");
    let mut items: Vec<&str> = vec![];
    for node in &nodes.loops {
        if messages.iter().any(|name| is_of(&node.iter, name, None)) {
            items.push(variable(&node.target)?);
        }
    }
    let is_content = |expr: &ast::Expr| items.iter().any(|name| is_of(expr, name, Some("content")));
    // By loop in a macro: the parameters of the macro that get a content. The last macro around a
    // loop that gets any counts.
    let mut in_macros: HashMap<*const ast::ForLoop, HashSet<&str>> = HashMap::new();
    for node in &nodes.macros {
        let got = params_with(node, &nodes, &is_content);
        for statement in &node.body {
            walk(statement, &mut |inner| {
                if let Node::Stmt(ast::Stmt::ForLoop(inner)) = inner {
                    let params = in_macros.entry(std::ptr::from_ref(&**inner)).or_default();
                    if !got.is_empty() {
                        params.clone_from(&got);
                    }
                }
            });
        }
    }
    for node in &nodes.loops {
        let name = variable(&node.iter);
        let is_named = match in_macros.get(&std::ptr::from_ref(*node)) {
            Some(params) => name.is_some_and(|name| params.contains(name)),
            None => name == Some("content"),
        };
        if is_named || is_content(&node.iter) {
            variable(&node.target)?;
            return Some(true);
        }
    }
    Some(false)
}

/// The parameters of a macro that get a content in one of its calls.
fn params_with<'s>(of: &ast::Macro<'s>, nodes: &Nodes<'_, 's>, is_content: &dyn Fn(&ast::Expr) -> bool) -> HashSet<&'s str> {
    let params: Vec<&'s str> = of.args.iter().filter_map(variable).collect();
    let mut found = HashSet::new();
    for call in nodes.calls.iter().filter(|call| variable(&call.expr) == Some(of.name)) {
        let mut place = 0;
        for arg in &call.args {
            found.extend(match arg {
                ast::CallArg::Pos(value) if is_content(value) => params.get(place).copied(),
                ast::CallArg::Kwarg(name, value) if is_content(value) => params.iter().find(|p| *p == name).copied(),
                _ => None,
            });
            place += usize::from(matches!(arg, ast::CallArg::Pos(_)));
        }
    }
    found
}

/// `first`, and what is set to it, to a slice of it or to what a filter makes of it, also as an
/// attribute of a namespace ("ns.name"). vLLM 0.33.0, renderers/hf.py,
/// _iter_nodes_assign_var_or_elems.
fn names_of(nodes: &Nodes, first: &str) -> Vec<String> {
    let mut names = vec![first.to_owned()];
    let mut at = 0;
    while at < names.len() {
        for set in &nodes.sets {
            let mut found = vec![];
            let is_set_to_it = is_of(&set.expr, &names[at], None);
            match (&set.target, &set.expr) {
                (ast::Expr::Var(target), _) if is_set_to_it => found.push(target.id.to_owned()),
                (ast::Expr::Var(target), ast::Expr::Call(call)) if variable(&call.expr) == Some("namespace") => {
                    for arg in &call.args {
                        match arg {
                            ast::CallArg::Kwarg(key, value) if is_of(value, &names[at], None) => {
                                found.push(format!("{}.{key}", target.id));
                            }
                            _ => {}
                        }
                    }
                }
                (ast::Expr::GetAttr(_), _) if is_set_to_it => found.extend(dotted(&set.target)),
                _ => {}
            }
            for name in found {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        at += 1;
    }
    names
}

/// The name, if the expression is a variable alone.
fn variable<'s>(expr: &ast::Expr<'s>) -> Option<&'s str> {
    match expr {
        ast::Expr::Var(node) => Some(node.id),
        _ => None,
    }
}

/// "ns.name" of an attribute of a variable.
fn dotted(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Var(node) => Some(node.id.to_owned()),
        ast::Expr::GetAttr(node) => Some(format!("{}.{}", dotted(&node.expr)?, node.name)),
        _ => None,
    }
}

/// Is `expr` the variable `name` (its item `key`), a slice of that, or that through filters and
/// tests? _is_var_or_elems_access.
fn is_of(expr: &ast::Expr, name: &str, key: Option<&str>) -> bool {
    match expr {
        ast::Expr::Filter(node) => node.expr.as_ref().is_some_and(|inner| is_of(inner, name, key)),
        ast::Expr::Test(node) => is_of(&node.expr, name, key),
        ast::Expr::Slice(node) => is_of(&node.expr, name, key),
        _ => match key {
            None => is_variable(expr, name),
            Some(key) => match expr {
                ast::Expr::GetAttr(node) => node.name == key && is_variable(&node.expr, name),
                ast::Expr::GetItem(node) => {
                    is_variable(&node.expr, name)
                        && matches!(&node.subscript_expr, ast::Expr::Const(constant) if constant.value.as_str() == Some(key))
                }
                _ => false,
            },
        },
    }
}

/// Also of a dotted name.
fn is_variable(expr: &ast::Expr, name: &str) -> bool {
    match expr {
        ast::Expr::Var(node) => node.id == name,
        ast::Expr::GetAttr(node) => name
            .rsplit_once('.')
            .is_some_and(|(base, attribute)| node.name == attribute && is_variable(&node.expr, base)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_parts(source: &str) -> bool {
        Facts::of(source).content_is_parts
    }

    #[test]
    fn a_loop_over_the_content_of_messages_wants_parts() {
        for source in [
            "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
            "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}",
            "{% set ns = namespace(rest=messages) %}{% for m in ns.rest %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% set ns.rest = messages %}{% for m in ns.rest %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(x=m.content) }}{% endfor %}",
            "{% for c in content %}{% endfor %}",
        ] {
            assert!(is_parts(source), "{source}");
        }
    }

    #[test]
    fn other_loops_want_text() {
        for source in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
            "{% set c = messages[0].content %}{% for x in c %}{% endfor %}",
            "{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f(1) }}",
            "{% set rest = messages if a else b %}{% for m in rest %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% for k, v in messages %}{% endfor %}{% for c in content %}{% endfor %}",
        ] {
            assert!(!is_parts(source), "{source}");
        }
    }

    #[test]
    fn developer_is_known_where_it_is_quoted() {
        let knows = |source| Facts::of(source).knows_developer;
        assert!(knows("{{ 'developer' }}") && knows("{{ \"developer\" }}") && !knows("developer"));
    }
}
