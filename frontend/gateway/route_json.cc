// The bodies of /route and /report. They are read by a SAX parser: a prompt of many token ids goes
// into the message as it is parsed, without a tree of JSON values in between.

#include "frontend/gateway/route_json.h"

#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/gateway/strict_json.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Every field that the call knows; another one is refused by name (`CheckFields`).
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

constexpr size_t kElementsMax = 65536;  // of a list of texts

// Reads a body as it comes. Depth 1 is the body's object, depth 2 a list or an object in it;
// nothing is allowed deeper. Lists of numbers (`numbers_`) go to their sinks, everything else into
// `kept_`, which is bounded by the body's size and, per field, by `kElementsMax`. A field that
// comes twice is refused, since a peer may mean the other one. The parser ends at the first
// callback that returns false; `wrong_` then has the reason, if it is ours.
class BodyReader final : public nlohmann::json_sax<Json> {
 public:
  using Sink = std::function<void(uint64_t)>;
  struct Numbers {
    uint64_t max = 0;
    Sink sink;
  };

  // `numbers`: fields that are lists of numbers.
  BodyReader(std::string_view call, std::span<const std::string_view> fields,
             std::map<std::string, Numbers> numbers = {})
      : call_(call), fields_(fields), numbers_(std::move(numbers)) {}

  // The other fields.
  absl::StatusOr<Json> Read(const std::string& body) {
    const bool read = Json::sax_parse(body, this);
    if (!wrong_.ok()) return wrong_;
    if (!read || !is_object_) return absl::InvalidArgumentError("the body is not a JSON object");
    return std::move(kept_);
  }

  bool null() override { return Take(nullptr); }
  bool boolean(bool value) override { return Take(value); }
  bool number_integer(int64_t value) override { return Take(value); }
  // The fast path of token ids; `Take` handles the other forms of a number.
  bool number_unsigned(uint64_t value) override {
    if (depth_ == 2 && sink_ != nullptr && value <= sink_->max) {
      sink_->sink(value);
      return true;
    }
    return Take(value);
  }
  bool number_float(double value, const std::string&) override { return Take(value); }
  bool string(std::string& value) override { return Take(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    // A key inside of an object field.
    if (depth_ == 2) {
      label_ = std::move(name);
      return true;
    }
    field_ = std::move(name);
    const auto numbers = numbers_.find(field_);
    sink_ = nullptr;
    if (!seen_.insert(field_.substr(0, kNameMax)).second) return Refuse(field_ + " is there twice");
    wrong_ = CheckFields(Json{{field_, nullptr}}, call_, fields_);
    if (numbers != numbers_.end()) sink_ = &numbers->second;
    return wrong_.ok();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  static constexpr size_t kNameMax = 64;

  bool Refuse(std::string why) {
    wrong_ = absl::InvalidArgumentError(why);
    return false;
  }
  // Depth 1 must be the object. Depth 2 is a list, or an object such as `required_labels`.
  bool Open(Json value) {
    ++depth_;
    if (depth_ == 1) return is_object_ = value.is_object();
    if (depth_ > 2)
      return sink_ == nullptr ? Refuse(field_ + " is nested too deep") : NoNumber(value);
    if (sink_ != nullptr && !value.is_array()) return Refuse(field_ + " is not an array");
    kept_[field_] = std::move(value);
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }
  // A scalar at any depth: a body that is a scalar, the value of a field, or an element of a list
  // or object.
  bool Take(Json value) {
    if (depth_ == 0) return false;
    if (depth_ == 1) {
      if (sink_ != nullptr) return Refuse(field_ + " is not an array");
      kept_[field_] = std::move(value);
      return true;
    }
    if (sink_ != nullptr) {
      const std::optional<uint64_t> number = Unsigned(value);
      if (!number.has_value() || *number > sink_->max) return NoNumber(value);
      sink_->sink(*number);
      return true;
    }
    Json& field = kept_[field_];
    if (field.size() >= kElementsMax)
      return Refuse(field_ + " has more than " + std::to_string(kElementsMax) + " elements");
    if (field.is_array()) {
      field.push_back(std::move(value));
    } else {
      field[label_] = std::move(value);
    }
    return true;
  }
  bool NoNumber(const Json& value) {
    return Refuse(field_ + " has an element that is no such number: " +
                  value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 64));
  }

  const std::string_view call_;
  const std::span<const std::string_view> fields_;
  const std::map<std::string, Numbers> numbers_;
  Json kept_ = Json::object();
  absl::Status wrong_;
  bool is_object_ = false;
  int depth_ = 0;
  std::string field_, label_;
  std::set<std::string> seen_;
  const Numbers* sink_ = nullptr;  // of `field_`
};

// Empty: the field is missing.
absl::StatusOr<std::string> TextIn(const Json& json, const char* name) {
  if (!json.contains(name)) return std::string();
  if (!json[name].is_string())
    return absl::InvalidArgumentError(std::string(name) + " is not a string");
  return json[name].get<std::string>();
}

absl::Status SetText(const Json& json, const char* name, std::string* text) {
  absl::StatusOr<std::string> value = TextIn(json, name);
  if (value.ok()) *text = *std::move(value);
  return value.status();
}

// Null counts as missing, for writers that print every field.
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

// The fields that limit and guide the choice of a worker.
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

// All fields are checked, and the first error is returned; `lora_name` and `cache_salt` only have a
// meaning beside tokens.
absl::StatusOr<v1::RouteRequest> RouteRequestFromJson(const std::string& body) {
  v1::RouteRequest request;
  BodyReader reader(
      "/route", kRouteFields,
      {{"tokens",
        {.max = std::numeric_limits<uint32_t>::max(),
         .sink =
             [&](uint64_t id) { request.mutable_tokens()->add_ids(static_cast<uint32_t>(id)); }}},
       {"sequence_hashes",
        {.max = std::numeric_limits<uint64_t>::max(),
         .sink = [&](uint64_t hash) { request.add_sequence_hashes(hash); }}}});
  const absl::StatusOr<Json> json = reader.Read(body);
  if (!json.ok()) return json.status();
  absl::Status status = SetText(*json, "model", request.mutable_domain()->mutable_model());
  status.Update(SetText(*json, "tenant", request.mutable_domain()->mutable_tenant()));
  if (json->contains("tokens")) {
    v1::Tokens* const tokens = request.mutable_tokens();
    status.Update(SetText(*json, "lora_name", tokens->mutable_lora_name()));
    status.Update(SetText(*json, "cache_salt", tokens->mutable_cache_salt()));
  }
  status.Update(
      SetNumber(*json, "prompt_tokens", [&](uint32_t n) { request.set_prompt_tokens(n); }));
  status.Update(SetNumber(*json, "deadline_ms", [&](uint32_t n) { request.set_deadline_ms(n); }));
  status.Update(SetChoice(*json, &request));
  if (!status.ok()) return status;
  return request;
}

absl::StatusOr<v1::ReportRequest> ReportFromJson(const std::string& body) {
  const absl::StatusOr<Json> parsed = BodyReader("/report", kReportFields).Read(body);
  if (!parsed.ok()) return parsed.status();
  const Json& json = *parsed;
  const std::optional<uint64_t> id =
      json.contains("decision_id") ? Unsigned(json["decision_id"]) : std::nullopt;
  if (!id.has_value()) return absl::InvalidArgumentError("decision_id is missing or no number");
  v1::ReportRequest request;
  request.set_decision_id(*id);
  absl::Status status;
  // Missing means false.
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
