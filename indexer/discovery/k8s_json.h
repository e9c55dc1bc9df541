// Common to all readers of the API server's answers: fields, errors, and lists and watches of any
// kind of object.
//
// *Threads*: one at a time for one `K8sItems`; no I/O.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_JSON_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_JSON_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/k8s_objects.h"

namespace kvatlas {

inline absl::Status MalformedAnswer(std::string_view what) {
  return absl::InvalidArgumentError("the API server's answer is malformed: " + std::string(what));
}

// A field of an object; null where there is none, or `object` is none.
inline const nlohmann::json& K8sField(const nlohmann::json& object, const char* name) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

inline std::string K8sText(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// A Status object: what a failed watch says.
inline absl::Status K8sError(const nlohmann::json& status) {
  constexpr int kGone = 410;
  const nlohmann::json& code = K8sField(status, "code");
  const std::string message = K8sText(K8sField(status, "message"));
  if (code.is_number_integer() && code.get<int64_t>() == kGone)
    return absl::OutOfRangeError("410 Gone: " + message);
  return absl::UnavailableError("the watch ended: " + message);
}

// A kind of object: its plural, how many there may be, and the error for more.
struct K8sKind {
  const char* plural;
  size_t max;
  const char* too_many;
};

// As `K8sObjects::ReadPage`. `read(object, &name, &item)` returns a status.
template <typename Item, typename Read>
absl::StatusOr<std::string> ReadK8sPage(std::string_view json, const K8sKind& kind,
                                        const Read& read, K8sItems<Item>* items) {
  const auto fail = [items](absl::Status status) {
    items->pages.clear();
    return status;
  };
  const nlohmann::json list = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json& objects = K8sField(list, "items");
  const nlohmann::json& metadata = K8sField(list, "metadata");
  const std::string version = K8sText(K8sField(metadata, "resourceVersion"));
  if ((!objects.is_array() && !objects.is_null()) || version.empty())
    return fail(MalformedAnswer(std::string("no list of ") + kind.plural));
  for (const nlohmann::json& object : objects) {
    std::string name;
    Item item;
    if (absl::Status bad = read(object, &name, &item); !bad.ok()) return fail(bad);
    items->pages[name] = std::move(item);
    if (items->pages.size() > kind.max) return fail(absl::ResourceExhaustedError(kind.too_many));
  }
  std::string next = K8sText(K8sField(metadata, "continue"));
  if (next.empty()) {
    items->known = std::exchange(items->pages, {});
    items->resource_version = version;
  }
  return next;
}

// As `K8sObjects::ReadEvent`.
template <typename Item, typename Read>
absl::Status ReadK8sEvent(std::string_view json, const K8sKind& kind, const Read& read,
                          K8sItems<Item>* items) {
  const nlohmann::json event = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const std::string type = K8sText(K8sField(event, "type"));
  const nlohmann::json& object = K8sField(event, "object");
  if (type == "ERROR") return K8sError(object);
  const std::string version = K8sText(K8sField(K8sField(object, "metadata"), "resourceVersion"));
  if (version.empty()) return MalformedAnswer("an event without a resourceVersion");
  if (type != "BOOKMARK") {
    std::string name;
    Item item;
    if (absl::Status bad = read(object, &name, &item); !bad.ok()) return bad;
    if (type == "DELETED") {
      items->known.erase(name);
    } else if (type != "ADDED" && type != "MODIFIED") {
      return MalformedAnswer("an event of type '" + type + "'");
    } else if (items->known.size() >= kind.max && !items->known.contains(name)) {
      return absl::ResourceExhaustedError(kind.too_many);
    } else {
      items->known[name] = std::move(item);
    }
  }
  items->resource_version = version;
  return absl::OkStatus();
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_JSON_H_
