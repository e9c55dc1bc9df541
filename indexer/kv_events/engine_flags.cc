// Flags that name engines. `--workers` holds entries of several forms: those that begin with one of
// `found_prefixes` (pods, sockets that engines dial) are read by their own parsers.

#include "indexer/kv_events/engine_flags.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "indexer/base/domain.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/security/curve.h"

namespace kvatlas {

void EngineFlags::Declare(FlagSet& flags, const std::string& what) {
  flags
      .Add("workers", &workers,
           what + ", NAME[:RANK]=ENDPOINT[;replay=ENDPOINT][;topic=T][;bind],…")
      .Check([this](const std::string& list) { return CheckForm(list); });
  flags.Add(kEngineAddressesFlag, &addresses, kEngineAddressesHelp);
  flags.Add("engine_curve_key", &curve_key,
            "file with the CURVE key by which engines know this process (kvatlas pki curve); "
            "empty: one made "
            "at the start");
  flags.Add("plain_engines", &plain,
            "listen to engines beyond loopback that have no server_key, in clear, under an access "
            "policy too");
  flags.AddName("model_name", &of_all.model, "model of --workers");
  flags.AddName("routing_group", &of_all.group, "routing group of --workers");
  flags.Add("block_size", &of_all.block_size, "tokens per block of --workers", 0, kBlockSizeMax);
}

// Checks the form of --workers alone, while other flags are not read yet: a model and a block size
// are made up.
absl::Status EngineFlags::CheckForm(const std::string& list) const {
  std::vector<std::string> named = absl::StrSplit(list, ',', absl::SkipEmpty());
  std::erase_if(named, [this](const std::string& entry) { return IsFound(entry); });
  EngineRegistration any;
  any.model = "any";
  any.block_size = kBlockSizeAuto;
  return ParseWorkers(named, any).status();
}

absl::StatusOr<std::vector<EngineRegistration>> EngineFlags::Workers() const {
  std::vector<std::string> named = workers;
  std::erase_if(named, [this](const std::string& entry) { return IsFound(entry); });
  auto parsed = ParseWorkers(named, of_all);
  if (!parsed.ok()) return OfFlag("workers", parsed.status());
  return parsed;
}

bool EngineFlags::IsFound(const std::string& entry) const {
  return std::any_of(found_prefixes.begin(), found_prefixes.end(),
                     [&](const std::string& prefix) { return entry.starts_with(prefix); });
}

// Entries that `Workers` leaves out.
std::vector<std::string> EngineFlags::Found() const {
  std::vector<std::string> found = workers;
  std::erase_if(found, [this](const std::string& entry) { return !IsFound(entry); });
  return found;
}

absl::Status EngineFlags::ReadInto(ZmqIngestOptions* options) const {
  auto ranges = EngineAddresses::Parse(addresses);
  if (!ranges.ok()) return ranges.status();
  options->addresses = *std::move(ranges);
  options->plain_engines = plain;
  if (curve_key.empty()) return absl::OkStatus();
  absl::StatusOr<CurveKeys> keys = ReadCurveKeys(curve_key);
  if (!keys.ok()) return OfFlag("engine_curve_key", keys.status());
  options->curve = *std::move(keys);
  return absl::OkStatus();
}

// Names are unique; a value may be empty.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadLabels(
    const std::vector<std::string>& labels) {
  std::vector<std::pair<std::string, std::string>> read;
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos)
      return absl::InvalidArgumentError("--labels: \"" + label + "\" is not NAME=VALUE");
    std::string name = label.substr(0, equals);
    if (std::any_of(read.begin(), read.end(), [&](const auto& of) { return of.first == name; }))
      return absl::InvalidArgumentError("--labels: \"" + name + "\" is there twice");
    read.emplace_back(std::move(name), label.substr(equals + 1));
  }
  return read;
}

}  // namespace kvatlas
