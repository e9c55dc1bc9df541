// Fields and items keep the exact text of their values. simdjson's on-demand parser gives it as a
// view into the padded copy: scalars as one token, objects and arrays from bracket to bracket.

#include "frontend/prompt/json_fields.h"

#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

namespace ondemand = simdjson::ondemand;
using ondemand::json_type;

absl::Status NotJson() { return absl::InvalidArgumentError("the body is not JSON"); }

// A raw token of simdjson reaches to the next one, white space included.
std::string_view WithoutSpaceBehind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

// The text of a value. A token of no type (NaN, Infinity) is taken as it is: Python's json reads
// it. An object or an array is walked to its end, which checks its structure; numbers and literals
// in it are not checked.
absl::StatusOr<std::string_view> RawOf(ondemand::value value) {
  json_type type;
  std::string_view raw;
  simdjson::error_code bad = simdjson::SUCCESS;
  if (value.type().get(type) != simdjson::SUCCESS) {
    raw = value.raw_json_token();  // NaN
  } else if (type == json_type::object) {
    ondemand::object object;
    bad = value.get_object().get(object);
    if (bad == simdjson::SUCCESS) bad = object.raw_json().get(raw);
  } else if (type == json_type::array) {
    ondemand::array array;
    bad = value.get_array().get(array);
    if (bad == simdjson::SUCCESS) bad = array.raw_json().get(raw);
  } else {
    raw = value.raw_json_token();
  }
  if (bad != simdjson::SUCCESS) return NotJson();
  return WithoutSpaceBehind(raw);
}

}  // namespace

// `places` keeps the work linear in the number of keys. A key that comes again replaces the value
// at the place of the first, as Python's dict does.
absl::StatusOr<JsonFields> JsonText::AsFields() {
  ondemand::document document;
  ondemand::object object;
  if (parser_.iterate(padded_).get(document) != simdjson::SUCCESS ||
      document.get_object().get(object) != simdjson::SUCCESS)
    return absl::InvalidArgumentError("the body is not a JSON object");
  JsonFields fields;
  absl::flat_hash_map<std::string, size_t> places;
  for (auto each : object) {
    ondemand::field one;
    std::string_view key;
    if (std::move(each).get(one) != simdjson::SUCCESS ||
        one.unescaped_key().get(key) != simdjson::SUCCESS)
      return NotJson();
    std::string name(key);
    absl::StatusOr<std::string_view> raw = RawOf(one.value());
    if (!raw.ok()) return raw.status();
    const auto [earlier, is_new] = places.emplace(name, fields.size());
    if (is_new) {
      fields.emplace_back(std::move(name), *raw);
    } else {
      fields[earlier->second].second = *raw;
    }
  }
  return fields;
}

absl::StatusOr<std::vector<std::string_view>> JsonText::AsItems() {
  ondemand::document document;
  ondemand::array array;
  if (parser_.iterate(padded_).get(document) != simdjson::SUCCESS ||
      document.get_array().get(array) != simdjson::SUCCESS)
    return absl::InvalidArgumentError("not a JSON array");
  std::vector<std::string_view> items;
  for (auto each : array) {
    ondemand::value value;
    if (std::move(each).get(value) != simdjson::SUCCESS) return NotJson();
    absl::StatusOr<std::string_view> raw = RawOf(value);
    if (!raw.ok()) return raw.status();
    items.push_back(*raw);
  }
  return items;
}

std::string_view GivenIn(const JsonFields& fields, std::string_view name) {
  for (const auto& [key, raw] : fields) {
    if (key == name) return raw == "null" ? std::string_view() : raw;
  }
  return {};
}

// Invalid UTF-8 becomes U+FFFD rather than an exception.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// An object of one character is "{": no comma yet.
void AppendField(std::string_view name, std::string_view value, std::string* object) {
  absl::StrAppend(object, object->size() > 1 ? "," : "", Quoted(std::string(name)), ":",
                  std::string(value));
}

}  // namespace kvatlas
