// The causes for which an index and its engines disagree: each has a name that never changes, and
// texts for the operator.

#ifndef KVATLAS_FRONTEND_ACCURACY_FINDING_H_
#define KVATLAS_FRONTEND_ACCURACY_FINDING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// The names (`CauseName`) are a contract with dashboards and alerts.
enum class Cause : uint8_t {
  kWrongBlockSize,
  kHashContract,
  kTokenizer,
  kChatTemplate,
  kBosDoubled,  // one begin-of-sequence token more at the engine, or at the frontend
  kBosMissing,
  kCacheSalt,
  kLoraNamespace,
  kEventsOff,
  kEventsRefused,
  kBlocksOrphaned,
  kPublisherDead,
  kStaleIndex,
  kRankMixedUp,
  kWorkerMixedUp,
  kPrefixCachingOff,
  kUsageNotReported,
  kEngineRestarted,
  kEngineUnreachable,
  kNoTokens,       // prompts are routed by load, as no tokens could be made of them
  kPromptDiffers,  // of some requests the engine reads other tokens than were hashed
  kUnexplained,
};

inline constexpr int kCauses = static_cast<int>(Cause::kUnexplained) + 1;

// "wrong_block_size"
std::string_view CauseName(Cause cause);
// The cause in a clause: "the engine cuts prompts into blocks of another size than the index".
std::string_view CauseMeaning(Cause cause);
// The remedy as a sentence; a finding may have a better one (`RemedyOf`).
std::string_view CauseRemedy(Cause cause);
// How to tell this cause from others that the same evidence fits, as a sentence.
std::string_view CauseTest(Cause cause);

struct Finding {
  Cause cause = Cause::kUnexplained;
  double confidence = 0;  // 0 to 1; comparable among findings about one worker
  Domain domain;
  std::string cell;
  HolderId worker;                    // without a name: the whole domain
  std::vector<std::string> evidence;  // sentences with numbers
  std::vector<uint64_t>
      decisions;                  // that show it, the latest first, at most `kFindingDecisionsMax`
  std::vector<Cause> or_else;     // what the same evidence fits too; each has a finding of its own
  std::vector<HolderId> workers;  // of a domain's finding: who shows it
  std::string remedy = {};        // what to do here; empty: what the cause says
};

std::string RemedyOf(const Finding& finding);

inline constexpr size_t kFindingDecisionsMax = 8;

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_FINDING_H_
