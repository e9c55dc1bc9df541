// Text and chats as a part of a process: the flags that choose the makers of their tokens, and the
// objects that are built from these flags.
//
// *Threads*: one, but for what the parts do. *Lifetime*: everything it is given outlives it.
//
// Example:
//   absl::StatusOr<std::unique_ptr<PromptParts>> prompts = PromptParts::Make(flags.prompts, reach,
//   &frontend);
//   FrontendService service(&frontend, &metrics, (*prompts)->router());

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROMPT_FLAGS_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROMPT_FLAGS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/engine_client/engine_reach.h"
#include "frontend/gateway/http/proxy.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/engine_names.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/remote_tokenizer.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/tokenizer_choice.h"
#include "frontend/router/frontend.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct PromptFlags {
  std::vector<std::string> tokenize = {"local+engine"};
  std::vector<std::string> tokenizer_urls;  // URL or MODEL=URL
  std::vector<std::string> adapters;        // ADAPTER=MODEL
  std::string engine_kind = "auto";
  Duration engine_models_every = EngineNamesOptions().every;
  PromptRouterOptions router;
  size_t remote_cache_bytes = RemoteTokenizerOptions().cache_bytes;
};
void AddPromptFlags(FlagSet& flags, PromptFlags* to);
// Only --tokenize.
void AddTokenizeFlag(FlagSet& flags, std::vector<std::string>* to);

// INVALID_ARGUMENT: --adapters.
absl::StatusOr<ServedNames> AdaptersOf(const PromptFlags& flags);

class PromptParts {
 public:
  // `local`: tokenizers from files; may be null. `domains`: see `EngineNamesOptions`.
  //   INVALID_ARGUMENT: a flag.
  static absl::StatusOr<std::unique_ptr<PromptParts>> Make(
      const PromptFlags& flags, const EngineReach& reach, Frontend* frontend,
      PromptTokenizer* local, std::function<std::vector<Domain>()> domains);
  PromptTokenizer* tokenizer() { return choice_.get(); }
  EngineNames* names() { return names_.get(); }
  const EngineConventions* conventions() const { return conventions_.get(); }
  PromptRouter* router() { return router_.get(); }

 private:
  PromptParts() = default;
  std::unique_ptr<RemoteTokenizer> engine_;
  std::unique_ptr<RemoteTokenizer> render_;
  std::unique_ptr<TokenizerChoice> choice_;
  std::unique_ptr<EngineConventions> conventions_;
  std::unique_ptr<EngineNames> names_;
  std::unique_ptr<PromptRouter> router_;
};

struct ProxyFlags {
  std::string listen;                // HOST:PORT; empty: no proxy
  std::vector<std::string> engines;  // WORKER=URL
  std::vector<std::string> engine_addresses = EngineAddresses::Default();
  std::string engine_api_key_file;
  std::vector<std::string> paths;  // for `ProxiedPaths::With`
  Duration engine_load_every = std::chrono::seconds(1);
  ProxyOptions proxy;
};
void AddProxyFlags(FlagSet& flags, ProxyFlags* to);
// The flags of these that any program with a proxy has: which calls are passed on, how large they
// may be, and how long is waited.
void AddProxyLimitFlags(FlagSet& flags, ProxyOptions* proxy, std::vector<std::string>* paths);

// For `FrontendOptions::engines`. INVALID_ARGUMENT: --engines.
absl::StatusOr<std::map<std::string, std::string>> EnginesOf(const ProxyFlags& flags);

// --engine_addresses, the hosts that other flags name, and the key for these. INVALID_ARGUMENT: one
// of them.
absl::StatusOr<EngineReach> ReachOf(const ProxyFlags& proxy, const PromptFlags& prompts);

// Null without --proxy. INVALID_ARGUMENT: --proxy.
absl::StatusOr<std::unique_ptr<Proxy>> MakeProxy(const ProxyFlags& flags, const EngineReach& reach,
                                                 Frontend* frontend, PromptParts* prompts,
                                                 Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROMPT_FLAGS_H_
