// How do the engines of one model read one prompt, where they do not all read it alike? A vLLM and
// an SGLang of the same model may turn the same chat into different tokens: each of them is asked
// by its own.
//
//   reading 0   the input's own tokens       ├── leaf asked ─▶ rows of the workers whose engines read it so ──╮
//   reading 1   `RouteInput::other_readings` ├── leaf asked ─▶ rows of the others                             ├─▶ one answer
//
// A reading that is not known has no blocks: its workers are candidates by load, nothing is
// promised of them, and for the cost the prompt is as long as the longest known reading.
// *Truth*: a worker's overlap is the leaf's answer to its own reading. *Threads*: immutable.
// *Cost*: a question to each leaf and hierarchy node for each known reading; a worker's url is
// parsed once for each answer. A prompt with one reading has no object of this kind.

#ifndef KVATLAS_FRONTEND_ROUTER_READINGS_H_
#define KVATLAS_FRONTEND_ROUTER_READINGS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/router/fleet.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/prepared_prompt.h"

namespace kvatlas {

class Readings {
 public:
  using Ptr = std::shared_ptr<const Readings>;

  // Null: there is one. `others`: of `input.other_readings`, in their order.
  static Ptr Of(std::shared_ptr<const RouteInput> input, PreparedPrompt::Ptr prompt,
                std::vector<PreparedPrompt::Ptr> others,
                std::shared_ptr<const std::map<std::string, std::string>> engines);

  size_t size() const { return prompts_.size(); }
  const PreparedPrompt::Ptr& prompt(size_t reading) const { return prompts_[reading]; }
  std::vector<PreparedPrompt::Ptr> others() const { return {prompts_.begin() + 1, prompts_.end()}; }
  bool known(size_t reading) const { return prompts_[reading]->blocks() > 0; }
  // Blocks of the prompt in this reading; of a reading that is not known, those of the longest.
  uint32_t blocks(size_t reading) const {
    return known(reading) ? prompts_[reading]->blocks() : longest_;
  }
  // The known one with the fewest blocks; where none is known, reading 0.
  const PreparedPrompt& shortest() const { return *prompts_[shortest_]; }
  const std::string& name(size_t reading) const;
  // `labels`: the worker's; null: none.
  size_t OfWorker(const Labels* labels, const HolderId& worker) const;

  // The leaf's answers to all known readings, as one: of each worker what it holds of its own.
  static void FindOverlaps(const Ptr& readings, OverlapFinder* finder,
                           const std::string& leaf_address, const OverlapQuestion& question,
                           Duration deadline, OverlapFinder::Callback callback);

 private:
  Readings() = default;
  WorkersAnswer Merge(std::vector<WorkersAnswer> answers) const;

  std::shared_ptr<const RouteInput> input_;
  std::vector<PreparedPrompt::Ptr> prompts_;
  std::shared_ptr<const std::map<std::string, std::string>> engines_;
  uint32_t longest_ = 0;
  size_t shortest_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_READINGS_H_
