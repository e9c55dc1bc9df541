// A service record as JSON, written and read. Reading trusts nothing: records come from a Redis
// that others write to. A field that is missing keeps its default, except the kind and the gRPC
// address; a field of a wrong type or beyond a bound refuses the record, and the error names it.
// Unknown fields are skipped, so that newer writers may add some.

#include "indexer/discovery/service_record.h"

#include <array>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/utf8.h"
#include "nlohmann/json.hpp"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Bytes of any text: a name, an address, a label's name or value, a model.
constexpr size_t kTextBytesMax = 256;

constexpr std::array<std::pair<ServiceKind, std::string_view>, 4> kKinds = {{
    {ServiceKind::kLeaf, "leaf"},
    {ServiceKind::kHierarchy, "hierarchy"},
    {ServiceKind::kFrontend, "frontend"},
    {ServiceKind::kRelay, "relay"},
}};

absl::Status Bad(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError("service record: " + std::string(field) + " " +
                                    std::string(why));
}

// These leave `to` as it is when the field is absent.
absl::Status ReadText(const Json& object, const char* field, std::string* to) {
  const auto it = object.find(field);
  if (it == object.end()) return absl::OkStatus();
  if (!it->is_string()) return Bad(field, "is no text");
  *to = it->get_ref<const std::string&>();
  if (to->size() > kTextBytesMax) return Bad(field, "is longer than 256 bytes");
  if (!IsUtf8(*to)) return Bad(field, "is not UTF-8");
  return absl::OkStatus();
}

// Integers must be unsigned and fit the type; a floating point number must not be negative or NaN.
template <typename Number>
absl::Status ReadNumber(const Json& object, const char* field, Number* to) {
  const auto it = object.find(field);
  if (it == object.end()) return absl::OkStatus();
  if constexpr (std::is_same_v<Number, double>) {
    if (!it->is_number()) return Bad(field, "is no number");
    *to = it->template get<double>();
    if (!(*to >= 0)) return Bad(field, "is below 0");
  } else {
    if (!it->is_number_unsigned()) return Bad(field, "is no whole number from 0");
    const uint64_t value = it->template get<uint64_t>();
    if (value > std::numeric_limits<Number>::max()) return Bad(field, "is too large");
    *to = static_cast<Number>(value);
  }
  return absl::OkStatus();
}

absl::Status ReadAddress(const Json& object, const char* field, bool needed, std::string* to) {
  if (absl::Status bad = ReadText(object, field, to); !bad.ok()) return bad;
  if (to->empty()) return needed ? Bad(field, "is missing") : absl::OkStatus();
  if (!Address::Parse(*to).ok()) return Bad(field, "is not HOST:PORT");
  return absl::OkStatus();
}

absl::Status ReadKind(const Json& object, ServiceKind* to) {
  std::string text;
  if (absl::Status bad = ReadText(object, "kind", &text); !bad.ok()) return bad;
  for (const auto& [kind, name] : kKinds) {
    if (name == text) {
      *to = kind;
      return absl::OkStatus();
    }
  }
  return Bad("kind", "is none of leaf, hierarchy, frontend, relay");
}

absl::Status ReadLabels(const Json& object, ServiceRecord* record) {
  const auto it = object.find("labels");
  if (it == object.end()) return absl::OkStatus();
  if (!it->is_object()) return Bad("labels", "is no object");
  if (it->size() > kServiceLabelsMax) return Bad("labels", "has more than 64");
  for (const auto& [name, value] : it->items()) {
    if (!value.is_string()) return Bad("labels", "has a value that is no text");
    const auto& text = value.get_ref<const std::string&>();
    if (name.size() > kTextBytesMax || text.size() > kTextBytesMax)
      return Bad("labels", "has one longer than 256 bytes");
    record->labels.emplace_back(name, text);
  }
  return absl::OkStatus();
}

absl::Status ReadServes(const Json& object, ServiceRecord* record) {
  const auto it = object.find("serves");
  if (it == object.end()) return absl::OkStatus();
  if (!it->is_array()) return Bad("serves", "is no list");
  if (it->size() > kServiceServesMax) return Bad("serves", "has more than 1024");
  for (const Json& model : *it) {
    if (!model.is_string()) return Bad("serves", "has one that is no text");
    if (model.get_ref<const std::string&>().size() > kTextBytesMax)
      return Bad("serves", "has one longer than 256 bytes");
    record->serves.push_back(model.get<std::string>());
  }
  return absl::OkStatus();
}

// All or nothing: one bad number refuses the whole record.
absl::Status ReadLoad(const Json& object, std::optional<Load>* to) {
  const auto it = object.find("load");
  if (it == object.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_object()) return Bad("load", "is no object");
  Load load;
  for (absl::Status status :
       {ReadNumber(*it, "running_requests", &load.running_requests),
        ReadNumber(*it, "waiting_requests", &load.waiting_requests),
        ReadNumber(*it, "used_blocks", &load.used_blocks),
        ReadNumber(*it, "free_blocks", &load.free_blocks),
        ReadNumber(*it, "waiting_prefill_blocks", &load.waiting_prefill_blocks),
        ReadNumber(*it, "tokens_per_s", &load.tokens_per_s),
        ReadNumber(*it, "workers", &load.workers)}) {
    if (!status.ok()) return Bad("load:", std::string(status.message()));
  }
  *to = load;
  return absl::OkStatus();
}

Json JsonOf(const Load& load) {
  return {{"running_requests", load.running_requests},
          {"waiting_requests", load.waiting_requests},
          {"used_blocks", load.used_blocks},
          {"free_blocks", load.free_blocks},
          {"waiting_prefill_blocks", load.waiting_prefill_blocks},
          {"tokens_per_s", load.tokens_per_s},
          {"workers", load.workers}};
}

}  // namespace

std::string_view ToString(ServiceKind kind) {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) return name;
  }
  return "unknown";
}

// A service without a name is known by its address, so two of them never replace each other.
std::string IdOf(const ServiceRecord& record) {
  if (record.name.empty()) return record.grpc;
  return record.replica.empty() ? record.name : record.name + "@" + record.replica;
}

// Every field but the load: one that is added to the record belongs here too.
bool SameButLoad(const ServiceRecord& a, const ServiceRecord& b) {
  return a.kind == b.kind && a.name == b.name && a.replica == b.replica && a.grpc == b.grpc &&
         a.http == b.http && a.epoch == b.epoch && a.instance_id == b.instance_id &&
         a.labels == b.labels && a.serves == b.serves;
}

std::string ToJson(const ServiceRecord& record) {
  Json labels = Json::object();
  for (const auto& [name, value] : record.labels) labels[name] = value;
  Json object = {{"kind", ToString(record.kind)},
                 {"name", record.name},
                 {"replica", record.replica},
                 {"grpc", record.grpc},
                 {"http", record.http},
                 {"epoch", record.epoch},
                 {"instance", record.instance_id},
                 {"labels", std::move(labels)},
                 {"serves", record.serves}};
  if (record.load.has_value()) object["load"] = JsonOf(*record.load);
  // Bytes that are not UTF-8 are replaced instead of throwing.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string LoadToJson(const Load& load) { return JsonOf(load).dump(); }

absl::StatusOr<ServiceRecord> ServiceRecordFromJson(std::string_view json) {
  if (json.size() > kServiceRecordBytesMax)
    return absl::InvalidArgumentError("service record: longer than 64 KiB");
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("service record: no JSON object");
  ServiceRecord record;
  for (absl::Status status :
       {ReadKind(object, &record.kind), ReadText(object, "name", &record.name),
        ReadText(object, "replica", &record.replica),
        ReadAddress(object, "grpc", /*needed=*/true, &record.grpc),
        ReadAddress(object, "http", /*needed=*/false, &record.http),
        ReadNumber(object, "epoch", &record.epoch),
        ReadNumber(object, "instance", &record.instance_id), ReadLabels(object, &record),
        ReadServes(object, &record), ReadLoad(object, &record.load)}) {
    if (!status.ok()) return status;
  }
  return record;
}

}  // namespace kvatlas
