#include "frontend/prompt/openai/request_wishes.h"

#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

namespace kvatlas {
namespace {

using simdjson::dom::element;

// A parser that had a larger body is not kept.
constexpr size_t kKeptBytes = 256 << 10;
constexpr size_t kStoredMax = 64;

// Without one of these in it a body is not parsed.
constexpr std::string_view kNames[] = {"\"previous_response_id\"",
                                       "\"conversation\"",
                                       "\"item_reference\"",
                                       "\"routed_dp_rank\"",
                                       "\"data_parallel_rank\"",
                                       "\"n\"",
                                       "\"prompt\"",
                                       "\"sampling_params\""};

struct Parser {
  simdjson::dom::parser parser;
  std::string text;  // with the padding that is read beyond the end
};

std::optional<std::string> TextOf(const element& value) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) return std::nullopt;
  return std::string(text);
}

std::optional<uint32_t> CountOf(const element& value) {
  uint64_t count = 0;
  if (value.get_uint64().get(count) != simdjson::SUCCESS ||
      count > std::numeric_limits<uint32_t>::max())
    return std::nullopt;
  return static_cast<uint32_t>(count);
}

std::optional<element> Find(const element& object, std::string_view name) {
  element value;
  if (object.at_key(name).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

void AddStored(const std::optional<element>& id, RequestWishes* wishes) {
  if (!id.has_value() || wishes->stored.size() >= kStoredMax) return;
  if (std::optional<std::string> text = TextOf(*id)) wishes->stored.push_back(*std::move(text));
}

// A list of texts, or of lists of ids, of more than one.
bool IsSeveral(const std::optional<element>& prompt) {
  simdjson::dom::array prompts;
  if (!prompt.has_value() || prompt->get_array().get(prompts) != simdjson::SUCCESS ||
      prompts.size() < 2)
    return false;
  return !prompts.at(0).is_number();
}

void ReadStored(const element& body, RequestWishes* wishes) {
  AddStored(Find(body, "previous_response_id"), wishes);
  simdjson::dom::array items;
  const std::optional<element> input = Find(body, "input");
  if (input.has_value() && input->get_array().get(items) == simdjson::SUCCESS) {
    for (const element item : items) {
      const std::optional<element> type = Find(item, "type");
      if (type.has_value() && TextOf(*type) == "item_reference")
        AddStored(Find(item, "id"), wishes);
    }
  }
  const std::optional<element> conversation = Find(body, "conversation");
  if (conversation.has_value())
    AddStored(conversation->is_object() ? Find(*conversation, "id") : conversation, wishes);
}

RequestWishes Read(const element& body) {
  RequestWishes wishes;
  ReadStored(body, &wishes);
  for (const char* name : {"routed_dp_rank", "data_parallel_rank"}) {
    const std::optional<element> rank = Find(body, name);
    if (rank.has_value() && !wishes.rank.has_value()) wishes.rank = CountOf(*rank);
  }
  const std::optional<element> parameters = Find(body, "sampling_params");
  const std::optional<element> n = Find(parameters.value_or(body), "n");
  const bool one_choice = !n.has_value() || CountOf(*n).value_or(1) < 2;
  wishes.one_prompt = one_choice && !IsSeveral(Find(body, "prompt"));
  if (parameters.has_value() &&
      (IsSeveral(Find(body, "text")) || IsSeveral(Find(body, "input_ids"))))
    wishes.one_prompt = false;
  return wishes;
}

}  // namespace

RequestWishes ReadWishes(std::string_view body) {
  const bool any = std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view name) {
    return body.find(name) != std::string_view::npos;
  });
  if (!any) return {};
  thread_local std::unique_ptr<Parser> kept;
  std::unique_ptr<Parser> with = std::exchange(kept, nullptr);
  if (with == nullptr) with = std::make_unique<Parser>();
  with->text.reserve(body.size() + simdjson::SIMDJSON_PADDING);
  with->text.assign(body);
  element root;
  RequestWishes wishes;
  if (with->parser.parse(with->text.data(), body.size(), false).get(root) == simdjson::SUCCESS &&
      root.is_object())
    wishes = Read(root);
  if (body.size() <= kKeptBytes) kept = std::move(with);
  return wishes;
}

}  // namespace kvatlas
