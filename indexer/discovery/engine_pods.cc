#include "indexer/discovery/engine_pods.h"

#include <charconv>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/discovery/k8s_pods.h"

namespace kvatlas {
namespace {

constexpr std::string_view kPrefix = "k8s:";
// As many as an `InferencePool` of Kubernetes has.
constexpr size_t kPortsMax = 8;
constexpr uint32_t kRanksMax = 1024;

// A whole number from 1 to `max`, and nothing else.
template <typename Number>
bool Read(std::string_view text, Number max, Number* to) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0 || number > max)
    return false;
  *to = static_cast<Number>(number);
  return true;
}

// Ports separated by '|', at most `kPortsMax`; the first is that of rank 0.
bool ReadPorts(const std::string& text, std::vector<uint16_t>* to) {
  to->clear();
  for (const absl::string_view one : absl::StrSplit(text, '|')) {
    uint16_t port = 0;
    if (!Read<uint16_t>({one.data(), one.size()}, UINT16_MAX, &port)) return false;
    to->push_back(port);
  }
  return to->size() <= kPortsMax;
}

}  // namespace

// Parts behind ';' that are not known here are kept as they are, for the registration to read.
// `events` and `replay` leave room for the ports of all ranks above them. Several ports of `http`
// mean a rank each, so they say the number of ranks, or must agree with it.
absl::StatusOr<EnginePods> EnginePods::Parse(std::string_view entry) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(entry.data(), entry.size()).substr(kPrefix.size()), ';');
  if (absl::Status bad = K8sPodsQuery::Parse(parts[0]).status(); !bad.ok()) return bad;
  EnginePods pods;
  pods.place =
      absl::StrCat(absl::string_view(kK8sPodsPrefix.data(), kK8sPodsPrefix.size()), parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string name = parts[i].substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    bool good = true;
    if (name == "http") {
      good = ReadPorts(value, &pods.http);
    } else if (name == "events" && value.starts_with("kv@")) {
      pods.options.push_back(parts[i]);  // pods dial a socket
    } else if (name == "events" || name == "replay") {
      good = Read<uint16_t>(value, UINT16_MAX - kRanksMax,
                            name == "events" ? &pods.events : &pods.replay);
    } else if (name == "ranks") {
      good = Read<uint32_t>(value, kRanksMax, &pods.ranks);
    } else {
      pods.options.push_back(parts[i]);
    }
    if (!good) return absl::InvalidArgumentError("\"" + parts[i] + "\" is no option of pods");
  }
  const auto ports = static_cast<uint32_t>(pods.http.size());
  if (ports > 1 && pods.ranks == 0) pods.ranks = ports;
  if (ports > 1 && pods.ranks != ports)
    return absl::InvalidArgumentError("as many ports in http as ranks, or one of all");
  return pods;
}

}  // namespace kvatlas
