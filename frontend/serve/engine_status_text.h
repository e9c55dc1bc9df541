// Texts about engines that lack something, and about what they need.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_SERVE_ENGINE_STATUS_TEXT_H_
#define KVATLAS_FRONTEND_SERVE_ENGINE_STATUS_TEXT_H_

#include <cstdint>
#include <string>

#include "frontend/serve/engine_list.h"
#include "frontend/serve/served_namespaces.h"

namespace kvatlas {

// "1 rank", "2 ranks".
std::string Plural(uint64_t count, const char* what);

// The arguments that an engine needs for its events to be seen.
std::string EventsRemedy(const std::string& kind, const EngineSpec& spec);

// About an engine that finished this prompt, and holds blocks, but none under the prompt's cache
// salt and adapter. The salt is not said: it is a secret.
std::string NamespaceWords(const ServedNamespace& served);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_ENGINE_STATUS_TEXT_H_
