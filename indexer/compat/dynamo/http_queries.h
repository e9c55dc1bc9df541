// Answers questions over HTTP: from a prompt's tokens or local hashes to the text of an answer.
//
// *Truth*: as `HolderRegistry`. In a domain with workers that announce look-ahead hashes (EAGLE) a
// prompt's tokens are asked under each kind of hashes, and a holder counts with the deepest.
// *Threads*: any. *Cost*: see tools/bench; a question takes memory that earlier ones left.
// *Lifetime*: registry and directory outlive it.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_QUERIES_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_QUERIES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/compat/dynamo/http_bodies.h"
#include "indexer/compat/dynamo/scores_answer.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"

namespace kvatlas {

struct ExplainOptions {
  uint32_t blocks_max = 1024;  // positions told
  uint32_t ranks_max = 16;     // ranks, the deepest first, whose holdings are read for it
};

class HttpQueries {
 public:
  // Without a directory there are no engines of this leaf's own.
  HttpQueries(HashContract contract, const HolderRegistry* registry,
              const EngineDirectory* directory,
              std::shared_ptr<Security> security = Security::OfProcess());
  ~HttpQueries();

  // Memory for one question at a time.
  struct Scratch {
    QueriesBody body;
    std::vector<LocalHash> locals;
    ScoresAnswer answer;
  };
  class Lease;
  Lease Borrow();

  // Appends the answer and returns its status: 200; 400 and 404 with {"error":…}. With `detail`
  // every rank is told by tier, with its trust, age and load.
  // The domain is one that `asker` may ask of, or unknown.
  int Answer(const QueryBody& query, const Identity& asker, bool detail, Scratch* scratch,
             std::string* out) const;

  // Appends which ranks have each block of a prompt, in which tiers, until none has it, and where
  // each rank's first hole is. Reads the holdings of some ranks: for people.
  int Explain(const QueryBody& query, const Identity& asker, const ExplainOptions& options,
              std::string* out) const;

 private:
  friend class Lease;

  // The domain of a query and how to ask it, or why there is no answer.
  struct Subject {
    Domain domain;
    uint32_t block_size = 0;
    uint32_t look_aheads =
        1;  // bit k: prompts are asked under hashes that cover k tokens behind a block
    int status = 200;
    std::string error;
  };
  Subject SubjectOf(const QueryBody& query, const Identity& asker) const;
  std::vector<SequenceHash> ChainOf(const QueryBody& query, uint32_t block_size, uint32_t eagle,
                                    std::vector<LocalHash>* locals) const;
  void AppendDetail(const Subject& subject, const QueryBody& query, Scratch* scratch,
                    std::string* out) const;

  const HashContract contract_;
  const HolderRegistry* const registry_;
  const EngineDirectory* const directory_;
  const std::shared_ptr<Security> security_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_ ABSL_GUARDED_BY(mutex_);
};

class HttpQueries::Lease {
 public:
  Lease(HttpQueries* queries, std::unique_ptr<Scratch> scratch)
      : queries_(queries), scratch_(std::move(scratch)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch* operator->() { return scratch_.get(); }
  Scratch* get() { return scratch_.get(); }

 private:
  HttpQueries* const queries_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_QUERIES_H_
