#include "frontend/route/cell_question.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "frontend/route/shard_plan.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

// What one node is asked; shared with the calls.
struct Question {
  std::string name;  // of the node, or of the shard
  std::vector<std::string> addresses;
  std::vector<SequenceHash> waypoints;
  std::vector<Position> positions;
  const WaypointSchedule* schedule = nullptr;
  uint32_t best = 0;
};
using Questions = std::vector<std::shared_ptr<const Question>>;

// Nodes that are asked together; the last answer goes on.
struct Wave {
  Mutex mutex;
  std::vector<CellsOutcome> outcomes ABSL_GUARDED_BY(mutex);
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
  std::function<void(std::vector<CellsOutcome>)> done;
};

absl::Status CheckCells(const CellsAnswer& answer) {
  return answer.cells.empty() ? absl::NotFoundError("knows no cell") : absl::OkStatus();
}

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
             .blocks = request->prompt->blocks(),
             .best = question->best,
             .schedule = question->schedule,
             .positions = question->positions,
             .trace = request->input->trace},
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

class TopQuestion : public std::enable_shared_from_this<TopQuestion> {
 public:
  TopQuestion(RequestPtr request, uint32_t best, std::function<void(TopAnswer)> done)
      : request_(std::move(request)),
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
  bool own_schedule() const {
    return top_->split() && request_->options().hierarchy_schedule != nullptr;
  }
  const WaypointSchedule& schedule() const {
    return own_schedule() ? *request_->options().hierarchy_schedule : *request_->options().schedule;
  }
  std::vector<SequenceHash> Waypoints() const {
    const PreparedPrompt& prompt = *request_->prompt;
    return own_schedule() && !prompt.cache_not_read() ? schedule().Select(prompt.sequence())
                                                      : prompt.waypoints();
  }

  Questions ShardsThatMatter() const {
    Questions questions;
    for (ShardQuestion& question :
         PlanShards(*top_, schedule(), Waypoints(), PromptKey(request_->prompt->sequence()),
                    std::max<uint32_t>(request_->options().ask_shards, 1))) {
      const ShardMap::Shard& shard = top_->shards()[question.shard];
      questions.push_back(ToQuestion(std::move(question), shard));
    }
    return questions;
  }

  std::shared_ptr<const Question> ToQuestion(ShardQuestion of, const ShardMap::Shard& shard) const {
    auto question = std::make_shared<Question>(Question{.name = shard.name,
                                                        .addresses = shard.addresses,
                                                        .waypoints = std::move(of.waypoints),
                                                        .positions = std::move(of.positions),
                                                        .schedule = &schedule(),
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

  // False: none of them answered.
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

  // As replicas of what all shards have. False: there are no others, or no time.
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
  const std::shared_ptr<const ShardMap> top_;
  const uint32_t best_;
  std::function<void(TopAnswer)> done_;
  const Time began_;
  Questions asked_;
  TopAnswer answer_;
};

}  // namespace

void AskTop(const RequestPtr& request, uint32_t best, Duration budget,
            std::function<void(TopAnswer)> done) {
  std::make_shared<TopQuestion>(request, best, std::move(done))->Ask(budget);
}

void AskNodes(const RequestPtr& request, const std::vector<Target>& nodes, uint32_t best,
              Duration budget, std::function<void(std::vector<CellsOutcome>)> done) {
  Questions questions;
  std::vector<std::string> names;
  for (const Target& node : nodes) {
    names.push_back(node.asked.cell);
    questions.push_back(
        std::make_shared<const Question>(Question{.name = node.asked.cell,
                                                  .addresses = node.Addresses(),
                                                  .waypoints = request->prompt->waypoints(),
                                                  .positions = {},
                                                  .schedule = request->options().schedule,
                                                  .best = best}));
  }
  AskAll(request, questions, budget,
         [request, names = std::move(names),
          done = std::move(done)](std::vector<CellsOutcome> outcomes) {
           for (size_t i = 0; i < outcomes.size(); ++i) {
             if (outcomes[i].answer.ok()) Remember(*request, outcomes[i].answer->cells, names[i]);
           }
           done(std::move(outcomes));
         });
}

}  // namespace kvatlas
