// What do the terms of the cost weigh for models that have weights of their own?
//
// *Format*: JSON, one object for each model, whose fields are those of `CostWeights`; what is not
// named is as for all models:
//   {"llama-70b": {"prefill": 2, "decode": 4}, "llama-8b": {"session": 0}}
//
// Example:
//   absl::StatusOr<std::map<std::string, CostWeights>> weights = ReadModelWeights(path,
//   options.weights);

#ifndef KVATLAS_FRONTEND_ROUTER_POLICY_WEIGHTS_FILE_H_
#define KVATLAS_FRONTEND_ROUTER_POLICY_WEIGHTS_FILE_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/router/cost.h"

namespace kvatlas {

inline constexpr size_t kModelWeightsMax = 4096;  // models
inline constexpr size_t kWeightsFileBytesMax = 4 << 20;

// INVALID_ARGUMENT: no JSON, an unknown field, a weight that is no number or below 0; the message
// names model and field.
absl::StatusOr<std::map<std::string, CostWeights>> ParseModelWeights(const std::string& json,
                                                                     const CostWeights& others);
// NOT_FOUND: there is no such file.
absl::StatusOr<std::map<std::string, CostWeights>> ReadModelWeights(const std::string& path,
                                                                    const CostWeights& others);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_POLICY_WEIGHTS_FILE_H_
