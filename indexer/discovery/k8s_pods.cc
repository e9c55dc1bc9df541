// Pods of one selector: a map from name to address, empty while the pod is not ready. List and
// watch are those of any object (`k8s_json.h`).

#include "indexer/discovery/k8s_pods.h"

#include <arpa/inet.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "indexer/discovery/k8s_json.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr K8sKind kPods = {
    .plural = "pods", .max = kK8sPodsMax, .too_many = "over 16384 pods of one selector"};

bool IsAddress(const std::string& text) {
  in6_addr scratch;
  return inet_pton(AF_INET, text.c_str(), &scratch) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &scratch) == 1;
}

// The condition "Ready", which covers the readiness probes of all containers.
bool IsReady(const Json& status) {
  const Json& conditions = K8sField(status, "conditions");
  return conditions.is_array() &&
         std::any_of(conditions.begin(), conditions.end(), [](const Json& condition) {
           return K8sText(K8sField(condition, "type")) == "Ready" &&
                  K8sText(K8sField(condition, "status")) == "True";
         });
}

}  // namespace

// '&' separates labels here, since ',' separates entries of flags; the API takes ','. The namespace
// becomes part of a URL's path, so it is checked to be plain.
absl::StatusOr<K8sPodsQuery> K8sPodsQuery::Parse(std::string_view text) {
  const size_t slash = text.find('/');
  K8sPodsQuery query{.name_space = std::string(text.substr(0, slash)), .selector = {}};
  const std::string_view labels =
      slash == std::string_view::npos ? std::string_view() : text.substr(slash + 1);
  query.selector =
      absl::StrReplaceAll(absl::string_view(labels.data(), labels.size()), {{"&", ","}});
  if (query.selector.empty()) query.selector = kEnginePodsLabel;
  const bool plain = std::all_of(query.name_space.begin(), query.name_space.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!plain || query.name_space.size() > 63 || query.selector.find('=') == std::string::npos) {
    return absl::InvalidArgumentError("'" + std::string(text) +
                                      "' is no NAMESPACE/LABEL=VALUE[&LABEL=VALUE…]");
  }
  return query;
}

// OK with an empty address: a pod that is not ready, or is being deleted, is known and not named. A
// ready one must have an address.
absl::Status K8sPods::ReadPod(const Json& object, std::string* name, std::string* address) {
  const Json& metadata = K8sField(object, "metadata");
  *name = K8sText(K8sField(metadata, "name"));
  if (name->empty()) return MalformedAnswer("a pod without a name");
  const Json& status = K8sField(object, "status");
  const bool ends = !K8sField(metadata, "deletionTimestamp").is_null();
  if (ends || !IsReady(status)) return absl::OkStatus();
  *address = K8sText(K8sField(status, "podIP"));
  return IsAddress(*address) ? absl::OkStatus() : MalformedAnswer("podIP of " + *name);
}

absl::StatusOr<std::string> K8sPods::ReadPage(std::string_view json) {
  return ReadK8sPage(json, kPods, ReadPod, &pods_);
}

absl::Status K8sPods::ReadEvent(std::string_view json) {
  return ReadK8sEvent(json, kPods, ReadPod, &pods_);
}

absl::StatusOr<std::vector<ServiceRecord>> K8sPods::Records() const {
  std::vector<ServiceRecord> records;
  for (const auto& [name, address] : pods_.known) {
    if (address.empty()) continue;
    ServiceRecord& record = records.emplace_back();
    record.name = name;
    record.grpc = address;
  }
  return records;
}

}  // namespace kvatlas
