// The fields of `CostWeights` by name, and a reader that names model and field in every refusal.
// `seed` is missing on purpose: it is one for the whole frontend.

#include "frontend/router/policy/weights_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

// A weight by its name in the file.
struct Field {
  std::string_view name;
  double CostWeights::* weight;
};

// Every weight that may be set for a model; a field that is added to `CostWeights` belongs here
// too.
constexpr Field kFields[] = {
    {"prefill", &CostWeights::prefill},
    {"fetch_host", &CostWeights::fetch_host},
    {"fetch_disk", &CostWeights::fetch_disk},
    {"fetch_remote", &CostWeights::fetch_remote},
    {"queue", &CostWeights::queue},
    {"decode", &CostWeights::decode},
    {"memory", &CostWeights::memory},
    {"distance", &CostWeights::distance},
    {"session", &CostWeights::session},
    {"siblings", &CostWeights::siblings},
    {"crowding", &CostWeights::crowding},
    {"transfer", &CostWeights::transfer},
    {"transfer_far", &CostWeights::transfer_far},
    {"temperature", &CostWeights::temperature},
};

// A value that is no number becomes -1, which the check below refuses as it does any negative one.
absl::Status SetWeight(const std::string& model, const std::string& name,
                       const nlohmann::json& value, CostWeights* weights) {
  const auto* const field = std::find_if(std::begin(kFields), std::end(kFields),
                                         [&](const Field& f) { return f.name == name; });
  if (field == std::end(kFields))
    return absl::InvalidArgumentError(model + ": no weight \"" + name + "\"");
  const double weight = value.is_number() ? value.get<double>() : -1;
  if (!std::isfinite(weight) || weight < 0)
    return absl::InvalidArgumentError(model + ": " + name + ": not a number from 0 on");
  weights->*(field->weight) = weight;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, CostWeights>> ParseModelWeights(const std::string& json,
                                                                     const CostWeights& others) {
  const nlohmann::json all = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (all.size() > kModelWeightsMax) return absl::InvalidArgumentError("over 4096 models");
  std::map<std::string, CostWeights> by_model;
  for (const auto& [model, given] : all.items()) {
    if (!given.is_object()) return absl::InvalidArgumentError(model + ": not an object");
    CostWeights& weights = by_model.emplace(model, others).first->second;
    for (const auto& [name, value] : given.items()) {
      if (absl::Status bad = SetWeight(model, name, value, &weights); !bad.ok()) return bad;
    }
  }
  return by_model;
}

absl::StatusOr<std::map<std::string, CostWeights>> ReadModelWeights(const std::string& path,
                                                                    const CostWeights& others) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(path + ": cannot be opened");
  // One byte more than allowed tells a file that is too large from one that just fits.
  std::string json(kWeightsFileBytesMax + 1, '\0');
  in.read(json.data(), static_cast<std::streamsize>(json.size()));
  json.resize(static_cast<size_t>(in.gcount()));
  if (json.size() > kWeightsFileBytesMax) return absl::InvalidArgumentError(path + ": too large");
  absl::StatusOr<std::map<std::string, CostWeights>> weights = ParseModelWeights(json, others);
  if (weights.ok()) return weights;
  return absl::InvalidArgumentError(path + ": " + std::string(weights.status().message()));
}

}  // namespace kvatlas
