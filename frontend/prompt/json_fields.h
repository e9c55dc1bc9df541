// The fields of a JSON object with the text of their values. For bodies that are passed on in
// parts: numbers, escapes and the order of keys stay the client's.
//
// *Truth*: a key that is there twice has its last value, as in Python's json. Values that Python's
// json reads and JSON does not allow (NaN) are passed on.
// *Threads*: functions, and objects of one thread. *Cost*: one pass of simdjson's on-demand parser
// over a copy.
//
// Example:
//   JsonText body(R"({"messages": [1e400], "model": null})");
//   absl::StatusOr<JsonFields> fields = body.AsFields();   // {{"messages", "[1e400]"}, {"model", "null"}}

#ifndef KVATLAS_FRONTEND_PROMPT_JSON_FIELDS_H_
#define KVATLAS_FRONTEND_PROMPT_JSON_FIELDS_H_

#include <simdjson.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kvatlas {

// Keys and the texts of their values, in the order of the object.
using JsonFields = std::vector<std::pair<std::string, std::string_view>>;

// A text that is taken apart. Results point into it, and live as long as it does.
class JsonText {
 public:
  explicit JsonText(std::string_view json) : padded_(json) {}

  // INVALID_ARGUMENT: no object, or no array.
  absl::StatusOr<JsonFields> AsFields();
  absl::StatusOr<std::vector<std::string_view>> AsItems();

 private:
  simdjson::padded_string padded_;
  simdjson::ondemand::parser parser_;
};

// The text of the value of `name`; empty: it is missing or null.
std::string_view GivenIn(const JsonFields& fields, std::string_view name);

// A JSON string.
std::string Quoted(const std::string& text);

// Appends a field to an object that is being written: "{" and what was appended before.
void AppendField(std::string_view name, std::string_view value, std::string* object);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_JSON_FIELDS_H_
