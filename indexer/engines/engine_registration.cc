#include "indexer/engines/engine_registration.h"

#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

#include "indexer/engines/zmq_source.h"

namespace kvatlas {
namespace {

absl::Status CheckEndpoints(const EngineRegistration& registration) {
  if (absl::Status bad = CheckZmqEndpoint(registration.endpoint); !bad.ok()) return bad;
  if (registration.replay_endpoint.empty()) return absl::OkStatus();
  const absl::Status bad = CheckZmqEndpoint(registration.replay_endpoint);
  if (bad.ok()) return bad;
  return absl::InvalidArgumentError("invalid replay endpoint `" + registration.replay_endpoint +
                                    "`: " + std::string(bad.message()));
}

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

// All texts together fit a record of a snapshot for another replica.
absl::Status CheckRegistration(const EngineRegistration& registration) {
  if (absl::Status bad = CheckEndpoints(registration); !bad.ok()) return bad;
  for (const auto& [field, text] :
       {std::pair("instance", &registration.instance), std::pair("model_name", &registration.model),
        std::pair("routing_group", &registration.group),
        std::pair("endpoint", &registration.endpoint),
        std::pair("replay_endpoint", &registration.replay_endpoint),
        std::pair("topic", &registration.topic), std::pair("lora_name", &registration.lora_name),
        std::pair("additional_salt", &registration.additional_salt),
        std::pair("url", &registration.url), std::pair("engine_type", &registration.engine_type)}) {
    if (text->size() > kRegisteredTextBytesMax)
      return absl::InvalidArgumentError(std::string(field) + " is longer than " +
                                        std::to_string(kRegisteredTextBytesMax) + " bytes");
  }
  return absl::OkStatus();
}

std::string InstanceText(std::string_view instance) { return "instance " + std::string(instance); }

std::string RankText(std::string_view instance, uint32_t rank) {
  return InstanceText(instance) + " dp_rank " + std::to_string(rank);
}

std::string DomainText(const Domain& domain) {
  return "model=" + domain.model + " routing_group=" + GroupOf(domain);
}

bool InstanceLess::operator()(std::string_view a, std::string_view b) const {
  const std::optional<uint64_t> x = AsNumber(a), y = AsNumber(b);
  return std::make_tuple(!x.has_value(), x.value_or(0), a) <
         std::make_tuple(!y.has_value(), y.value_or(0), b);
}

}  // namespace kvatlas
