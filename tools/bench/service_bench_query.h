// What do services say of a prompt? Requests of the query interface that our leaf and Dynamo's
// indexer share, and their answers.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_QUERY_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_QUERY_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {

inline constexpr char kBenchModel[] = "bench";

// {"block_hashes":[…],"model_name":"bench"}: local hashes, as signed numbers.
std::string QueryByHashBody(std::span<const LocalHash> locals);
// {"token_ids":[…],"model_name":"bench"}
std::string QueryBody(std::span<const TokenId> tokens, const char* model = kBenchModel);

// Tokens by instance, those of its ranks added up; without overlap it may be missing. INTERNAL: not
// such an answer.
using Scores = std::map<std::string, uint64_t>;
absl::StatusOr<Scores> ScoresIn(const HttpAnswer& answer);

// Asks by local hashes.
absl::StatusOr<Scores> AskByHash(HttpClient* http, std::span<const LocalHash> locals);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_QUERY_H_
