// Two questions in common parts. `AskOne` asks the replicas of one node, `AskAll` several nodes at
// once and waits for all. `TopQuestion` is the question to the top level; `AskTop` makes one for
// each reading of the prompt and merges them. Answers go to the model's memory (`Remember`) before
// the route sees them.

#include "frontend/router/cell_question.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "frontend/router/shard_plan.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

// The question to one node. The calls share it, since the finder reads its spans after `AskOne` has
// returned (the next replica is asked later).
struct Question {
  std::string name;  // of the node, or of the shard
  std::vector<std::string> addresses;
  std::vector<SequenceHash> waypoints;
  std::vector<Position> positions;
  const WaypointSchedule* schedule = nullptr;
  uint32_t blocks = 0;
  uint32_t best = 0;
};
using Questions = std::vector<std::shared_ptr<const Question>>;

// Nodes that are asked together. `outcomes` has a place per question, so answers need no order; the
// thread that brings `pending` to 0 calls `done`, once and without the lock. A replica's deadline
// bounds the wait.
struct Wave {
  Mutex mutex;
  std::vector<CellsOutcome> outcomes ABSL_GUARDED_BY(mutex);
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
  std::function<void(std::vector<CellsOutcome>)> done;
};

// A node that knows no cell is of no use, and may have just started: another replica may know some.
absl::Status CheckCells(const CellsAnswer& answer) {
  return answer.cells.empty() ? absl::NotFoundError("knows no cell") : absl::OkStatus();
}

// FAILED_PRECONDITION, a node with another schedule, is logged by the node's address and then
// treated as any failure.
void AskOne(const RequestPtr& request, const std::shared_ptr<const Question>& question, Time until,
            FirstAnswer<CellsAnswer>::Done done) {
  const FleetState& fleet = *request->fleet;
  FirstAnswer<CellsAnswer>::Start(
      {.addresses = question->addresses,
       .until = until,
       .hedge_after = fleet.options.hedge_after,
       .clock = fleet.clock,
       .timer = fleet.timer},
      [request, question](const std::string& address, Duration deadline,
                          FirstAnswer<CellsAnswer>::Reply reply) {
        request->fleet->cell_finder->FindCells(
            address,
            {.domain = &request->domain(),
             .waypoints = question->waypoints,
             .blocks = question->blocks,
             .best = question->best,
             .schedule = question->schedule,
             .positions = question->positions,
             .trace = request->input->trace,
             .frontend = request->fleet->Asker()},
            deadline,
            [request, address, reply = std::move(reply)](absl::StatusOr<CellsAnswer> answer) {
              if (absl::IsFailedPrecondition(answer.status()))
                request->fleet->OnRefused(address, answer.status());
              reply(std::move(answer));
            });
      },
      CheckCells, std::move(done));
}

void AskAll(const RequestPtr& request, const Questions& questions, Duration budget,
            std::function<void(std::vector<CellsOutcome>)> done) {
  auto wave = std::make_shared<Wave>();
  wave->done = std::move(done);
  {
    MutexLock lock(&wave->mutex);
    wave->outcomes.resize(questions.size());
    wave->pending = questions.size();
  }
  const Time until = request->Now() + budget;
  for (size_t i = 0; i < questions.size(); ++i) {
    AskOne(request, questions[i], until, [wave, i](CellsOutcome outcome) {
      std::vector<CellsOutcome> outcomes;
      {
        MutexLock lock(&wave->mutex);
        wave->outcomes[i] = std::move(outcome);
        if (--wave->pending > 0) return;
        outcomes.swap(wave->outcomes);
      }
      wave->done(std::move(outcomes));
    });
  }
}

// The known readings of the prompt; the first one in any case, so that a prompt without blocks is
// asked about too.
std::vector<PreparedPrompt::Ptr> PromptsOf(const RouteRequest& request) {
  std::vector<PreparedPrompt::Ptr> prompts = {request.prompt};
  for (size_t i = 1; i < request.readings_count(); ++i)
    if (request.readings->known(i)) prompts.push_back(request.readings->prompt(i));
  return prompts;
}

// Answers about several readings as one: of each cell the most, since a cell is worth asking if it
// covers any of them. Load, labels and address are those of the first answer that named the cell.
CellsAnswer MergeReadings(std::vector<CellsAnswer> answers) {
  CellsAnswer merged = std::move(answers[0]);
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < merged.cells.size(); ++i) places.emplace(merged.cells[i].cell, i);
  for (size_t of = 1; of < answers.size(); ++of) {
    for (CellFound& found : answers[of].cells) {
      const auto [place, is_new] = places.try_emplace(found.cell, merged.cells.size());
      if (is_new) {
        merged.cells.push_back(std::move(found));
        continue;
      }
      CellFound& cell = merged.cells[place->second];
      cell.blocks_at_least = std::max(cell.blocks_at_least, found.blocks_at_least);
      cell.blocks_below = std::max(cell.blocks_below, found.blocks_below);
    }
  }
  return merged;
}

// Leaves go to `FleetMemory`, nodes and what is below `by` to `KnownNodes`.
void Remember(const RouteRequest& request, const std::vector<CellFound>& cells,
              const std::string& by) {
  std::vector<CellFound> leaves;
  std::copy_if(cells.begin(), cells.end(), std::back_inserter(leaves),
               [](const CellFound& cell) { return !cell.is_node; });
  const std::shared_ptr<ModelFleet> model = request.KnownModel();
  MutexLock lock(&model->mutex);
  model->memory.SawCells(request.domain(), leaves, request.Now());
  model->nodes.Saw(request.domain(), cells, by, request.Now());
}

// ---- The top ----

// One question to the top level about one reading:
//   1. `ShardsThatMatter`: the shards that own the prompt's deepest waypoints; the whole level if
//      it is not split.
//   2. `Take` merges their answers. One shard that answered is enough: the bounds are coarser then,
//      never wrong.
//   3. None answered: `AskOthers` asks the remaining shards, as replicas of the shallow waypoints
//      that all of them know.
//   4. `Done`.
// The steps follow one another, so the members need no lock. The map is taken once, so a change
// does not mix two maps.
class TopQuestion : public std::enable_shared_from_this<TopQuestion> {
 public:
  TopQuestion(RequestPtr request, PreparedPrompt::Ptr prompt, uint32_t best,
              std::function<void(TopAnswer)> done)
      : request_(std::move(request)),
        prompt_(std::move(prompt)),
        top_(request_->fleet->hierarchies.Get()),
        best_(best),
        done_(std::move(done)),
        began_(request_->Now()) {}

  void Ask(Duration budget) {
    Ask(ShardsThatMatter(), budget, [self = shared_from_this()](auto outcomes) {
      if (!self->Take(std::move(outcomes)) && self->AskOthers()) return;
      self->Done();
    });
  }

 private:
  // A split level may keep a part of the leaves' waypoints; it is then asked by its own schedule.
  bool own_schedule() const {
    return top_->split() && request_->options().hierarchy_schedule != nullptr;
  }
  const WaypointSchedule& schedule() const {
    return own_schedule() ? *request_->options().hierarchy_schedule : *request_->options().schedule;
  }
  std::vector<SequenceHash> Waypoints() const {
    return own_schedule() && !prompt_->cache_not_read() ? schedule().Select(prompt_->sequence())
                                                        : prompt_->waypoints();
  }

  Questions ShardsThatMatter() const {
    Questions questions;
    for (ShardQuestion& question :
         PlanShards(*top_, schedule(), Waypoints(), PromptKey(prompt_->sequence()),
                    std::max<uint32_t>(request_->options().ask_shards, 1))) {
      const ShardMap::Shard& shard = top_->shards()[question.shard];
      questions.push_back(ToQuestion(std::move(question), shard));
    }
    return questions;
  }

  // The replica that answered last comes first, the others in their order behind it.
  std::shared_ptr<const Question> ToQuestion(ShardQuestion of, const ShardMap::Shard& shard) const {
    auto question = std::make_shared<Question>(Question{.name = shard.name,
                                                        .addresses = shard.addresses,
                                                        .waypoints = std::move(of.waypoints),
                                                        .positions = std::move(of.positions),
                                                        .schedule = &schedule(),
                                                        .blocks = prompt_->blocks(),
                                                        .best = best_});
    std::vector<std::string>& addresses = question->addresses;
    const auto first = std::find(addresses.begin(), addresses.end(),
                                 request_->fleet->PreferredReplica(shard.name));
    if (first != addresses.end()) std::rotate(addresses.begin(), first, addresses.end());
    return question;
  }

  void Ask(Questions questions, Duration budget,
           std::function<void(std::vector<CellsOutcome>)> done) {
    asked_ = std::move(questions);
    AskAll(request_, Questions(asked_), budget, std::move(done));
  }

  // Takes the answers in, failures into the receipt. False: none of them answered. Only the
  // positions of each question are needed for the merge.
  bool Take(std::vector<CellsOutcome> outcomes) {
    std::vector<ShardQuestion> asked(asked_.size());
    std::vector<ShardAnswer> answers;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      asked[i].positions = asked_[i]->positions;
      if (!outcomes[i].answer.ok()) {
        answer_.failures.push_back(std::move(outcomes[i]));
        continue;
      }
      request_->fleet->Prefer(asked_[i]->name, outcomes[i].address);
      answers.push_back({.question = &asked[i], .answer = *std::move(outcomes[i].answer)});
    }
    if (answers.empty()) return false;
    answer_.answer = MergeAnswers(std::move(answers));
    Remember(*request_, answer_.answer->cells, /*by=*/"");
    return true;
  }

  // Asks the shards that were not asked, as replicas of one that has the shallow waypoints. False:
  // there are no others, or no time.
  bool AskOthers() {
    const Duration budget = Share(request_->Left(), kHierarchyShare);
    if (!top_->split() || budget < kHopMin) return false;
    ShardMap::Shard others;
    for (const ShardMap::Shard& shard : top_->shards()) {
      const bool asked = std::any_of(asked_.begin(), asked_.end(), [&](const auto& question) {
        return question->name == shard.name;
      });
      if (!asked)
        others.addresses.insert(others.addresses.end(), shard.addresses.begin(),
                                shard.addresses.end());
    }
    if (others.addresses.empty()) return false;
    const ShardQuestion shallow = ShallowQuestion(*top_, schedule(), Waypoints(), /*shard=*/0);
    Ask({ToQuestion(shallow, others)}, budget, [self = shared_from_this()](auto outcomes) {
      self->Take(std::move(outcomes));
      self->Done();
    });
    return true;
  }

  void Done() {
    answer_.us = Microseconds(request_->Now() - began_);
    std::exchange(done_, nullptr)(std::move(answer_));
  }

  const RequestPtr request_;
  const PreparedPrompt::Ptr prompt_;
  const std::shared_ptr<const ShardMap> top_;
  const uint32_t best_;
  std::function<void(TopAnswer)> done_;
  const Time began_;
  Questions asked_;
  TopAnswer answer_;
};

// The answers about all readings; the last one that comes merges them and goes on.
struct TopAnswers {
  Mutex mutex;
  std::vector<TopAnswer> answers ABSL_GUARDED_BY(mutex);
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
};

// The outcomes of each node, which was asked about `readings` readings in turn, as one. A node has
// answered if it did about any reading.
std::vector<CellsOutcome> MergeReadings(size_t readings, std::vector<CellsOutcome> outcomes) {
  std::vector<CellsOutcome> merged;
  for (size_t first = 0; first < outcomes.size(); first += readings) {
    std::vector<CellsAnswer> answers;
    merged.push_back(std::move(outcomes[first]));
    for (size_t i = first; i < first + readings; ++i) {
      CellsOutcome& outcome = i == first ? merged.back() : outcomes[i];
      if (!outcome.answer.ok()) continue;
      answers.push_back(*std::move(outcome.answer));
      merged.back().address = outcome.address;
    }
    if (!answers.empty()) merged.back().answer = MergeReadings(std::move(answers));
  }
  return merged;
}

TopAnswer MergeReadings(std::vector<TopAnswer> tops) {
  TopAnswer merged;
  std::vector<CellsAnswer> answers;
  for (TopAnswer& top : tops) {
    merged.us = std::max(merged.us, top.us);
    std::move(top.failures.begin(), top.failures.end(), std::back_inserter(merged.failures));
    if (top.answer.has_value()) answers.push_back(*std::move(top.answer));
  }
  if (!answers.empty()) merged.answer = MergeReadings(std::move(answers));
  return merged;
}

}  // namespace

void AskTop(const RequestPtr& request, uint32_t best, Duration budget,
            std::function<void(TopAnswer)> done) {
  if (request->readings == nullptr)
    return std::make_shared<TopQuestion>(request, request->prompt, best, std::move(done))
        ->Ask(budget);
  const std::vector<PreparedPrompt::Ptr> prompts = PromptsOf(*request);
  auto tops = std::make_shared<TopAnswers>();
  {
    MutexLock lock(&tops->mutex);
    tops->answers.resize(prompts.size());
    tops->pending = prompts.size();
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto on_answer = [tops, i, done](TopAnswer top) {
      std::vector<TopAnswer> answers;
      {
        MutexLock lock(&tops->mutex);
        tops->answers[i] = std::move(top);
        if (--tops->pending > 0) return;
        answers.swap(tops->answers);
      }
      done(MergeReadings(std::move(answers)));
    };
    std::make_shared<TopQuestion>(request, prompts[i], best, on_answer)->Ask(budget);
  }
}

// A question per node and reading, ordered by node; nodes below the top are never split and take
// the leaves' schedule.
void AskNodes(const RequestPtr& request, const std::vector<Target>& nodes, uint32_t best,
              Duration budget, std::function<void(std::vector<CellsOutcome>)> done) {
  Questions questions;
  std::vector<std::string> names;
  const std::vector<PreparedPrompt::Ptr> prompts = PromptsOf(*request);
  for (const Target& node : nodes) {
    names.push_back(node.asked.cell);
    for (const PreparedPrompt::Ptr& prompt : prompts)
      questions.push_back(
          std::make_shared<const Question>(Question{.name = node.asked.cell,
                                                    .addresses = node.Addresses(),
                                                    .waypoints = prompt->waypoints(),
                                                    .positions = {},
                                                    .schedule = request->options().schedule,
                                                    .blocks = prompt->blocks(),
                                                    .best = best}));
  }
  AskAll(request, questions, budget,
         [request, names = std::move(names), readings = prompts.size(),
          done = std::move(done)](std::vector<CellsOutcome> outcomes) {
           if (readings > 1) outcomes = MergeReadings(readings, std::move(outcomes));
           for (size_t i = 0; i < outcomes.size(); ++i) {
             if (outcomes[i].answer.ok()) Remember(*request, outcomes[i].answer->cells, names[i]);
           }
           done(std::move(outcomes));
         });
}

}  // namespace kvatlas
