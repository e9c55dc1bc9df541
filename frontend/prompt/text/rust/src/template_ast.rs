//! A walk over a template's syntax tree, for the facts that engines conclude from it.

use crate::Failure;
use minijinja::machinery::ast::{CallArg, Expr, Stmt};
use minijinja::syntax::SyntaxConfig;

/// A node that `walk` shows.
pub enum Node<'t, 's> {
    Stmt(&'t Stmt<'s>),
    Expr(&'t Expr<'s>),
}

/// The syntax tree of a template. The spans of its nodes are places in `source`. INVALID_ARGUMENT:
/// it does not parse.
pub fn parse(source: &str) -> Result<Stmt<'_>, Failure> {
    minijinja::machinery::parse(source, "chat template", SyntaxConfig::default())
        .map_err(|e| Failure::invalid(format!("the chat template: {e:#}")))
}

/// Gives `see` every statement and expression, outer ones first. Every kind of node of minijinja is
/// listed, so that a version with more kinds does not compile until they are handled. Recursion is
/// as deep as the parser lets templates be.
pub fn walk<'t, 's>(stmt: &'t Stmt<'s>, see: &mut dyn FnMut(Node<'t, 's>)) {
    see(Node::Stmt(stmt));
    match stmt {
        Stmt::Template(s) => walk_all(&s.children, see),
        Stmt::EmitExpr(s) => walk_expr(&s.expr, see),
        Stmt::ForLoop(s) => {
            walk_expr(&s.target, see);
            walk_expr(&s.iter, see);
            walk_exprs(&s.filter_expr, see);
            walk_all(&s.body, see);
            walk_all(&s.else_body, see);
        }
        Stmt::IfCond(s) => {
            walk_expr(&s.expr, see);
            walk_all(&s.true_body, see);
            walk_all(&s.false_body, see);
        }
        Stmt::WithBlock(s) => {
            for (target, value) in &s.assignments {
                walk_expr(target, see);
                walk_expr(value, see);
            }
            walk_all(&s.body, see);
        }
        Stmt::Set(s) => {
            walk_expr(&s.target, see);
            walk_expr(&s.expr, see);
        }
        Stmt::SetBlock(s) => {
            walk_expr(&s.target, see);
            walk_exprs(&s.filter, see);
            walk_all(&s.body, see);
        }
        Stmt::AutoEscape(s) => {
            walk_expr(&s.enabled, see);
            walk_all(&s.body, see);
        }
        Stmt::FilterBlock(s) => {
            walk_expr(&s.filter, see);
            walk_all(&s.body, see);
        }
        Stmt::Block(s) => walk_all(&s.body, see),
        Stmt::Macro(s) => {
            walk_exprs(&s.args, see);
            walk_exprs(&s.defaults, see);
            walk_all(&s.body, see);
        }
        Stmt::CallBlock(s) => {
            walk_expr(&s.call.expr, see);
            walk_args(&s.call.args, see);
            walk_exprs(&s.macro_decl.args, see);
            walk_exprs(&s.macro_decl.defaults, see);
            walk_all(&s.macro_decl.body, see);
        }
        Stmt::Do(s) => {
            walk_expr(&s.call.expr, see);
            walk_args(&s.call.args, see);
        }
        Stmt::Include(s) => walk_expr(&s.name, see),
        Stmt::Extends(s) => walk_expr(&s.name, see),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
    }
}

fn walk_all<'t, 's>(stmts: &'t [Stmt<'s>], see: &mut dyn FnMut(Node<'t, 's>)) {
    for stmt in stmts {
        walk(stmt, see);
    }
}

fn walk_exprs<'t, 's: 't>(exprs: impl IntoIterator<Item = &'t Expr<'s>>, see: &mut dyn FnMut(Node<'t, 's>)) {
    for expr in exprs {
        walk_expr(expr, see);
    }
}

fn walk_args<'t, 's>(args: &'t [CallArg<'s>], see: &mut dyn FnMut(Node<'t, 's>)) {
    for arg in args {
        match arg {
            CallArg::Pos(expr) | CallArg::Kwarg(_, expr) | CallArg::PosSplat(expr) | CallArg::KwargSplat(expr) => {
                walk_expr(expr, see);
            }
        }
    }
}

/// The expressions in an expression, itself first.
fn walk_expr<'t, 's>(expr: &'t Expr<'s>, see: &mut dyn FnMut(Node<'t, 's>)) {
    see(Node::Expr(expr));
    match expr {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(e) => {
            walk_expr(&e.expr, see);
            walk_exprs(e.start.iter().chain(&e.stop).chain(&e.step), see);
        }
        Expr::UnaryOp(e) => walk_expr(&e.expr, see),
        Expr::BinOp(e) => {
            walk_expr(&e.left, see);
            walk_expr(&e.right, see);
        }
        Expr::Compare(e) => {
            walk_expr(&e.expr, see);
            walk_exprs(e.ops.iter().map(|op| &op.expr), see);
        }
        Expr::IfExpr(e) => {
            walk_expr(&e.test_expr, see);
            walk_expr(&e.true_expr, see);
            walk_exprs(&e.false_expr, see);
        }
        Expr::Filter(e) => {
            walk_exprs(&e.expr, see);
            walk_args(&e.args, see);
        }
        Expr::Test(e) => {
            walk_expr(&e.expr, see);
            walk_args(&e.args, see);
        }
        Expr::GetAttr(e) => walk_expr(&e.expr, see),
        Expr::GetItem(e) => {
            walk_expr(&e.expr, see);
            walk_expr(&e.subscript_expr, see);
        }
        Expr::Call(e) => {
            walk_expr(&e.expr, see);
            walk_args(&e.args, see);
        }
        Expr::List(e) => walk_exprs(&e.items, see),
        Expr::Tuple(e) => walk_exprs(&e.items, see),
        Expr::Map(e) => {
            walk_exprs(&e.keys, see);
            walk_exprs(&e.values, see);
        }
    }
}
