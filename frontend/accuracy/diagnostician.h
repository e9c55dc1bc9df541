// By which steps is one worker's evidence gone through? Inside of `Diagnose`; each file has the
// steps about one thing.
//
//   diagnosis.cc         the order of the steps, from facts to guesses
//   leaf_diagnosis.cc    what the leaf says of itself, and of the worker's events
//   mixup_diagnosis.cc   another rank, another worker
//   blind_diagnosis.cc   the engine serves what the index does not know
//   text_diagnosis.cc    the engine makes other tokens of a prompt
//   prompt_diagnosis.cc  it does so of some prompts, from some block on
//   served_diagnosis.cc  the index knows what the engine does not serve

#ifndef KVATLAS_FRONTEND_ACCURACY_DIAGNOSTICIAN_H_
#define KVATLAS_FRONTEND_ACCURACY_DIAGNOSTICIAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/finding.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {

class Diagnostician {
 public:
  explicit Diagnostician(const WorkerEvidence& evidence)
      : e_(evidence), leaf_(evidence.leaf), sight_(SightOf(evidence)) {}

  std::vector<Finding> Run();

 private:
  using Evidence = std::vector<std::string>;  // sentences
  using Decisions = std::vector<uint64_t>;

  // The remedy that fits how the tokens are made now; empty: the cause's own.
  std::string RemedyFor(Cause cause) const;
  void Add(Cause cause, double confidence, Evidence evidence, Decisions decisions);
  // Causes that the same evidence fits, each with its confidence.
  void AddAlternatives(const std::vector<std::pair<Cause, double>>& causes,
                       const Evidence& evidence, const Decisions& decisions);

  // ---- Leaf ----
  // Its requests fail, or it was asked and does not answer: what its stream and its figures say is
  // of no matter then.
  bool Unreachable();
  void SelfContradictions();
  void Silence();
  void Masked();
  bool HeardNothing();
  bool HeardUseless();
  void SilenceInStream();

  // ---- Mix-up ----
  void RankMixedUp();
  void WorkerMixedUp();

  // ---- Blind ----
  void BlindInPart();
  bool BlindInNamespaces();
  bool BlindInChats();
  void Blind();
  bool SupposedRight(const Among& among);
  void NameSupposition(const Hit& hit);
  bool RegisteredNamespace();
  bool OtherGranularity();
  std::string BlindText() const;

  // ---- Text ----
  void NameText(const Lengths& lengths, bool chats_alone, Evidence evidence,
                const Decisions& decisions);
  void NameBos(const Lengths& lengths, Evidence evidence, const Decisions& decisions);
  void Diverging();
  // Most prompts as routed begin with the same token twice.
  bool BeginTwice() const;
  bool TokensAreTheEngines() const;

  // ---- Prompt ----
  void PromptDiffers();
  // `wrong` and `right`: requests that show it, and that do not. False: nothing that they have in
  // common tells them apart.
  bool DiffersByTrait(const Comparisons& wrong, const Comparisons& right, Evidence evidence);
  bool BrokenByTrait();
  Checks Parted() const;
  // How many of these were served less than promised, or with another length.
  size_t TellingOf(const Checks& parted) const;
  std::string FirstDifference(const Checks& parted) const;
  std::string TokensText() const;

  // ---- Served ----
  void NothingServed();
  void TooLittleServed();
  bool IsThereAgain(const Comparison& comparison) const;
  bool Restarted();
  void Unexplained();

  const WorkerEvidence& e_;
  const std::optional<LeafView>& leaf_;
  const Sight sight_;
  std::vector<Finding> findings_;
  bool waits_ = false;  // more is to come before anything can be said
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_DIAGNOSTICIAN_H_
