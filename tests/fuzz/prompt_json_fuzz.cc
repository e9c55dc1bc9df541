// Bodies for engines, by path, and engines' lists of models: what is put into a body leaves JSON,
// with all else that it said.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/gateway/http/forwarded_tokens.h"
#include "frontend/gateway/http/models_list.h"
#include "frontend/prompt/request/prompt_request.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

constexpr RequestPath kPaths[] = {RequestPath::kCompletions,     RequestPath::kChat,
                                  RequestPath::kResponses,       RequestPath::kMessages,
                                  RequestPath::kSglangGenerate,  RequestPath::kVllmGenerate,
                                  RequestPath::kChatOrCompletion};

void Requests(RequestPath path, std::string_view input) {
  const auto body = std::make_shared<const std::string>(input);
  const bool is_object = nlohmann::json::accept(input) && nlohmann::json::parse(input).is_object();
  const absl::StatusOr<PromptRequest> request = ReadPromptRequest(path, body);
  if (!request.ok()) FuzzCheck(!request.status().message().empty(), "a refusal without a word");
  const absl::StatusOr<std::string> salted = WithSalt(
      input,
      [](const std::string&, const std::string&) { return std::optional<std::string>("salt"); });
  if (is_object && salted.ok())
    FuzzCheck(nlohmann::json::parse(*salted).value("cache_salt", "") == "salt", "no salt in it");
  const TokenId tokens[] = {1, 2, 3};
  const auto with_tokens = BodyWithTokens(*body, tokens);
  if (is_object && with_tokens != nullptr)
    FuzzCheck(nlohmann::json::accept(*with_tokens), "no JSON with tokens in it");
}

void Models(std::string_view input) {
  const std::string list(input);
  const std::optional<std::string> merged = MergeModels({list, std::nullopt, list});
  if (merged.has_value()) FuzzCheck(nlohmann::json::accept(*merged), "a list that is no JSON");
  ModelsOf(list, [](const std::string& id) { return id != "m"; });
  ModelIn(list, "m");
}

const AddFuzzSeeds kSeeds([] {
  return std::vector<std::string>{
      std::string(1, '\0') + R"({"model":"m","prompt":[1,2,3],"max_tokens":5,"stream":true,"n":2})",
      std::string(1, '\0') +
          R"({"model":"m","prompt":["a","b"],"cache_salt":"s","kv_transfer_params":{}})",
      "\x01"
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"h\u00e9"}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"chat_template_kwargs":{"a":1}})",
      "\x02"
      R"({"model":"m","input":[{"type":"item_reference","id":"i"}],"previous_response_id":"resp_1","instructions":"x"})",
      "\x03"
      R"({"model":"m","max_tokens":3,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"q"}]})",
      "\x04"
      R"({"input_ids":[[1,2],[3]],"sampling_params":{"max_new_tokens":1},"routed_dp_rank":1})",
      "\x05"
      R"({"token_ids":[1,2],"model":"m","sampling_params":{}})",
      "\x07"
      R"({"object":"list","data":[{"id":"m","object":"model","root":"r"},{"id":"n"}]})"};
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t path = kvatlas::FuzzChoice(&input, 8);
  if (path == 7) {
    kvatlas::Models(input);
  } else {
    kvatlas::Requests(kvatlas::kPaths[path], input);
  }
  return 0;
}
