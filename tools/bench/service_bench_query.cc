#include "tools/bench/service_bench_query.h"

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

template <typename Number, typename Of>
std::string Body(const char* name, std::span<const Number> numbers, const char* model,
                 const Of& of) {
  std::string body = std::string("{\"") + name + "\":[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) body += ',';
    body += std::to_string(of(numbers[i]));
  }
  return body + "],\"model_name\":\"" + model + "\"}";
}

}  // namespace

std::string QueryByHashBody(std::span<const LocalHash> locals) {
  return Body("block_hashes", locals, kBenchModel,
              [](LocalHash local) { return static_cast<int64_t>(Raw(local)); });
}

std::string QueryBody(std::span<const TokenId> tokens, const char* model) {
  return Body("token_ids", tokens, model, [](TokenId token) { return token; });
}

absl::StatusOr<Scores> ScoresIn(const HttpAnswer& answer) {
  const auto wrong = [&] {
    return absl::InternalError("status " + std::to_string(answer.status) + ": " +
                               answer.body.substr(0, 200));
  };
  if (answer.status != 200) return wrong();
  const nlohmann::json json =
      nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("scores") || !json["scores"].is_object()) return wrong();
  Scores scores;
  for (const auto& [instance, ranks] : json["scores"].items()) {
    if (!ranks.is_object()) return wrong();
    for (const auto& [rank, tokens] : ranks.items()) {
      if (!tokens.is_number_unsigned()) return wrong();
      scores[instance] += tokens.get<uint64_t>();
    }
  }
  return scores;
}

absl::StatusOr<Scores> AskByHash(HttpClient* http, std::span<const LocalHash> locals) {
  absl::StatusOr<HttpAnswer> answer = http->Post("/query_by_hash", QueryByHashBody(locals));
  if (!answer.ok()) return answer.status();
  return ScoresIn(*answer);
}

}  // namespace kvatlas
