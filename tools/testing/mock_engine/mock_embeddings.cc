#include "tools/testing/mock_engine/mock_embeddings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;
using Vector = std::array<float, kEmbeddingDimensions>;

constexpr char kExpected[] = "expected a text, an array of token ids, or an array of either";

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("input is ", std::string(what), ": ", kExpected));
}

bool IsTokens(const Json& input) {
  return input.is_array() && !input.empty() &&
         std::all_of(input.begin(), input.end(),
                     [](const Json& id) { return id.is_number_unsigned() && id <= UINT32_MAX; });
}

absl::StatusOr<std::vector<TokenId>> TokensOf(const Json& input, const MakeTokens& tokenize) {
  if (input.is_string()) return tokenize(input.get<std::string>());
  if (IsTokens(input)) return input.get<std::vector<TokenId>>();
  return Wrong("of another kind");
}

Vector VectorOf(const std::vector<TokenId>& tokens) {
  Vector vector;
  float squares = 0;
  for (size_t i = 0; i < vector.size(); ++i) {
    uint64_t hash = 1337 + i;
    for (const TokenId token : tokens) hash = (hash ^ token) * 0x9e3779b97f4a7c15u + 1;
    vector[i] = static_cast<float>(hash >> 40) / static_cast<float>(1 << 23) - 1;
    squares += vector[i] * vector[i];
  }
  const float length = std::sqrt(squares);
  for (float& value : vector) value = length > 0 ? value / length : 1;
  return vector;
}

std::string Base64Of(const Vector& vector) {
  static_assert(std::endian::native == std::endian::little);
  return absl::Base64Escape(
      {reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float)});
}

}  // namespace

absl::StatusOr<std::string> MockEmbeddings(std::string_view body, const std::string& model,
                                           const MakeTokens& tokenize) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  const auto input = json.find("input");
  if (input == json.end()) return Wrong("missing");
  const std::string format = json.value("encoding_format", Json("float")).dump();
  if (format != "\"float\"" && format != "\"base64\"") {
    return absl::InvalidArgumentError(
        absl::StrCat("encoding_format is ", format, ": expected \"float\" or \"base64\""));
  }
  const Json inputs = input->is_string() || IsTokens(*input) ? Json::array({*input}) : *input;
  if (!inputs.is_array() || inputs.empty()) return Wrong("empty, or of another kind");
  if (inputs.size() > kEmbeddingInputsMax) return Wrong("too long");
  Json data = Json::array();
  size_t counted = 0;
  for (const Json& one : inputs) {
    const absl::StatusOr<std::vector<TokenId>> tokens = TokensOf(one, tokenize);
    if (!tokens.ok()) return tokens.status();
    counted += tokens->size();
    const Vector vector = VectorOf(*tokens);
    data.push_back({{"object", "embedding"},
                    {"index", data.size()},
                    {"embedding", format == "\"base64\"" ? Json(Base64Of(vector)) : Json(vector)}});
  }
  const Json usage = {{"prompt_tokens", counted}, {"total_tokens", counted}};
  return Json({{"object", "list"}, {"data", data}, {"model", model}, {"usage", usage}}).dump();
}

}  // namespace kvatlas
