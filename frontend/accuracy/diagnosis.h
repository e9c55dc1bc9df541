// Why do predictions and what engines serve part? From the evidence about workers to causes by
// name.
//
//   WorkerEvidence ─▶ Diagnose ─▶ findings about that worker, the most certain first
//   all of a domain ─▶ DiagnoseDomain ─▶ those, and what every worker of it shows
//
// What separates the causes:
//   what leaf and frontend say of themselves    contract, block size, masked, refused, orphaned, never heard
//   who served it, who holds it afterwards      another rank, another worker
//   the prompt asked again, later               late index; and under a supposition (`what_if.h`): BOS, block size, seed, salt
//   the engine's own count of the prompt        BOS (one more, always), template (chats alone), tokenizer (by length)
//   cached_tokens in time                       never any; until a moment; too few now and then
//   its greatest common divisor                 the engine's block size
//   how far finished prompts are in the index   from which block on the engine read something else
// A cause that explains the evidence silences those that would explain less of it. Where two fit,
// both are named, each in the other's `or_else`.
//
// *Truth*: no finding without several requests (or a fact that a process said of itself) behind it:
// thresholds are the constants below. Requests that failed, and engines that report nothing, count
// for nothing.
// *Threads*: pure. *Cost*: about the number of comparisons kept, squared.

#ifndef KVATLAS_FRONTEND_ACCURACY_DIAGNOSIS_H_
#define KVATLAS_FRONTEND_ACCURACY_DIAGNOSIS_H_

#include <optional>
#include <vector>

#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/finding.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {

// Requests that must show a thing before it is named; fewer where a leaf confirms it.
inline constexpr size_t kShownMin = 4;
inline constexpr size_t kConfirmedMin = 2;

std::vector<Finding> Diagnose(const WorkerEvidence& evidence);

// Findings of one domain's workers. A cause that at least two workers show, and that no worker with
// enough evidence lacks, is one finding about the domain. Where each worker alone shows too little,
// all together may show a cause.
std::vector<Finding> DiagnoseDomain(const std::vector<WorkerEvidence>& workers);

// A finding about a domain's latest routes. Nothing: tokens could be made for nearly all of them.
std::optional<Finding> DiagnoseTokens(const Domain& domain, const std::vector<TokensMade>& made);

Finding FindingOf(const UnreachableWorker& engine, Time now, double confidence);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_DIAGNOSIS_H_
