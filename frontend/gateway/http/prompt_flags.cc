// Flags of prompts and of the proxy, the checks of their texts, and the objects that are made of
// them. Checks run twice: with the flags, for an error at start, and where the object is made, for
// programs that set the fields themselves.

#include "frontend/gateway/http/prompt_flags.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_split.h"
#include "frontend/engine_client/own_address.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The most engines of a model among which prompts are spread for tokenizing, and the most that are
// looked at to find them.
constexpr size_t kEnginesAskedMax = 64;
constexpr size_t kEnginesLookedAtMax = 4096;

// INVALID_ARGUMENT whose message begins with the flag.
absl::Status Wrong(const char* flag, const absl::Status& why) {
  return absl::InvalidArgumentError(std::string(flag) + ": " + std::string(why.message()));
}

// The elements of a flag's list, none of them empty.
std::vector<std::string> Elements(const std::string& text) { return absl::StrSplit(text, ','); }

// Urls by model; those of "" are for all other models.
using UrlsByModel = std::map<std::string, std::vector<std::string>>;

// A model's name may hold '=', so the split is at the "=" before "http://".
absl::StatusOr<UrlsByModel> ParseUrls(const std::vector<std::string>& entries) {
  UrlsByModel urls;
  for (const std::string& entry : entries) {
    const size_t scheme = entry.find("http://");
    const bool named = scheme != std::string::npos && scheme > 0 && entry[scheme - 1] == '=';
    const std::string url = named ? entry.substr(scheme) : entry;
    if (absl::Status bad = EngineUrl::Parse(url).status(); !bad.ok()) return bad;
    urls[named ? entry.substr(0, scheme - 1) : ""].push_back(url);
  }
  return urls;
}

absl::StatusOr<ServedNames> ParseAdapters(const std::vector<std::string>& entries) {
  ServedNames adapters;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size())
      return absl::InvalidArgumentError("'" + entry + "' is not ADAPTER=MODEL");
    const ServedName served = {.model = entry.substr(equals + 1), .adapter = true};
    if (!adapters.emplace(entry.substr(0, equals), served).second)
      return absl::InvalidArgumentError("'" + entry + "' names its adapter again");
  }
  return adapters;
}

// The engines that the flags name, or else those that serve the model; suspects only where there
// are no others. An engine without a model comes from --engines and may serve any.
std::vector<std::string> UrlsFor(const UrlsByModel& given, const Frontend& frontend,
                                 const std::string& model) {
  auto found = given.find(model);
  if (found == given.end()) found = given.find("");
  if (found != given.end()) return found->second;
  std::vector<std::string> urls;
  for (const KnownEngine& engine : frontend.Engines(kEnginesLookedAtMax)) {
    if (urls.size() == kEnginesAskedMax || (engine.suspect && !urls.empty())) break;
    if (engine.domain.model == model || engine.domain.model.empty()) urls.push_back(engine.url);
  }
  return urls;
}

// Without this line only a header of each answer says that there are no tokens.
void WarnOfNoTokenizer(const TokenizeWays& ways) {
  for (const auto& [model, of_model] : ways) {
    if (of_model != std::vector<std::string>{"local"}) continue;
    Log(LogLevel::kWarning, "prompts of text are routed by load alone: no tokenizer",
        {{"model", model.empty() ? "all" : model},
         {"reason", "--tokenize=local without --models"},
         {"remedy", "--models=NAME=PATH, or --tokenize=engine"}});
  }
}

}  // namespace

void AddTokenizeFlag(FlagSet& flags, std::vector<std::string>* to) {
  flags
      .Add("tokenize", to,
           "who makes tokens of text and chats: [MODEL=]WAY[+WAY], where a way is local "
           "(tokenizers from files), engine (its /tokenize, and its /v1/…/render for what that "
           "cannot express) or render (its /v1/…/render alone)")
      .Check([](const std::string& text) { return ParseTokenizeWays(Elements(text)).status(); });
}

void AddPromptFlags(FlagSet& flags, PromptFlags* to) {
  AddTokenizeFlag(flags, &to->tokenize);
  flags
      .Add("tokenizer_url", &to->tokenizer_urls,
           "engines that are asked for tokens, [MODEL=]http://HOST:PORT; none: those of the "
           "model's workers whose url is known")
      .Check([](const std::string& text) { return ParseUrls(Elements(text)).status(); });
  flags
      .Add("adapters", &to->adapters,
           "adapters (LoRA) that any engine of the model takes: ADAPTER=MODEL,…; others are those "
           "that engines list at /v1/models")
      .Check([](const std::string& text) { return ParseAdapters(Elements(text)).status(); });
  flags.Add("engine_models_every", &to->engine_models_every,
            "how often engines are asked for their models while adapters, or further names of a "
            "model, are asked for; 0: never, then only --adapters are known, and what engines are "
            "only by --engine_kind",
            Duration(0));
  flags.AddChoice(kEngineKindFlag, &to->engine_kind, kEngineKindHelp, EngineKindNames());
  flags.Add("tokenize_threads", &to->router.threads,
            "threads that read prompts and make tokens of them", 1u, 256u);
  flags.Add("tokenize_deadline", &to->router.tokenize_deadline,
            "time to make the tokens of one prompt", std::chrono::milliseconds(1));
  flags.Add("tokenize_cache_bytes", &to->remote_cache_bytes,
            "memory for prompts that engines made tokens of, and for these tokens");
}

absl::StatusOr<ServedNames> AdaptersOf(const PromptFlags& flags) {
  absl::StatusOr<ServedNames> adapters = ParseAdapters(flags.adapters);
  if (!adapters.ok()) return Wrong("--adapters", adapters.status());
  return adapters;
}

// Builds the parts from the bottom up; each refers to those before it, and members are destroyed in
// the opposite order:
// 1. tokenizers that ask engines, by /tokenize and by /render;
// 2. the choice among these and the local one (--tokenize);
// 3. conventions and names of engines, which are asked in a thread of `EngineNames`;
// 4. the router.
absl::StatusOr<std::unique_ptr<PromptParts>> PromptParts::Make(
    const PromptFlags& flags, const EngineReach& reach, Frontend* frontend, PromptTokenizer* local,
    std::function<std::vector<Domain>()> domains) {
  absl::StatusOr<TokenizeWays> ways = ParseTokenizeWays(flags.tokenize);
  if (!ways.ok()) return Wrong("--tokenize", ways.status());
  absl::StatusOr<UrlsByModel> urls = ParseUrls(flags.tokenizer_urls);
  if (!urls.ok()) return Wrong("--tokenizer_url", urls.status());
  absl::StatusOr<ServedNames> adapters = AdaptersOf(flags);
  if (!adapters.ok()) return adapters.status();
  if (local == nullptr) WarnOfNoTokenizer(*ways);
  std::unique_ptr<PromptParts> parts(new PromptParts);
  RemoteTokenizerOptions remote;
  remote.urls = [given = *std::move(urls), frontend](const std::string& model) {
    return UrlsFor(given, *frontend, model);
  };
  remote.cache_bytes = flags.remote_cache_bytes;
  remote.engine.reach = reach;
  // An engine that tokenizes longer than a prompt may wait is given up.
  remote.engine.head_timeout = flags.router.tokenize_deadline;
  parts->engine_ = std::make_unique<RemoteTokenizer>(remote);
  remote.way = RemoteWay::kRender;
  parts->render_ = std::make_unique<RemoteTokenizer>(remote);
  std::map<std::string, PromptTokenizer*> by_way = {{"engine", parts->engine_.get()},
                                                    {"render", parts->render_.get()}};
  if (local != nullptr) by_way["local"] = local;
  parts->choice_ = std::make_unique<TokenizerChoice>(*std::move(ways), std::move(by_way));
  const absl::StatusOr<std::optional<Convention>> kind = ParseEngineKind(flags.engine_kind);
  if (!kind.ok()) return Wrong("--engine_kind", kind.status());
  parts->conventions_ = std::make_unique<EngineConventions>(*kind);
  EngineNamesOptions names;
  names.conventions = parts->conventions_.get();
  names.given = *std::move(adapters);
  names.every = flags.engine_models_every;
  names.call.reach = reach;
  names.domains = std::move(domains);
  parts->names_ = std::make_unique<EngineNames>(std::move(names), frontend);
  PromptRouterOptions router = flags.router;
  router.served_name = parts->names_->finder();
  router.conventions = parts->conventions_.get();
  router.is_trusted = [choice = parts->choice_.get()](const std::string& model,
                                                      const BodyPrompt& prompt) {
    return choice->IsTrusted(model, prompt);
  };
  parts->router_ = std::make_unique<PromptRouter>(router, frontend, parts->choice_.get());
  return parts;
}

void AddProxyFlags(FlagSet& flags, ProxyFlags* to) {
  ProxyOptions& proxy = to->proxy;
  flags
      .AddAddress("proxy", &to->listen,
                  "where requests for engines are taken and their answers passed on; empty: none")
      .Listens();
  flags.Add("engines", &to->engines,
            "WORKER=http://HOST:PORT,… of engines whose workers do not say it in a label url");
  flags.Add("engine_load_every", &to->engine_load_every,
            "how often the engines of --engines are asked for their load, at /metrics as vLLM and "
            "SGLang have it, "
            "where their events carry none; 0: never",
            Duration(0));
  flags.Add(kEngineAddressesFlag, &to->engine_addresses, kEngineAddressesHelp);
  flags.Add(kEngineApiKeyFileFlag, &to->engine_api_key_file, kEngineApiKeyFileHelp);
  flags.Add("proxy_threads", &proxy.io_threads, "threads of the proxy", 1u, 256u);
  flags.Add("proxy_tries", &proxy.tries, "engines that are tried for one request", 1u, 100u);
  AddProxyLimitFlags(flags, &proxy, &to->paths);
  flags.Add("proxy_tenant", &proxy.tenant, "tenant of requests without a header x-kvatlas-tenant");
}

void AddProxyLimitFlags(FlagSet& flags, ProxyOptions* proxy, std::vector<std::string>* paths) {
  flags
      .Add("proxy_paths", paths,
           "calls passed on to engines beside those that are (proxied_paths.h), such as 'GET "
           "/server_info,GET /v1/files/*'")
      .Check([](const std::string& text) { return ProxiedPaths::With(Elements(text)).status(); });
  flags.Add("proxy_header_bytes_max", &proxy->header_bytes_max,
            "largest head of a request: its line and headers", size_t{1} << 10, size_t{1} << 20);
  flags.Add("proxy_body_bytes_max", &proxy->body_bytes_max, "largest body of a request", size_t{1});
  flags.Add("proxy_connect_timeout", &proxy->engine.connect_timeout,
            "time for an engine to take a connection", std::chrono::milliseconds(1));
  flags.Add("proxy_answer_timeout", &proxy->engine.head_timeout,
            "time for an engine to begin its answer, and of a stream to send the first event",
            std::chrono::milliseconds(1));
  flags.AddChoice("forward_token_ids", &proxy->forward_token_ids,
                  "auto: an engine that takes them (vLLM from 0.33 on) gets the ids of a chat, and "
                  "makes none of its own, once samples of such chats were equal; off: bodies are "
                  "never changed",
                  {"auto", "off"});
  flags.Add("proxy_silence_timeout", &proxy->engine.idle_timeout,
            "between two pieces of an engine's answer, once it has begun",
            std::chrono::milliseconds(1));
}

absl::StatusOr<std::map<std::string, std::string>> EnginesOf(const ProxyFlags& flags) {
  std::map<std::string, std::string> engines;
  for (const std::string& entry : flags.engines) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos)
      return absl::InvalidArgumentError("--engines: '" + entry + "' is not WORKER=URL");
    const std::string url = entry.substr(equals + 1);
    if (absl::Status bad = EngineUrl::Parse(url).status(); !bad.ok())
      return Wrong("--engines", bad);
    const absl::StatusOr<Address> at = Address::Parse(EngineUrl::Parse(url)->authority());
    const absl::StatusOr<Address> proxy = Address::Parse(flags.listen);
    // A loop that can be seen at start; others are found by `kHopHeader`.
    if (at.ok() && proxy.ok() && LeadsTo(*at, *proxy))
      return absl::InvalidArgumentError("--engines: '" + entry +
                                        "' is this process itself (--proxy=" + flags.listen + ")");
    if (!engines.emplace(entry.substr(0, equals), url).second)
      return absl::InvalidArgumentError("--engines: '" + entry + "' names its worker again");
  }
  return engines;
}

// Hosts that the operator names are reachable in any case, beside the ranges of --engine_addresses,
// and only they get the key of --engine_api_key_file.
absl::StatusOr<EngineReach> ReachOf(const ProxyFlags& proxy, const PromptFlags& prompts) {
  absl::StatusOr<EngineAddresses> addresses = EngineAddresses::Parse(proxy.engine_addresses);
  if (!addresses.ok()) return addresses.status();
  EngineReach reach{.addresses = *std::move(addresses)};
  const absl::StatusOr<std::map<std::string, std::string>> engines = EnginesOf(proxy);
  if (!engines.ok()) return engines.status();
  std::set<std::string> given;
  for (const auto& [worker, url] : *engines) given.insert(EngineUrl::Parse(url)->authority());
  const absl::StatusOr<UrlsByModel> tokenizers = ParseUrls(prompts.tokenizer_urls);
  if (!tokenizers.ok()) return Wrong("--tokenizer_url", tokenizers.status());
  for (const auto& [model, urls] : *tokenizers)
    for (const std::string& url : urls) given.insert(EngineUrl::Parse(url)->authority());
  reach.given->Set(std::move(given));
  absl::StatusOr<std::string> key = ReadEngineApiKey(proxy.engine_api_key_file);
  if (!key.ok()) return key.status();
  reach.given->SetApiKey(*std::move(key));
  return reach;
}

absl::StatusOr<std::unique_ptr<Proxy>> MakeProxy(const ProxyFlags& flags, const EngineReach& reach,
                                                 Frontend* frontend, PromptParts* prompts,
                                                 Metrics* metrics) {
  if (flags.listen.empty()) return nullptr;
  absl::StatusOr<Address> listen = Address::Parse(flags.listen);
  if (!listen.ok()) return Wrong("--proxy", listen.status());
  ProxyOptions options = flags.proxy;
  options.listen = *listen;
  options.engine.reach = reach;
  absl::StatusOr<ProxiedPaths> paths = ProxiedPaths::With(flags.paths);
  if (!paths.ok()) return Wrong("--proxy_paths", paths.status());
  options.paths = *std::move(paths);
  options.meet_engines = [names = prompts->names()](std::function<void()> later) {
    return names->Meet(std::move(later));
  };
  return std::make_unique<Proxy>(options, frontend, prompts->router(), metrics);
}

}  // namespace kvatlas
