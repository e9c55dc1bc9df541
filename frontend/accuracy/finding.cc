// The texts of each cause. Names are a contract (finding.h); the other texts may change. `name`: an
// identifier; `meaning`: a clause; `remedy` and `test`: sentences.

#include "frontend/accuracy/finding.h"

#include <array>

namespace kvatlas {
namespace {

// The texts of one cause.
struct Words {
  std::string_view name;
  std::string_view meaning;
  std::string_view remedy;
  std::string_view test;
};

// In the order of `Cause`, by which the table is indexed; a new cause is added before
// `kUnexplained` in both.
constexpr std::array<Words, kCauses> kWords = {{
    {"wrong_block_size", "the engine cuts prompts into blocks of another size than the index",
     "Give the worker's registration (or its publisher) and the hashing caller the engine's own "
     "--block-size (vLLM) or --page-size (SGLang).",
     "The greatest common divisor of the cached_tokens that the engine reports is a multiple of "
     "its block size."},
    {"hash_contract", "tokens agree, but blocks are hashed under another seed or algorithm",
     "Give leaves, publishers and frontends the same --contract_seed, and let callers that hash "
     "themselves follow the hash contract.",
     "Ask the leaf with token ids (kvatlas query --tokens): if it then finds the prompt, the "
     "service that "
     "hashed differs."},
    {"tokenizer", "the engine makes other tokens of the same text",
     "Load the tokenizer.json of the model and revision that the engine serves, or let the engine "
     "make the tokens (--tokenize=engine).",
     "Send a plain completion prompt: if its token count differs from the engine's too, it is the "
     "tokenizer; if only chats differ, it is the template."},
    {"chat_template", "the engine renders chats with another template",
     "Use the engine's chat template (its --chat-template, or the one in the model's "
     "tokenizer_config.json) with the same template arguments, tools and generation prompt.",
     "Send a plain completion prompt: if its token count equals the engine's while those of chats "
     "differ, it is the template."},
    {"bos_doubled", "one side puts the begin-of-sequence token twice",
     "Tokenize rendered chats without special tokens (add_special_tokens=false) on the side that "
     "doubles it: the template has written the token already.",
     "Compare the first two ids of the engine's /tokenize with ours: one side has the BOS id "
     "twice."},
    {"bos_missing", "one side leaves out the begin-of-sequence token",
     "Tokenize plain prompts with special tokens (add_special_tokens=true) on the side that "
     "leaves it out.",
     "Compare the first id of the engine's /tokenize with ours: one side lacks the BOS id."},
    {"cache_salt", "prompts with a cache salt live in another namespace at the index",
     "Pass the request's cache_salt to the route exactly as to the engine, register the worker "
     "without an additional salt unless all its requests have it, and check that the engine's "
     "version announces salts in its events (extra_keys).",
     "Route the same prompt without the salt: if it then matches, the salt is the difference."},
    {"lora_namespace", "prompts for an adapter live in another namespace at the index",
     "Pass the adapter's name (not its number) to the route as the engine announces it, and "
     "register the worker under an adapter only if all its requests use it.",
     "Route the same prompt without the adapter: if it then matches, the adapter is the "
     "difference."},
    {"events_off", "the engine caches prefixes but announces nothing",
     "Switch the engine's KV events on (vLLM: --kv-events-config with enable_kv_cache_events and "
     "publisher zmq) and check that the registered endpoint and topic are the ones it binds.",
     "The leaf's count of batches from this worker (kvatlas workers) stays 0 while it serves."},
    {"events_refused", "the leaf hears the engine's events and cannot use them",
     "Read the leaf's last refusal for this worker (GET /workers?detail=1) and mend what it names.",
     "The leaf counts refusals for this worker and holds nothing of it."},
    {"blocks_orphaned", "the leaf joined late and does not know the parents of what is announced",
     "Register the engine with its replay endpoint, or let a replica or checkpoint bring the leaf "
     "what it missed; without either, clear the engine's prefix cache once.",
     "The leaf counts parked blocks for this worker (GET /workers?detail=1)."},
    {"publisher_dead", "the worker's event stream is silent while the worker is not known to stop",
     "Restart the worker's publisher or mend the network between it and the leaf; an engine that "
     "publishes itself has to be started with its KV events on; if it is gone, take the worker "
     "out.",
     "Reports of requests that the worker finished while its stream is silent: then the engine "
     "lives and its publisher does not."},
    {"stale_index", "the index learns of stores or evictions too late",
     "Look for lag (leaf's lag_ms, publisher's queue, a busy host), lost batches without replay, "
     "and caches so small that they turn over faster than events arrive.",
     "The same prompt asked again later: an index that is late has caught up by then."},
    {"rank_mixed_up", "requests for one data-parallel rank are served by another",
     "Make the engine honour the rank that is asked for (vLLM: X-data-parallel-rank header; "
     "SGLang: data_parallel_rank), and number ranks globally, not per node.",
     "The index shows the prompt at another rank of the same worker after it was served."},
    {"worker_mixed_up", "requests for one worker end up at another",
     "Check the gateway's map from worker names to addresses, and that each engine's events are "
     "registered under the name of the address that serves it.",
     "The index shows the prompt at one and the same other worker after it was served."},
    {"prefix_caching_off", "the engine never serves from its cache",
     "Start the engine with prefix caching (vLLM: without --no-enable-prefix-caching; SGLang: "
     "without --disable-radix-cache).",
     "Send one long prompt twice: if the second takes as long to its first token, nothing is "
     "cached; if it is faster, only the usage is missing."},
    {"usage_not_reported", "the engine caches but does not report cached_tokens",
     "Let the engine report them (vLLM: --enable-prompt-tokens-details; SGLang: "
     "--enable-cache-report), and report nothing rather than 0 where usage has none.",
     "Look at the engine's own usage: prompt_tokens_details is missing or null."},
    {"engine_restarted", "the engine lost its cache, and the index was not told",
     "Let the leaf hear of restarts (replay endpoint, or a publisher inside the engine's process); "
     "a reset of the prefix cache must be announced (AllBlocksCleared) before new requests.",
     "Predictions were true until one moment and wrong after it, but for prompts sent again "
     "since."},
    {"engine_unreachable", "the engine does not answer over HTTP",
     "Start the engine, or mend its address where it is named (kvatlas serve: --engine; else the "
     "url of its worker, or --engines of the frontend).",
     "Ask the engine for /v1/models from the host of the frontend."},
    {"no_tokens", "requests are routed by load alone, as no tokens could be made of their prompts",
     "Mend what the reasons name, or let the other way make the tokens: the engine itself "
     "(--tokenize=engine), or the model's files (--models).",
     "The header x-kvatlas-fallback of such an answer says no_tokens and why."},
    {"prompt_differs", "the engine reads other tokens of some requests than were hashed for them",
     "Compare the tokens of such a request (GET /decisions/ID) with the engine's own, and let what "
     "reads it as its chat does make them (--tokenize).",
     "Send such a request twice: the second is served from the cache nearly whole, while the "
     "index has its beginning only."},
    {"unexplained", "predictions and what the engine serves part, and no known cause fits",
     "Look at the decisions named (GET /decisions/ID) and compare the engine's tokens and events "
     "with the prompt.",
     "Nothing else fits."},
}};

const Words& Of(Cause cause) { return kWords[static_cast<size_t>(cause)]; }

}  // namespace

std::string_view CauseName(Cause cause) { return Of(cause).name; }
std::string_view CauseMeaning(Cause cause) { return Of(cause).meaning; }
std::string_view CauseRemedy(Cause cause) { return Of(cause).remedy; }
std::string_view CauseTest(Cause cause) { return Of(cause).test; }

// A step may know better what to do than the cause does in general.
std::string RemedyOf(const Finding& finding) {
  return finding.remedy.empty() ? std::string(CauseRemedy(finding.cause)) : finding.remedy;
}

}  // namespace kvatlas
