// Two makers of tokens: a frontend that is asked for a route of the text, and a tokenizer's files.

#include "tools/kvatlas/text_prompt.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/services.h"

namespace kvatlas {
namespace {

// A frontend's default gRPC port.
const Address kFrontend{"127.0.0.1", 7430};

using Ids = std::vector<uint64_t>;

// The same code as a frontend's --models, so the ids are those that it would make.
absl::StatusOr<Ids> ByFiles(const std::string& path, const std::string& text) {
  TextModelOptions options;
  options.path = path;
  const absl::StatusOr<std::shared_ptr<TextModel>> model = TextModel::Load(options);
  if (!model.ok()) return model.status();
  const absl::StatusOr<PromptTokens> tokens = (*model)->Tokenize(TextPrompt{.text = text});
  if (!tokens.ok()) return tokens.status();
  return Ids(tokens->tokens.begin(), tokens->tokens.end());
}

// A route is the only question by which a frontend tells tokens. `AskRoute` reports the request as
// over.
absl::StatusOr<Ids> ByFrontend(const ServiceName& name, const std::string& model,
                               const std::string& tenant, const AskedPrompt& prompt,
                               Duration timeout) {
  const absl::StatusOr<Address> at = Located(name, Plane::kGrpc, timeout);
  if (!at.ok()) return at.status();
  v1::RouteRequest request;
  request.mutable_domain()->set_model(model);
  request.mutable_domain()->set_tenant(tenant);
  request.mutable_text()->set_text(prompt.text);
  request.mutable_text()->set_lora_name(prompt.lora_name);
  request.mutable_text()->set_cache_salt(prompt.cache_salt);
  request.set_return_tokens(true);
  const absl::StatusOr<v1::RouteResponse> route = AskRoute(*at, request, timeout);
  if (!route.ok()) return route.status();
  if (route->tokens_size() > 0) return Ids(route->tokens().begin(), route->tokens().end());
  return absl::FailedPreconditionError(
      absl::StrCat(name.Title(), ": it makes no tokens of texts of ", model,
                   ": give it --models or --tokenize, or give this command --tokenizer PATH"));
}

}  // namespace

// A tokenizer that is named KIND=… is a frontend, anything else a path. `serve` has a frontend in
// it.
absl::Status MakeTokens(const std::string& model, const std::string& tenant,
                        const GivenTokenizer& tokenizer, Duration timeout, AskedPrompt* prompt) {
  if (prompt->form != AskedForm::kText) return absl::OkStatus();
  absl::StatusOr<Ids> ids;
  if (tokenizer.text.empty() || IsNamed(tokenizer.text)) {
    absl::StatusOr<ServiceName> name =
        tokenizer.text.empty()
            ? ServiceName{ServiceRole::kFrontend, tokenizer.frontend.value_or(kFrontend)}
            : ServiceName::Parse(tokenizer.text);
    if (name.ok() && name->role == ServiceRole::kServe) name->role = ServiceRole::kFrontend;
    if (!name.ok() || name->role != ServiceRole::kFrontend) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tokenizer: expected frontend=HOST:PORT, a file or a folder; found \"",
                       tokenizer.text, "\""));
    }
    ids = ByFrontend(*name, model, tenant, *prompt, timeout);
  } else {
    ids = ByFiles(tokenizer.text, prompt->text);
    if (!ids.ok())
      return absl::Status(ids.status().code(),
                          absl::StrCat("--tokenizer: ", ids.status().message()));
  }
  if (!ids.ok()) return ids.status();
  prompt->form = AskedForm::kTokens;
  prompt->numbers = *std::move(ids);
  return absl::OkStatus();
}

}  // namespace kvatlas
