use super::read;
use crate::chat::Templates;
use crate::json::{Json, Map};
use crate::request::{Convention, Engine, Part, Path, Truncate};

/// Prints messages, and what else a prompt may depend on.
const SHOWS: &str = "{% for m in messages %}{{ m | tojson }}{% if not loop.last %} {% endif %}{% endfor %}\
{% if tools is not none %}|{{ tools | tojson }}{% endif %}{% if x is defined %}|x={{ x }}{% endif %}\
{% if enable_thinking is defined %}|thinking={{ enable_thinking }}{% endif %}{% if reasoning_effort is defined %}|{{ reasoning_effort }}{% endif %}";
const LOOPS: &str = "{% for m in messages %}{% for c in m.content %}{{ c | tojson }}{% endfor %}{% endfor %}";
const SYSTEM_FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}\
[{{ m.role }}]{{ m.content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}|off{% endif %}";

fn templates(source: &str) -> Templates {
    Templates::new(&Map::from_iter([("default", source)]), Map::new()).unwrap()
}

fn of(source: &str, path: Path, body: &str) -> Result<(String, Option<Truncate>), i32> {
    let empty = Map::new();
    let convention = Convention { trust_templates: true, context_max: 1000, ..Convention::of_test(Engine::Vllm, "qwen3", &empty) };
    let Json::Map(body) = Json::parse(body).unwrap() else { panic!() };
    let reading = read(&templates(source), &convention, path, body).map_err(|failure| failure.code)?;
    let text = reading.parts.iter().map(|part| match part {
        Part::Text { text, around } => format!("{}{text}", if *around { "<around>" } else { "" }),
        Part::Ids(ids) => format!("{ids:?}"),
    });
    Ok((text.collect(), reading.truncate))
}

fn chat(source: &str, body: &str) -> String {
    match of(source, Path::Chat, body) {
        Ok((text, _)) => text,
        Err(code) => format!("failed {code}"),
    }
}

fn message(message: &str) -> String {
    chat(SHOWS, &format!(r#"{{"messages": [{message}]}}"#))
}

const CALL: &str =
    r#"{"type": "function", "x": 1, "id": "a", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": [10000000000000000000000]}"}}"#;

#[test]
fn calls_have_objects_as_arguments_and_the_order_of_their_type() {
    assert_eq!(
        message(&format!(r#"{{"role": "assistant", "content": null, "tool_calls": [{CALL}]}}"#)),
        r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"arguments": {"b": 1.0, "a": [10000000000000000000000]}, "name": "f"}, "type": "function", "x": 1}]}"#
    );
    for arguments in ["", "null", "[1]", "5", "{"] {
        let call = CALL.replace(r#"{\"b\": 1.0, \"a\": [10000000000000000000000]}"#, arguments);
        let text = message(&format!(r#"{{"role": "assistant", "content": "", "tool_calls": [{call}]}}"#));
        assert!(text.contains(r#""arguments": {}, "name""#), "{arguments}: {text}");
    }
}

#[test]
fn calls_that_are_none_are_refused_and_empty_lists_of_them_dropped() {
    let with = |calls: &str| message(&format!(r#"{{"role": "assistant", "content": "x", "tool_calls": {calls}}}"#));
    for calls in [
        r#"[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]"#,
        r#"[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]"#,
        r#"[{"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]"#,
        r#"[{"id": "a", "type": "custom", "custom": {"name": "f", "input": ""}}]"#,
        "5",
        "\"ab\"",
    ] {
        assert_eq!(with(calls), "failed 3", "{calls}");
    }
    for calls in ["[]", "null", "{}", "\"\""] {
        assert_eq!(with(calls), r#"{"role": "assistant", "content": "x"}"#, "{calls}");
    }
}

#[test]
fn null_content_is_for_assistants_and_functions() {
    assert_eq!(message(r#"{"role": "assistant"}"#), r#"{"role": "assistant", "content": ""}"#);
    assert_eq!(message(r#"{"role": "user"}"#), r#"{"role": "user", "content": ""}"#);
    assert_eq!(
        message(r#"{"role": "function", "content": null, "name": "n"}"#),
        r#"{"role": "function", "content": "", "name": "n"}"#
    );
    for text in [
        r#"{"role": "user", "content": null}"#,
        r#"{"role": "tool", "content": null, "tool_call_id": "1"}"#,
        r#"{"role": "assistant", "content": null, "tool_calls": null}"#,
        r#"{"role": "user", "content": 5}"#,
        r#"{"content": "x"}"#,
        r#"{"role": 5, "content": "x"}"#,
        r#"{"role": "user", "content": "x", "name": null}"#,
        r#""x""#,
    ] {
        assert_eq!(message(text), "failed 3", "{text}");
    }
}

#[test]
fn parts_are_joined_or_kept_as_the_template_wants_them() {
    let parts = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1, "uuid": null}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]}]}"#;
    assert_eq!(chat(SHOWS, parts), r#"{"role": "user", "content": "a\nb"}"#);
    assert_eq!(
        chat(LOOPS, parts),
        r#"{"type": "text", "text": "a", "cache_control": 1}{"type": "text", "text": ""}{"type": "text", "text": "b"}"#
    );
    assert_eq!(
        chat(LOOPS, r#"{"messages": [{"role": "user", "content": "a"}]}"#),
        r#"{"type": "text", "text": "a"}"#
    );
    assert_eq!(
        message(r#"{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "refusal", "refusal": "r"}]}"#),
        r#"{"role": "assistant", "content": "t\nr"}"#
    );
}

#[test]
fn a_list_of_parts_is_looked_at_by_the_type_that_knows_more_of_the_message() {
    let user = |parts: &str| message(&format!(r#"{{"role": "user", "content": {parts}}}"#));
    let text = r#"{"type": "text", "text": "a"}"#;
    assert_eq!(
        user(&format!(r#"[{text}, "b", {{"type": "input_text", "text": "c"}}]"#)),
        r#"{"role": "user", "content": "a\nb\nc"}"#
    );
    for parts in [
        r#"["b"]"#,
        r#"[{"type": "input_text", "text": "c"}]"#,
        r#"[{"type": "text", "text": null}]"#,
        r#"[{"text": "c"}]"#,
        "[5]",
        r#"{"a": 1}"#,
        r#"[{"type": "text", "text": "x", "uuid": "1"}]"#,
    ] {
        assert_eq!(user(parts), "failed 3", "{parts}");
    }
    assert_eq!(user("[]"), r#"{"role": "user", "content": ""}"#);
    assert_eq!(
        message(r#"{"role": "assistant", "content": ["s"], "reasoning": "r"}"#),
        r#"{"role": "assistant", "content": "s", "reasoning": "r", "reasoning_content": "r"}"#
    );
    assert_eq!(
        message(r#"{"role": "narrator", "content": ["s"]}"#),
        r#"{"role": "narrator", "content": "s"}"#
    );
}

#[test]
fn media_cannot_be_read_here() {
    for part in [
        r#"{"type": "image_url", "image_url": {"url": "x"}}"#,
        r#"{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}"#,
        r#"{"image_url": "x"}"#,
        r#"{"type": "video_url", "video_url": {"url": "x"}}"#,
    ] {
        assert_eq!(
            message(&format!(
                r#"{{"role": "user", "content": [{{"type": "text", "text": "a"}}, {part}]}}"#
            )),
            "failed 12",
            "{part}"
        );
    }
}

#[test]
fn reasoning_has_both_of_its_names_and_nothing_else_is_added() {
    let text = r#"{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}"#;
    for name in ["reasoning", "reasoning_content"] {
        assert_eq!(
            message(&format!(
                r#"{{"role": "assistant", "content": "a", "{name}": "r", "thinking": "t", "foo": 1}}"#
            )),
            text
        );
    }
    assert_eq!(
        message(r#"{"role": "user", "content": "a", "reasoning": "r"}"#),
        r#"{"role": "user", "content": "a"}"#
    );
}

#[test]
fn tools_have_known_keys_in_one_order() {
    let tools = |tools: &str| {
        chat(
            "{{ tools | tojson }}",
            &format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "tools": {tools}}}"#),
        )
    };
    assert_eq!(
        tools(r#"[{"function": {"strict": "yes", "z": 1, "parameters": {"b": 1, "a": 2}, "name": "f"}, "type": "function", "y": 1}]"#),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}, "strict": true}}]"#
    );
    assert_eq!(
        tools(r#"[{"function": {"name": "f"}, "defer_loading": true}]"#),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "defer_loading": true}, "defer_loading": true}]"#
    );
    for wrong in [
        "[]",
        "[{}]",
        r#"[{"type": null, "function": {"name": "f"}}]"#,
        r#"[{"function": {"name": 5}}]"#,
        r#"[{"function": {"name": "f", "parameters": []}}]"#,
        "\"x\"",
    ] {
        assert_eq!(tools(wrong), "failed 3", "{wrong}");
    }
    assert_eq!(tools("null"), "null");
}

#[test]
fn developers_are_the_system_where_the_template_does_not_know_them() {
    let body = r#"{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "developer", "content": [{"type": "text", "text": "c"}]}]}"#;
    assert_eq!(
        chat("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", body),
        "[system]a\n\nc[user]b"
    );
    assert_eq!(
        chat(
            "{% for m in messages %}{% if m.role == 'developer' %}!{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}",
            body
        ),
        "[system]a[user]b![developer]c"
    );
    let two = r#"{"messages": [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]}"#;
    assert_eq!(
        chat("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", two),
        "[system]a[system]b"
    );
}

#[test]
fn the_header_of_a_client_is_not_read() {
    assert_eq!(
        message(r#"{"role": "system", "content": "x-anthropic-billing-header: 1\nBe kind."}"#),
        r#"{"role": "system", "content": "Be kind."}"#
    );
    assert_eq!(
        message(r#"{"role": "user", "content": "x-anthropic-billing-header: 1\nBe kind."}"#),
        r#"{"role": "user", "content": "x-anthropic-billing-header: 1\nBe kind."}"#
    );
}

#[test]
fn variables_of_a_request() {
    let with = |fields: &str| {
        chat(
            "{{ [x, enable_thinking, reasoning_effort, tools] | tojson }}",
            &format!(r#"{{"messages": [{{"role": "user", "content": ""}}], {fields}}}"#),
        )
    };
    let with = |fields: &str| with(fields).replace("failed 3", "refused");
    assert_eq!(
        with(r#""chat_template_kwargs": {"x": 1, "enable_thinking": false, "reasoning_effort": "r"}, "reasoning_effort": "low""#),
        r#"[1, false, "low", null]"#
    );
    assert_eq!(
        with(r#""chat_template_kwargs": {"x": 1}, "reasoning_effort": "none""#),
        r#"[1, false, "none", null]"#
    );
    assert_eq!(
        with(r#""chat_template_kwargs": {"x": 1, "reasoning_effort": 2, "enable_thinking": 1, "tools": [{}]}"#),
        "[1, 1, 2, [{}]]"
    );
    assert_eq!(with(r#""chat_template_kwargs": {"messages": []}"#), "refused");
    assert_eq!(with(r#""reasoning_effort": "extreme""#), "refused");
    assert_eq!(
        message(r#"{"role": "user", "content": "x"}], "chat_template_kwargs": {"x": "auto"}, "y": ["#),
        r#"{"role": "user", "content": "x"}"#
    );
}

#[test]
fn fields_are_taken_as_pydantic_takes_them() {
    let with = |fields: &str| {
        chat(
            "{{ add_generation_prompt }}",
            &format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], {fields}}}"#),
        )
    };
    for (fields, text) in [
        (r#""add_generation_prompt": "false""#, "False"),
        (r#""add_generation_prompt": 1"#, "True"),
        (r#""add_special_tokens": "true""#, "<around>True"),
        (r#""add_generation_prompt": null"#, "failed 3"),
        (r#""add_generation_prompt": "maybe""#, "failed 3"),
        (r#""continue_final_message": true"#, "failed 3"),
        (r#""temperature": "0.5", "n": "1", "seed": 1.0"#, "True"),
        (r#""temperature": "hot""#, "failed 3"),
        (r#""stop": ["a", "b", "c", "d", "e"]"#, "failed 3"),
        (r#""stream_options": {"include_usage": true}"#, "failed 3"),
        (r#""stream_options": {"include_usage": true}, "stream": true"#, "True"),
        (r#""tool_choice": "auto""#, "failed 3"),
        (r#""tool_choice": "none""#, "True"),
        (r#""top_logprobs": 2"#, "failed 3"),
        (r#""response_format": {"type": "json_schema"}"#, "failed 3"),
        (r#""cache_salt": "a@b""#, "failed 3"),
        (r#""user": NaN"#, "failed 3"),
        (r#""unknown": NaN"#, "True"),
        (r#""max_tokens": 1001"#, "failed 3"),
        (r#""kv_transfer_params": {"prompt_token_ids": [1, 2]}"#, "[1, 2]"),
        (r#""kv_transfer_params": {"prompt_token_ids": [true]}"#, "failed 3"),
    ] {
        assert_eq!(with(fields), text, "{fields}");
    }
}

#[test]
fn prompts_are_cut_where_the_request_says_so() {
    let with = |path, fields: &str| {
        of(
            "x",
            path,
            &format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "prompt": "x", {fields}}}"#),
        )
        .map(|(_, cut)| cut)
    };
    assert_eq!(
        with(Path::Chat, r#""truncate_prompt_tokens": 50"#),
        Ok(Some(Truncate::KeepLast(50)))
    );
    assert_eq!(
        with(Path::Completions, r#""truncate_prompt_tokens": 50"#),
        Ok(Some(Truncate::KeepLastOfText(50)))
    );
    assert_eq!(
        with(Path::Completions, r#""truncate_prompt_tokens": 50, "truncation_side": "left""#),
        Ok(Some(Truncate::KeepLast(50)))
    );
    assert_eq!(
        with(Path::Chat, r#""truncate_prompt_tokens": "50", "truncation_side": "right""#),
        Ok(Some(Truncate::KeepFirst(50)))
    );
    assert_eq!(
        with(Path::Chat, r#""truncate_prompt_tokens": -1"#),
        Ok(Some(Truncate::KeepLast(999)))
    );
    assert_eq!(
        with(
            Path::Completions,
            r#""truncate_prompt_tokens": -1, "max_tokens": 0, "echo": true, "add_special_tokens": 0"#
        ),
        Ok(Some(Truncate::KeepLast(1000)))
    );
    for fields in [
        r#""truncate_prompt_tokens": -2"#,
        r#""truncate_prompt_tokens": 1001"#,
        r#""truncate_prompt_tokens": 0"#,
        r#""truncation_side": "up""#,
    ] {
        assert_eq!(with(Path::Chat, fields), Err(3), "{fields}");
    }
}

#[test]
fn completions_take_texts_and_ids() {
    let with = |prompt: &str| {
        of("x", Path::Completions, &format!(r#"{{"prompt": {prompt}}}"#)).map_or_else(|code| format!("failed {code}"), |(text, _)| text)
    };
    for (prompt, read) in [
        ("\"a\"", "<around>a"),
        (r#"["a", "b"]"#, "<around>a"),
        (r#"["1", "2"]"#, "<around>1"),
        ("[1, 2.0, true, \"4\"]", "[1, 2, 1, 4]"),
        ("[[1, 2], [3]]", "[1, 2]"),
        ("\"\"", "failed 3"),
        ("null", "failed 3"),
        ("[]", "failed 3"),
        ("[[]]", "failed 3"),
        ("[1, \"a\"]", "failed 3"),
        ("[-1]", "failed 3"),
        ("[1.5]", "failed 3"),
        ("5", "failed 3"),
    ] {
        assert_eq!(with(prompt), read, "{prompt}");
    }
    assert_eq!(of("x", Path::Completions, r#"{"prompt": "a", "suffix": "b"}"#), Err(3));
    assert_eq!(of("x", Path::Completions, r#"{"prompt": "a", "prompt_embeds": "b"}"#), Err(12));
}

fn messages(source: &str, body: &str) -> String {
    match of(source, Path::Messages, &format!(r#"{{"model": "m", "max_tokens": 10, {body}}}"#)) {
        Ok((text, _)) => text,
        Err(code) => format!("failed {code}"),
    }
}

#[test]
fn messages_become_a_chat() {
    assert_eq!(
        messages(
            SHOWS,
            r#""system": [{"type": "text", "text": "a"}, {"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "b"}],
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "text", "text": "x"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1.0}}]},
            {"role": "user", "content": [{"type": "text", "text": "y"}, {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]}]}]"#
        ),
        concat!(
            r#"{"role": "system", "content": "ab"} {"role": "user", "content": "q"} "#,
            r#"{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "function": {"arguments": {"a": 1.0}, "name": "f"}, "type": "function"}], "reasoning": "t", "reasoning_content": "t"} "#,
            r#"{"role": "tool", "content": "r\ns", "tool_call_id": "1"} {"role": "user", "content": "y"}"#
        )
    );
    assert_eq!(
        messages(
            "{{ tools | tojson }}",
            r#""messages": [{"role": "user", "content": "q"}], "tools": [{"input_schema": {"properties": {}}, "name": "f", "cache_control": {}}]"#
        ),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"properties": {}, "type": "object"}}}]"#
    );
}

#[test]
fn messages_that_the_engine_refuses() {
    for body in [
        r#""messages": [{"role": "tool", "content": "x"}]"#,
        r#""messages": [{"role": "user", "content": null}]"#,
        r#""messages": [{"role": "user", "content": [{"type": "document"}]}]"#,
        r#""messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]"#,
        r#""messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled", "budget_tokens": 2000}"#,
        r#""messages": [{"role": "user", "content": "x"}], "output_config": {"effort": "none"}"#,
        r#""messages": [{"role": "user", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}]}]"#,
    ] {
        assert_eq!(messages(SHOWS, body), "failed 3", "{body}");
    }
    assert_eq!(
        of(
            SHOWS,
            Path::Messages,
            r#"{"model": "m", "messages": [{"role": "user", "content": "x"}]}"#
        ),
        Err(3)
    );
    assert_eq!(
        messages(
            SHOWS,
            r#""messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]"#
        ),
        "failed 12"
    );
}

#[test]
fn inline_system_messages_are_merged_where_the_template_wants_the_system_first() {
    let body = r#""system": "a", "messages": [{"role": "user", "content": "q"}, {"role": "system", "content": "b"}]"#;
    assert_eq!(messages(SYSTEM_FIRST, body), "[system]ab[user]q");
    assert_eq!(
        messages("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", body),
        "[system]a[user]q[system]b"
    );
    // Plain Jinja2 has neither this function nor this block.
    assert_eq!(
        messages(
            "{{ strftime_now('') }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
            body
        ),
        "[system]ab[user]q"
    );
    assert_eq!(
        messages(
            "{% for m in messages %}{% generation %}[{{ m.role }}]{{ m.content }}{% endgeneration %}{% endfor %}",
            body
        ),
        "[system]ab[user]q"
    );
}

#[test]
fn thinking_that_is_disabled_is_the_effort_none_or_low() {
    let body = r#""messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"}"#;
    assert_eq!(messages(SYSTEM_FIRST, body), "[user]q|off");
    assert_eq!(
        messages("{{ reasoning_effort if reasoning_effort != 'none' else 'max' }}", body),
        "low"
    );
    assert_eq!(
        messages(
            "{{ raise_exception('') if reasoning_effort == 'none' }}{{ reasoning_effort }}",
            body
        ),
        "low"
    );
}

#[test]
fn tools_change_in_a_conversation_of_messages() {
    let tool = |name: &str| format!(r#"{{"name": "{name}", "input_schema": {{}}}}"#);
    let change = |kind: &str, tool: &str| format!(r#"{{"type": "tool_{kind}", "tool": {tool}}}"#);
    let body = format!(
        r#""tools": [{}, {}], "messages": [{{"role": "user", "content": "q"}}, {{"role": "system", "content": [{}, {}]}}]"#,
        tool("f"),
        tool("g"),
        change("removal", r#"{"type": "tool_reference", "name": "f"}"#),
        change(
            "addition",
            &format!(r#"{{"type": "tool_definition", "definition": {}}}"#, tool("h"))
        ),
    );
    assert_eq!(messages("{% for t in tools %}{{ t.function.name }}{% endfor %}", &body), "gh");
    assert_eq!(messages("", &body.replace(r#""name": "f"}}"#, r#""name": "k"}}"#)), "failed 3");
}

#[test]
fn models_of_another_encoding_are_not_read() {
    let empty = Map::new();
    let mut convention = Convention { trust_templates: true, ..Convention::of_test(Engine::Vllm, "deepseek_v32", &empty) };
    let code = |convention: &Convention, path, body: &str| {
        let Json::Map(body) = Json::parse(body).unwrap() else { panic!() };
        read(&templates("x"), convention, path, body).map_err(|failure| failure.code).err()
    };
    let chat = r#"{"messages": [{"role": "user", "content": "x"}]}"#;
    assert_eq!(code(&convention, Path::Chat, chat), Some(12));
    convention.model_type = "mistral";
    assert_eq!(code(&convention, Path::Chat, chat), None);
    convention.mistral_tokenizer = true;
    assert_eq!(code(&convention, Path::Chat, chat), Some(12));
    assert_eq!(code(&convention, Path::Completions, r#"{"prompt": "x"}"#), Some(12));
    assert_eq!(code(&convention, Path::Completions, r#"{"prompt": [1]}"#), None);
}

#[test]
fn gpt_oss_refuses_null_for_calls_of_others_than_the_assistant_and_takes_an_empty_object_for_a_list() {
    let empty = Map::new();
    let convention = Convention::of_test(Engine::Vllm, "gpt_oss", &empty);
    let is_read = |path, body: &str| {
        let Json::Map(body) = Json::parse(body).unwrap() else { panic!() };
        read(&templates(""), &convention, path, body).is_ok()
    };
    let chat = |message: &str| is_read(Path::Chat, &format!(r#"{{"messages": [{{"role": "user", "content": "a"}}, {message}]}}"#));
    assert!(chat(r#"{"role": "assistant", "content": "b", "tool_calls": null}"#));
    assert!(!chat(r#"{"role": "tool", "tool_call_id": "x", "content": "b", "tool_calls": null}"#));
    assert!(!chat(r#"{"role": "user", "content": "b", "tool_calls": null}"#));
    assert!(is_read(Path::Responses, r#"{"input": {}}"#));
    assert!(!is_read(Path::Responses, r#"{"input": {"a": 1}}"#));
}

#[test]
fn an_item_of_responses_has_a_text_for_its_type_or_null_beside_an_id() {
    let is_read = |kind: &str| {
        let item = format!(r#"{{"type": {kind}, "role": "user", "content": "a", "id": "m"}}"#);
        of(SHOWS, Path::Responses, &format!(r#"{{"input": [{item}]}}"#)).is_ok()
    };
    assert!(is_read("null") && is_read(r#""message""#));
    assert!(!is_read("[]") && !is_read("1") && !is_read(r#""bogus""#));
}
