#include "frontend/prompt/openai/json_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;
using simdjson::dom::element_type;

// Texts that a parser has room for when it is made, and when it is kept.
constexpr size_t kFirstBytes = 32 << 10;
constexpr size_t kKeptBytes = 256 << 10;
// Names of an object that are compared one by one; those of a larger one are hashed.
constexpr size_t kComparedNames = 16;

// A parser and the text with the padding that it reads beyond the end.
struct Parser {
  simdjson::dom::parser parser;
  std::string text;
};

class Builder {
 public:
  // simdjson takes half of a pair of surrogates, which is not UTF-8 then.
  explicit Builder(bool check) : check_(check) {}

  Json Value(const simdjson::dom::element& from) {
    switch (from.type()) {
      case element_type::OBJECT:
        return Object(from.get_object().value_unsafe());
      case element_type::ARRAY:
        return Array(from.get_array().value_unsafe());
      case element_type::STRING:
        return String(from.get_string().value_unsafe());
      case element_type::INT64:
        return Integer(from.get_int64().value_unsafe());
      case element_type::UINT64:
        return from.get_uint64().value_unsafe();
      case element_type::DOUBLE:
        return from.get_double().value_unsafe();
      case element_type::BOOL:
        return from.get_bool().value_unsafe();
      case element_type::NULL_VALUE:
        break;
    }
    return nullptr;
  }

  bool good() const { return good_; }

 private:
  static Json Integer(int64_t value) {
    if (value >= 0) return static_cast<uint64_t>(value);
    return value;
  }

  std::string String(std::string_view text) {
    if (check_ && !simdjson::validate_utf8(text.data(), text.size())) good_ = false;
    return std::string(text);
  }

  Json Array(const simdjson::dom::array& from) {
    Json array = Json::array();
    auto& items = array.get_ref<Json::array_t&>();
    items.reserve(from.size());
    for (const simdjson::dom::element item : from) items.push_back(Value(item));
    return array;
  }

  Json Object(const simdjson::dom::object& from) {
    Json object = Json::object();
    auto& fields = object.get_ref<Json::object_t&>();
    absl::flat_hash_map<std::string, size_t> places;
    fields.reserve(from.size());
    for (const simdjson::dom::key_value_pair field : from) {
      std::string key = String(field.key);
      const std::optional<size_t> before = Before(fields, key, &places);
      if (before.has_value()) {
        fields.begin()[static_cast<ptrdiff_t>(*before)].second = Value(field.value);
      } else {
        fields.emplace_back(std::move(key), Value(field.value));
      }
    }
    return object;
  }

  static const std::string& Name(const Json::object_t& fields, size_t index) {
    return fields.begin()[static_cast<ptrdiff_t>(index)].first;
  }

  // Where that name stands already. `places` has the names of a large object.
  static std::optional<size_t> Before(const Json::object_t& fields, const std::string& key,
                                      absl::flat_hash_map<std::string, size_t>* places) {
    if (fields.size() < kComparedNames) {
      for (size_t i = 0; i < fields.size(); ++i) {
        if (Name(fields, i) == key) return i;
      }
      return std::nullopt;
    }
    for (size_t i = places->size(); i < fields.size(); ++i) places->emplace(Name(fields, i), i);
    const auto found = places->find(key);
    if (found == places->end()) return std::nullopt;
    return found->second;
  }

  const bool check_;
  bool good_ = true;
};

absl::StatusOr<Json> ReadSlowly(std::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("the body is empty; expected a JSON object");
  if (IsNestedTooDeep(text)) return absl::InvalidArgumentError("the body is nested too deep");
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body is not JSON: wrong at byte ", error.byte));
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("the body is not JSON: a number in it is too large");
  }
}

std::optional<Json> ReadFast(std::string_view text, Parser* with) {
  if (with->parser.capacity() < text.size()) {
    const size_t bytes = std::max(text.size(), kFirstBytes);
    if (with->parser.allocate(bytes, kJsonDepthMax) != simdjson::SUCCESS) return std::nullopt;
  }
  with->text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  with->text.assign(text);
  simdjson::dom::element root;
  const auto error = with->parser.parse(with->text.data(), text.size(), false).get(root);
  if (error != simdjson::SUCCESS) return std::nullopt;
  Builder builder(text.find("\\u") != std::string_view::npos);
  Json json = builder.Value(root);
  if (!builder.good()) return std::nullopt;
  return json;
}

}  // namespace

absl::StatusOr<Json> ReadJson(std::string_view text) {
  thread_local std::unique_ptr<Parser> kept;
  if (kept == nullptr) kept = std::make_unique<Parser>();
  std::optional<Json> json = ReadFast(text, kept.get());
  if (kept->parser.capacity() > kKeptBytes) kept = nullptr;
  if (json.has_value()) return *std::move(json);
  return ReadSlowly(text);
}

}  // namespace kvatlas
