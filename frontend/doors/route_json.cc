#include "frontend/doors/route_json.h"

#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "frontend/doors/strict_json.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRouteFields[] = {"model",           "tenant",
                                             "tokens",          "sequence_hashes",
                                             "prompt_tokens",   "lora_name",
                                             "cache_salt",      "deadline_ms",
                                             "session_id",      "allowed_workers",
                                             "queue_wait_ms",   "excluded_workers",
                                             "required_labels", "expected_output_tokens"};
constexpr std::string_view kReportFields[] = {"decision_id",   "accepted",    "finished",
                                              "abandoned",     "unreachable", "decode_unreachable",
                                              "error",         "worker",      "cached_tokens",
                                              "prompt_tokens", "rank"};

// A u64 as a number, or as a string for writers whose numbers end at 2^53.
std::optional<uint64_t> Unsigned(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (!json.is_string()) return std::nullopt;
  const std::string& text = json.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::StatusOr<Json> ParseObject(const std::string& body) {
  if (IsNestedTooDeep(body)) return absl::InvalidArgumentError("the body is nested too deep");
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  return json;
}

absl::StatusOr<std::string> TextIn(const Json& json, const char* name) {
  if (!json.contains(name)) return std::string();
  if (!json[name].is_string())
    return absl::InvalidArgumentError(std::string(name) + " is not a string");
  return json[name].get<std::string>();
}

// Calls `add` with every number of the array `name`, each at most `max`.
template <typename Add>
absl::Status NumbersIn(const Json& json, const char* name, uint64_t max, const Add& add) {
  if (!json.contains(name)) return absl::OkStatus();
  if (!json[name].is_array())
    return absl::InvalidArgumentError(std::string(name) + " is not an array");
  for (const Json& element : json[name]) {
    const std::optional<uint64_t> value = Unsigned(element);
    if (!value.has_value() || *value > max) {
      return absl::InvalidArgumentError(
          std::string(name) + " has an element that is no such number: " +
          element.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 64));
    }
    add(*value);
  }
  return absl::OkStatus();
}

absl::Status SetText(const Json& json, const char* name, std::string* text) {
  absl::StatusOr<std::string> value = TextIn(json, name);
  if (value.ok()) *text = *std::move(value);
  return value.status();
}

absl::Status SetNumber(const Json& json, const char* name,
                       const std::function<void(uint32_t)>& set) {
  if (!json.contains(name) || json[name].is_null()) return absl::OkStatus();
  const std::optional<uint64_t> value = Unsigned(json[name]);
  if (!value.has_value() || *value > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError(std::string(name) + " is no such number");
  set(static_cast<uint32_t>(*value));
  return absl::OkStatus();
}

absl::Status SetTexts(const Json& json, const char* name,
                      google::protobuf::RepeatedPtrField<std::string>* texts) {
  if (!json.contains(name)) return absl::OkStatus();
  bool good = json[name].is_array();
  for (size_t i = 0; good && i < json[name].size(); ++i) {
    good = json[name][i].is_string();
    if (good) texts->Add(json[name][i].get<std::string>());
  }
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError(std::string(name) + " is not an array of strings");
}

// Who may be chosen, and what else the choice goes by.
absl::Status SetChoice(const Json& json, v1::RouteRequest* request) {
  absl::Status status = SetText(json, "session_id", request->mutable_session_id());
  status.Update(SetTexts(json, "allowed_workers", request->mutable_allowed_workers()));
  status.Update(SetTexts(json, "excluded_workers", request->mutable_excluded_workers()));
  status.Update(SetNumber(json, "expected_output_tokens",
                          [&](uint32_t n) { request->set_expected_output_tokens(n); }));
  status.Update(
      SetNumber(json, "queue_wait_ms", [&](uint32_t n) { request->set_queue_wait_ms(n); }));
  if (!json.contains("required_labels")) return status;
  const Json& labels = json["required_labels"];
  bool good = labels.is_object();
  for (auto label = labels.begin(); good && label != labels.end(); ++label) {
    good = label->is_string();
    if (good) (*request->mutable_required_labels())[label.key()] = label->get<std::string>();
  }
  if (!good)
    status.Update(absl::InvalidArgumentError("required_labels is not an object of strings"));
  return status;
}

}  // namespace

absl::StatusOr<v1::RouteRequest> RouteRequestFromJson(const std::string& body) {
  absl::StatusOr<Json> json = ParseObject(body);
  if (!json.ok()) return json.status();
  if (absl::Status bad = CheckFields(*json, "/route", kRouteFields); !bad.ok()) return bad;
  v1::RouteRequest request;
  absl::Status status = SetText(*json, "model", request.mutable_domain()->mutable_model());
  status.Update(SetText(*json, "tenant", request.mutable_domain()->mutable_tenant()));
  if (json->contains("tokens")) {
    v1::Tokens* tokens = request.mutable_tokens();
    status.Update(NumbersIn(*json, "tokens", std::numeric_limits<uint32_t>::max(),
                            [&](uint64_t id) { tokens->add_ids(static_cast<uint32_t>(id)); }));
    status.Update(SetText(*json, "lora_name", tokens->mutable_lora_name()));
    status.Update(SetText(*json, "cache_salt", tokens->mutable_cache_salt()));
  }
  status.Update(NumbersIn(*json, "sequence_hashes", std::numeric_limits<uint64_t>::max(),
                          [&](uint64_t hash) { request.add_sequence_hashes(hash); }));
  status.Update(
      SetNumber(*json, "prompt_tokens", [&](uint32_t n) { request.set_prompt_tokens(n); }));
  status.Update(SetNumber(*json, "deadline_ms", [&](uint32_t n) { request.set_deadline_ms(n); }));
  status.Update(SetChoice(*json, &request));
  if (!status.ok()) return status;
  return request;
}

absl::StatusOr<v1::ReportRequest> ReportFromJson(const std::string& body) {
  const absl::StatusOr<Json> parsed = ParseObject(body);
  if (!parsed.ok()) return parsed.status();
  const Json& json = *parsed;
  const std::optional<uint64_t> id =
      json.contains("decision_id") ? Unsigned(json["decision_id"]) : std::nullopt;
  if (!id.has_value()) return absl::InvalidArgumentError("decision_id is missing or no number");
  v1::ReportRequest request;
  request.set_decision_id(*id);
  absl::Status status = CheckFields(json, "/report", kReportFields);
  const auto set = [&](const char* name, void (v1::ReportRequest::*to)(bool)) {
    bool value = false;
    status.Update(ReadBool(json, name, &value));
    (request.*to)(value);
  };
  set("accepted", &v1::ReportRequest::set_accepted);
  set("finished", &v1::ReportRequest::set_finished);
  set("abandoned", &v1::ReportRequest::set_abandoned);
  set("unreachable", &v1::ReportRequest::set_unreachable);
  set("decode_unreachable", &v1::ReportRequest::set_decode_unreachable);
  status.Update(SetText(json, "error", request.mutable_error()));
  status.Update(
      SetNumber(json, "cached_tokens", [&](uint32_t n) { request.set_cached_tokens(n); }));
  status.Update(
      SetNumber(json, "prompt_tokens", [&](uint32_t n) { request.set_prompt_tokens(n); }));
  if (json.contains("worker")) {
    v1::Holder* worker = request.mutable_worker();
    status.Update(SetText(json, "worker", worker->mutable_name()));
    status.Update(SetNumber(json, "rank", [&](uint32_t n) { worker->set_rank(n); }));
  }
  if (!status.ok()) return status;
  return request;
}

}  // namespace kvatlas
