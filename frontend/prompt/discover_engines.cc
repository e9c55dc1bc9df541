// A status carries the mark "no engine met" as a payload from the tokenizer that asks engines to
// `TokenizeMeetingEngines`, through the choice of ways (`tokenizer_choice.cc`), which may merge it
// with another reason.

#include "frontend/prompt/discover_engines.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"

namespace kvatlas {
namespace {

constexpr char kNoEngineMetUrl[] = "kvatlas/no-engine-met";

}  // namespace

absl::Status NoEngineMet(const std::string& model) {
  return WithNoEngineMet(
      absl::NotFoundError("no engine of " + model + " is known that could be asked"));
}

absl::Status WithNoEngineMet(absl::Status why) {
  why.SetPayload(kNoEngineMetUrl, absl::Cord());
  return why;
}

bool IsNoEngineMet(const absl::Status& why) { return why.GetPayload(kNoEngineMetUrl).has_value(); }

// 1. Tokenizes.
// 2. Asks leaves by a route that only learns, if the error may be due to what the frontend does not
//    know: no engine met, a model that neither tokenizer nor frontend knows, or engines that are
//    away or late and may have moved. Other answers are returned.
// 3. No leaf knows the model: returns that error, as the model does not exist.
// 4. Otherwise only "no engine met" is worth another try, with the time that is left. For the other
//    errors the route was made for the next prompt, and the first error is returned.
void TokenizeMeetingEngines(Frontend* frontend, PromptTokenizer* tokenizer, const Domain& domain,
                            std::shared_ptr<const Prompt> prompt, Duration deadline,
                            PromptTokenizer::Callback callback) {
  const Time end = Clock::Real().Now() + deadline;
  const Prompt& question = *prompt;
  tokenizer->Tokenize(
      domain.model, question, deadline,
      [=, prompt = std::move(prompt),
       callback = std::move(callback)](absl::StatusOr<PromptTokens> tokens) {
        const absl::Status why = tokens.status();
        const bool unmet = IsNoEngineMet(why);
        // Whether a name that no tokenizer knows is a model at all, only leaves can say.
        const bool unknown = absl::IsNotFound(why) && !frontend->Knows(domain);
        if (!unmet && !unknown && !absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why))
          return callback(std::move(tokens));
        frontend->RouteAsync({.domain = domain, .unknown_prompt = true, .only_learns = true},
                             [=](const absl::StatusOr<RouteResult>& route) {
                               if (IsUnknownModel(route.status())) return callback(route.status());
                               if (!unmet || absl::IsNotFound(route.status())) return callback(why);
                               if (!route.ok()) return callback(route.status());
                               const Duration left = end - Clock::Real().Now();
                               if (left <= Duration(0))
                                 return callback(absl::DeadlineExceededError("too late"));
                               tokenizer->Tokenize(domain.model, *prompt, left, callback);
                             });
      });
}

}  // namespace kvatlas
