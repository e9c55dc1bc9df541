// Writes JSON for the template engine: what `nlohmann::ordered_json::dump` writes of valid UTF-8, at several times its speed,
// since strings are copied in runs instead of byte by byte.
//
// *Truth*: strings are not checked: of one that is not UTF-8 the reader finds out. *Threads*: pure functions.
// *Cost*: a copy of the text; numbers are written by the library. *Bounds*: it recurses as deep as the value is nested.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_JSON_TEXT_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvatlas {

void AppendJson(const nlohmann::ordered_json& value, std::string* text);
// With its quotation marks.
void AppendJsonString(std::string_view value, std::string* text);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_JSON_TEXT_H_
