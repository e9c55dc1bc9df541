// Tokenizes a prompt by an engine when the frontend has met no engine of the model yet. Addresses
// of engines are labels of their workers and come with the answers of leaves to routes, but a
// prompt without tokens cannot be routed. So a route that only learns is asked for first.
//
//   Tokenize ─▶ NOT_FOUND, "no engine met" ─▶ Frontend::RouteAsync, `only_learns` ─▶ Tokenize
//
// *Truth*: where engines were met but are away, leaves are asked too, as engines may have moved;
// the error is returned as it is. A name that no tokenizer knows and no leaf either is an unknown
// model (`IsUnknownModel`).
// *Threads*: any; the callback is called exactly once, possibly before the call returns, and in a
// thread of the frontend's or the tokenizer's.
// *Lifetime*: frontend and tokenizer outlive the callback.

#ifndef KVATLAS_FRONTEND_PROMPT_DISCOVER_ENGINES_H_
#define KVATLAS_FRONTEND_PROMPT_DISCOVER_ENGINES_H_

#include <memory>

#include "absl/status/status.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {

// A tokenizer's NOT_FOUND that may end when the frontend has met an engine of the model.
absl::Status NoEngineMet(const std::string& model);
// Another reason, which may end then too: files refuse what an engine may take.
absl::Status WithNoEngineMet(absl::Status why);
bool IsNoEngineMet(const absl::Status& why);

// As `PromptTokenizer::Tokenize`. NOT_FOUND, in the tokenizer's words: no leaf knows the model
// either, or its workers have no `url`. UNAVAILABLE: as of routes.
void TokenizeMeetingEngines(Frontend* frontend, PromptTokenizer* tokenizer, const Domain& domain,
                            std::shared_ptr<const Prompt> prompt, Duration deadline,
                            PromptTokenizer::Callback callback);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_DISCOVER_ENGINES_H_
