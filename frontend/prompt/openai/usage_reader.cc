#include "frontend/prompt/openai/usage_reader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "frontend/prompt/openai/json_reader.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kData = "data:";
constexpr std::string_view kEvent = "event:";
constexpr std::string_view kWord = "\"usage\"";

// Of an event's name: it says that the request was taken.
bool SaysTaken(std::string_view name) {
  const size_t from = std::min(name.find_first_not_of(' '), name.size());
  name = name.substr(from, name.find_last_not_of("\r ") + 1 - from);
  return name == "response.created" || name == "response.queued" || name == "response.in_progress";
}

std::optional<uint32_t> CountIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  const uint64_t count = found->get<uint64_t>();
  if (count > std::numeric_limits<uint32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(count);
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

void UsageReader::ReadLine(std::string_view line) {
  if (line.starts_with(kEvent)) taken_ = SaysTaken(line.substr(kEvent.size()));
  if (line.empty() || line == "\r") taken_ = false;
  if (!line.starts_with(kData)) return;
  began_ = began_ || !taken_;
  ReadJson(line.substr(kData.size()));
}

void UsageReader::ReadJson(std::string_view text) {
  if (text.find(kWord) == std::string_view::npos) return;
  const absl::StatusOr<Json> read = kvatlas::ReadJson(text);
  if (!read.ok() || !read->is_object()) return;
  const Json& json = *read;
  // An event of a stream of the Responses API has the response in it.
  const auto response = json.find("response");
  const Json& of = response != json.end() && response->is_object() ? *response : json;
  const auto usage = of.find("usage");
  if (usage == of.end() || !usage->is_object()) return;
  const bool responses = usage->contains("input_tokens");
  usage_ = OpenAiUsage{
      .prompt_tokens = CountIn(*usage, responses ? "input_tokens" : "prompt_tokens"),
      .completion_tokens = CountIn(*usage, responses ? "output_tokens" : "completion_tokens")};
  const auto details = usage->find(responses ? "input_tokens_details" : "prompt_tokens_details");
  if (details != usage->end() && details->is_object())
    usage_->cached_tokens = CountIn(*details, "cached_tokens");
}

std::optional<OpenAiUsage> UsageReader::Finish() {
  if (events_) {
    ReadLine(kept_);
  } else {
    ReadJson(kept_);
  }
  kept_.clear();
  return usage_;
}

}  // namespace kvatlas
