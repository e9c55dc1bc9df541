// A stream of events is read line by line (`AddLines`), any other answer is kept whole and read at
// the end. Only lines with one of two words are parsed at all. Lines that are split over chunks are
// put together in `kept_`; a line that arrives whole is read in place, without a copy.

#include "frontend/prompt/openai/usage_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>

namespace kvatlas {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kData = "data:";
constexpr std::string_view kEvent = "event:";
constexpr std::string_view kUsage = "\"usage\"";
constexpr std::string_view kMetaInfo = "\"meta_info\"";

// Whether an event of this name says only that the request was taken.
bool SaysTaken(std::string_view name) {
  const size_t from = std::min(name.find_first_not_of(' '), name.size());
  name = name.substr(from, name.find_last_not_of("\r ") + 1 - from);
  return name == "response.created" || name == "response.queued" || name == "response.in_progress";
}

// A count that is missing, negative, no integer or beyond 32 bits is no count.
std::optional<uint32_t> CountIn(const dom::object& object, const char* name) {
  uint64_t count = 0;
  if (object[name].get_uint64().get(count) != simdjson::SUCCESS ||
      count > std::numeric_limits<uint32_t>::max())
    return std::nullopt;
  return static_cast<uint32_t>(count);
}

std::optional<uint32_t> CountIn(const dom::object& object, const char* inner, const char* name) {
  dom::object details;
  if (object[inner].get_object().get(details) != simdjson::SUCCESS) return std::nullopt;
  return CountIn(details, name);
}

// Adds the counts of one usage object; a count that it does not have stays as it was. All APIs are
// read by one function, as their names of fields do not overlap. Anthropic's `input_tokens` are
// those behind the cache, so the prompt is the sum of three; the Responses API has `input_tokens`
// for the whole prompt and neither of the other two.
void Take(const dom::object& usage, OpenAiUsage* to) {
  const auto take = [](std::optional<uint32_t> count, std::optional<uint32_t>* into) {
    if (count.has_value()) *into = count;
  };
  take(CountIn(usage, "prompt_tokens"), &to->prompt_tokens);
  take(CountIn(usage, "completion_tokens"), &to->completion_tokens);
  take(CountIn(usage, "output_tokens"), &to->completion_tokens);
  take(CountIn(usage, "cached_tokens"), &to->cached_tokens);
  take(CountIn(usage, "prompt_tokens_details", "cached_tokens"), &to->cached_tokens);
  take(CountIn(usage, "input_tokens_details", "cached_tokens"), &to->cached_tokens);
  const std::optional<uint32_t> input = CountIn(usage, "input_tokens");
  const std::optional<uint32_t> read = CountIn(usage, "cache_read_input_tokens");
  take(read, &to->cached_tokens);
  if (input.has_value())
    to->prompt_tokens =
        *input + read.value_or(0) + CountIn(usage, "cache_creation_input_tokens").value_or(0);
}

}  // namespace

UsageReader::UsageReader(std::string_view content_type)
    : events_(content_type.starts_with("text/event-stream")) {}

void UsageReader::Add(std::string_view chunk) {
  if (chunk.empty()) return;
  if (events_) return AddLines(chunk);
  began_ = true;
  if (too_long_) return;
  too_long_ = kept_.size() + chunk.size() > kUsageBytesMax;
  if (too_long_) {
    kept_.clear();
  } else {
    kept_ += chunk;
  }
}

// `kept_` is the beginning of a line that has not ended. `too_long_` drops the rest of a line up to
// its end; the next line is read again.
void UsageReader::AddLines(std::string_view chunk) {
  while (!chunk.empty()) {
    const size_t end = chunk.find('\n');
    const std::string_view part = chunk.substr(0, end);
    const bool whole = end != std::string_view::npos;
    if (kept_.empty() && !too_long_ && whole) {
      ReadLine(part);
    } else {
      too_long_ = too_long_ || kept_.size() + part.size() > kUsageBytesMax;
      if (too_long_) {
        kept_.clear();
      } else {
        kept_ += part;
      }
      if (whole) {
        ReadLine(kept_);
        kept_.clear();
        too_long_ = false;
      }
    }
    if (!whole) return;
    chunk.remove_prefix(end + 1);
  }
}

// An event is its lines up to an empty one. `taken_` holds for that event alone.
void UsageReader::ReadLine(std::string_view line) {
  if (line.starts_with(kEvent)) taken_ = SaysTaken(line.substr(kEvent.size()));
  if (line.empty() || line == "\r") taken_ = false;
  if (!line.starts_with(kData)) return;
  began_ = began_ || !taken_;
  ReadJson(line.substr(kData.size()));
}

// Events of SGLang's /generate repeat `meta_info` with growing text: only the last one is parsed,
// in `Finish`.
void UsageReader::ReadJson(std::string_view text) {
  const bool has_usage = text.find(kUsage) != std::string_view::npos;
  if (!has_usage && text.find(kMetaInfo) == std::string_view::npos) return;
  if (has_usage || !events_) return Parse(text, has_usage);
  meta_info_.assign(text);
}

void UsageReader::Parse(std::string_view text, bool has_usage) {
  dom::parser parser;
  dom::object of, inner, usage;
  if (parser.parse(text.data(), text.size()).get_object().get(of) != simdjson::SUCCESS) return;
  // Events of a stream of Responses, or of messages, have the answer one level down.
  for (const char* whole : {"response", "message"}) {
    if (of[whole].get_object().get(inner) == simdjson::SUCCESS &&
        inner["usage"].error() == simdjson::SUCCESS)
      of = inner;
  }
  if (of[has_usage ? "usage" : "meta_info"].get_object().get(usage) != simdjson::SUCCESS) return;
  if (!usage_.has_value()) usage_.emplace();
  Take(usage, &*usage_);
}

// The last line of a stream may lack its line end.
std::optional<OpenAiUsage> UsageReader::Finish() {
  if (events_) {
    ReadLine(kept_);
    if (!meta_info_.empty()) Parse(meta_info_, /*has_usage=*/false);
  } else {
    ReadJson(kept_);
  }
  kept_.clear();
  return usage_;
}

}  // namespace kvatlas
