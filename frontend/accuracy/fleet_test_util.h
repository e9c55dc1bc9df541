// A fleet of engines with one thing wrong: prompts, workers that cache, announce and serve them,
// and listeners.
//
//   FleetTraffic ─ prompts ─▶ FaultyEngine (one per worker) ─ announcements ─▶ AnnouncementSink: a pretended index, or a real leaf
//
// *Truth*: an engine caches what it really has by its own tokens, its own block size and its own
// namespaces. Its announcements, and the prompts as a frontend believes it gets them, may differ:
// that is the fault.

#ifndef KVATLAS_FRONTEND_ACCURACY_FLEET_TEST_UTIL_H_
#define KVATLAS_FRONTEND_ACCURACY_FLEET_TEST_UTIL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "frontend/accuracy/finding.h"
#include "frontend/router/frontend.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// The faults of a worker, or between it and its frontend.
enum class Fault {
  kNone,
  kBlockSize,  // 32 where the index believes 16
  kSeed,       // a publisher that hashes by another seed
  kTokenizer,  // the engine's splits some tokens in two
  kTemplate,   // the engine's has a longer head and other turns
  kEffort,     // of every second conversation, but for one turn, the engine writes another effort
  kReasoning,  // of every second conversation the engine reads more of its first turn
  kBosTwice,   // the engine adds one more
  kBosTwiceHere,  // the frontend does
  kNoBos,         // the engine leaves it out
  kNoBosHere,     // the frontend does
  kSaltUnsaid,    // the engine's events do not tell salts
  kLoraUnsaid,
  kEventsOff,
  kPublisherDead,  // from some request on
  kLateEvents,
  kLostRemovals,  // and so promises that cannot be kept
  kRanksSwapped,
  kWorkersSwapped,
  kCachingOff,
  kUsageMissing,  // 0 is reported instead
  kRestarted,     // at some request, without an announcement
};
std::string ToString(Fault fault);
const std::vector<Fault>& AllFaults();
// The cause that a diagnosis has to name; kUnexplained for kNone.
Cause CauseOf(Fault fault);
// Causes that may be named beside it, since the same evidence fits.
std::set<Cause> AlsoFits(Fault fault);

// A request to an engine, before it is tokenized.
struct Prompt {
  PromptForm form = PromptForm::kChat;
  std::vector<std::vector<TokenId>> turns;
  std::string lora_name;
  std::string cache_salt;
};

inline constexpr TokenId kBos = 1;

// As a tokenizer and a template would; with a fault as the engine that has it does, or the frontend
// (`here`).
std::vector<TokenId> TokensOf(const Prompt& prompt, Fault fault, bool here);

// Conversations that grow, completions with common beginnings, and some with a salt or an adapter.
class FleetTraffic {
 public:
  struct Options {
    uint64_t seed = 1;
    double chats = 0.6;
    double salted = 0;
    double with_lora = 0;
    size_t conversations = 12;
    size_t turns_max = 10;
  };
  explicit FleetTraffic(const Options& options);
  Prompt Next();

 private:
  uint32_t Random(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  std::vector<TokenId> Text(uint32_t tokens);
  Prompt Begin();

  const Options options_;
  std::mt19937_64 random_;
  std::vector<std::vector<TokenId>> heads_;
  std::vector<Prompt> conversations_;
};

// An engine's message about its cache.
struct Announcement {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  std::vector<uint64_t> names = {};  // of the blocks, in order
  uint64_t parent = 0;               // 0: none
  std::vector<TokenId> tokens = {};
  uint32_t block_size = 16;
  std::string lora_name = {};
  std::string cache_salt = {};
};

class AnnouncementSink {
 public:
  virtual ~AnnouncementSink() = default;
  virtual void Announce(const HolderId& worker, const Announcement& announcement) = 0;
};

struct Usage {
  uint32_t cached_tokens = 0;
  uint32_t prompt_tokens = 0;
};

// One worker rank's engine.
class FaultyEngine {
 public:
  struct Options {
    HolderId worker;
    Fault fault = Fault::kNone;
    uint32_t block_size = 16;
    size_t blocks_max = 4096;
  };
  FaultyEngine(Options options, AnnouncementSink* sink)
      : options_(std::move(options)), sink_(sink) {}

  Usage Serve(const Prompt& prompt);
  // Everything goes; nothing is said.
  void Forget();
  const HolderId& worker() const { return options_.worker; }

 private:
  struct Cached {
    uint64_t name = 0;
    uint64_t used = 0;
  };
  void Evict();

  const Options options_;
  AnnouncementSink* const sink_;
  std::map<SequenceHash, Cached> cache_;  // by the engine's own content
  uint64_t uses_ = 0;
  uint64_t names_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_FLEET_TEST_UTIL_H_
