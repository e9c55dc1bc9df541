// Checks and texts of registrations, for flags, the HTTP API, pods and replicas alike. Fields that
// have a form are kept as text and parsed where they are used: `CheckRegistration` has refused
// others before.

#include "indexer/kv_events/engine_registration.h"

#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::string_view kAllTiers = "all";

std::optional<uint64_t> AsNumber(std::string_view name) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

Domain DomainOf(std::string_view model, std::string_view group) {
  return {std::string(model), group == kDefaultGroup ? std::string() : std::string(group)};
}

std::string GroupOf(const Domain& domain) {
  return domain.tenant.empty() ? std::string(kDefaultGroup) : domain.tenant;
}

std::vector<std::pair<std::string, std::string>> LabelsOf(const EngineRegistration& registration) {
  std::vector<std::pair<std::string, std::string>> labels;
  if (!registration.url.empty()) labels.emplace_back("url", registration.url);
  if (registration.first_rank != 0)
    labels.emplace_back("first_rank", std::to_string(registration.first_rank));
  // `shared_stores.h`
  if (!registration.store.empty())
    labels.emplace_back(registration.store_tiers == kAllTiers ? "holds_store" : "store",
                        registration.store);
  return labels;
}

ZmqSource SourceOf(const EngineRegistration& registration) {
  return {.worker_name = registration.instance,
          .rank = registration.rank,
          .endpoint = registration.endpoint,
          .replay_endpoint = registration.replay_endpoint,
          .topic = registration.topic,
          .server_key = registration.server_key,
          .bind = registration.bind,
          .from_flags = registration.from_flags};
}

// Everything that a registration can get wrong by itself. Texts are bounded so that all of them fit
// a record of a snapshot for another replica.
absl::Status CheckRegistration(const EngineRegistration& registration,
                               const EngineAddresses& addresses) {
  if (absl::Status bad = CheckZmqSource(SourceOf(registration), addresses); !bad.ok()) return bad;
  if (absl::Status bad = ParseEagleDrop(registration.eagle_drop).status(); !bad.ok()) return bad;
  if (absl::Status bad = ParseSilentTiers(registration.silent_tiers).status(); !bad.ok())
    return bad;
  if (absl::Status bad = ParseStoreTiers(registration.store_tiers).status(); !bad.ok()) return bad;
  if (registration.store.empty() && !registration.store_tiers.empty())
    return absl::InvalidArgumentError("store_tiers: of no store; give its name as store");
  if (registration.first_rank > registration.rank) {
    return absl::InvalidArgumentError("first_rank: expected the lowest rank behind the url, not " +
                                      std::to_string(registration.first_rank) + " for rank " +
                                      std::to_string(registration.rank));
  }
  for (const auto& [field, text] :
       {std::pair("instance", &registration.instance), std::pair("model_name", &registration.model),
        std::pair("routing_group", &registration.group),
        std::pair("endpoint", &registration.endpoint),
        std::pair("replay_endpoint", &registration.replay_endpoint),
        std::pair("topic", &registration.topic), std::pair("lora_name", &registration.lora_name),
        std::pair("additional_salt", &registration.additional_salt),
        std::pair("url", &registration.url), std::pair("store", &registration.store),
        std::pair("engine_type", &registration.engine_type)}) {
    if (text->size() > kRegisteredTextBytesMax)
      return absl::InvalidArgumentError(std::string(field) + " is longer than " +
                                        std::to_string(kRegisteredTextBytesMax) + " bytes");
  }
  return absl::OkStatus();
}

// Empty: no group. "all": an empty list, which means every group.
absl::StatusOr<std::optional<std::vector<uint32_t>>> ParseEagleDrop(std::string_view text) {
  std::vector<uint32_t> groups;
  if (text.empty()) return std::optional<std::vector<uint32_t>>();
  if (text == "all") return std::optional(groups);
  while (true) {
    const size_t comma = text.find(',');
    const std::optional<uint64_t> number = AsNumber(text.substr(0, comma));
    if (!number.has_value() || *number > UINT32_MAX || groups.size() == 32)
      return absl::InvalidArgumentError(
          "eagle_drop: expected \"all\" or numbers of attention groups such as \"1,2\"");
    groups.push_back(static_cast<uint32_t>(*number));
    if (comma == std::string_view::npos) return std::optional(groups);
    text.remove_prefix(comma + 1);
  }
}

namespace {

// The device is no such tier: engines announce what leaves it.
absl::StatusOr<TierMask> ParseTiers(const char* field, std::string_view text) {
  TierMask tiers;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (name == "host") {
      tiers = tiers | Tier::kHost;
    } else if (name == "disk") {
      tiers = tiers | Tier::kDisk;
    } else if (name == "external") {
      tiers = tiers | Tier::kExternal;
    } else {
      return absl::InvalidArgumentError(
          std::string(field) + ": expected names of tiers such as \"host\" or \"host,disk\"");
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return tiers;
}

}  // namespace

absl::StatusOr<TierMask> ParseSilentTiers(std::string_view text) {
  return ParseTiers("silent_tiers", text);
}

// A store without named tiers has disk and external. "all": the registration is the store's own,
// not that of a worker that shares it.
absl::StatusOr<TierMask> ParseStoreTiers(std::string_view text) {
  if (text.empty()) return TierMask(Tier::kDisk) | TierMask(Tier::kExternal);
  return text == kAllTiers ? TierMask::All() : ParseTiers("store_tiers", text);
}

TierMask StoreTiersOf(const EngineRegistration& registration) {
  if (registration.store.empty() || registration.store_tiers == kAllTiers) return {};
  return ParseStoreTiers(registration.store_tiers).value_or(TierMask());
}

std::string InstanceText(std::string_view instance) { return "instance " + std::string(instance); }

std::string RankText(std::string_view instance, uint32_t rank) {
  return InstanceText(instance) + " dp_rank " + std::to_string(rank);
}

std::string DomainText(const Domain& domain) {
  return "model=" + domain.model + " routing_group=" + GroupOf(domain);
}

bool IsInstanceNumber(std::string_view instance) {
  return AsNumber(instance).has_value() && (instance == "0" || instance[0] != '0');
}

// Numbers in their order, before names.
bool InstanceLess::operator()(std::string_view a, std::string_view b) const {
  const std::optional<uint64_t> x = AsNumber(a), y = AsNumber(b);
  return std::make_tuple(!x.has_value(), x.value_or(0), a) <
         std::make_tuple(!y.has_value(), y.value_or(0), b);
}

}  // namespace kvatlas
