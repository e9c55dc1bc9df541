//! `apply_chat_template` of the Python package `transformers`, version 5
//! (tokenization_utils_base.py, utils/chat_template_utils.py): which template, and where a final
//! message that goes on ends.

use super::{Chat, Convention};
use crate::chat::{Template, Templates};
use crate::json::{Json, Map};
use crate::Failure;

/// Written behind the last message to find where it ends in the text.
const END_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The text of `chat`. INVALID_ARGUMENT: what is no conversation, and what the template refuses, in
/// its words.
pub fn render(templates: &Templates, convention: &Convention, chat: Chat) -> Result<String, Failure> {
    let own = own_template(templates, convention, chat.chat_template.as_deref())?;
    let template = match &own {
        Some(own) => own.choose(false)?,
        None => templates.choose(chat.tools.is_some())?,
    };
    render_in(template, templates, convention, chat)
}

/// The request's own template, where it has one.
pub fn own_template(templates: &Templates, convention: &Convention, source: Option<&str>) -> Result<Option<Templates>, Failure> {
    match source {
        Some(_) if !convention.trust_templates => Err(Failure::unknown_here("chat templates of requests are not trusted here")),
        Some(source) => Ok(Some(Templates::of_request(source, templates)?)),
        None => Ok(None),
    }
}

/// `render`, where the template is known.
///
/// 1. The variables: special tokens, the chat's own (which win), messages, tools.
/// 2. Where the last message is to be continued, its end is marked (`mark_end`).
/// 3. The template prints them.
/// 4. What it printed behind the mark is cut off (`cut_at_end`).
pub fn render_in(template: &Template, templates: &Templates, convention: &Convention, mut chat: Chat) -> Result<String, Failure> {
    if chat.continue_final_message && chat.add_generation_prompt {
        return Err(Failure::invalid("continue_final_message and add_generation_prompt exclude each other"));
    }
    if chat.messages.is_empty() {
        return Err(Failure::invalid("messages are empty; expected at least one message"));
    }
    let mut final_text = None;
    if chat.continue_final_message {
        if let Some(last) = chat.messages.last_mut() {
            final_text = Some(mark_end(last, template.source())?);
        }
    }
    let mut variables = templates.special_tokens().clone();
    variables.insert("documents", Json::Null);
    variables.update(convention.default_kwargs);
    variables.extend(chat.kwargs);
    variables.insert("messages", Json::List(chat.messages.into_iter().map(Json::Map).collect()));
    variables.insert("tools", chat.tools.map(Json::List));
    variables.insert("add_generation_prompt", chat.add_generation_prompt);
    let text = template.render(variables, convention.now)?;
    match final_text {
        Some(final_text) => cut_at_end(text, &final_text),
        None => Ok(text),
    }
}

/// Writes the mark behind the text that is to be continued: the content, or the last text among its
/// parts. Returns the text without the mark.
fn mark_end(last: &mut Map, source: &str) -> Result<String, Failure> {
    let Some(content) = last.get_mut("content").filter(|content| !content.is_null()) else {
        return Err(Failure::invalid("there is no content to continue in the final message"));
    };
    if !source.contains("content") {
        return Err(Failure::invalid("the chat template prints no content"));
    }
    let place = match content {
        Json::List(parts) => parts.iter_mut().rev().find_map(|part| match part {
            Json::Map(part) => part.get_mut("text").filter(|text| text.as_str().is_some()),
            _ => None,
        }),
        text => Some(text),
    };
    let Some(Json::Str(text)) = place else {
        return Err(Failure::invalid("there is no text to continue in the final message"));
    };
    let before = text.to_string();
    *text = format!("{before}{END_MARK}").into();
    Ok(before)
}

/// Cuts the rendered text at the mark. A template may strip contents, and then the blank of the
/// mark is gone: what stands in front of the mark is stripped likewise, since without the mark it
/// would have been. INVALID_ARGUMENT: the template did not print the message.
fn cut_at_end(mut text: String, final_text: &str) -> Result<String, Failure> {
    let mark = END_MARK.trim_end();
    let at = text.rfind(mark).filter(|_| text.contains(crate::python::strip(final_text, None, true, true)));
    let Some(at) = at else {
        return Err(Failure::invalid("the final message to continue does not appear in the rendered chat"));
    };
    let spaced = text[at..].starts_with(END_MARK);
    text.truncate(at);
    if !spaced {
        text.truncate(crate::python::strip(&text, None, false, true).len());
    }
    Ok(text)
}
