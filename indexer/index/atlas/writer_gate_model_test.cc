// All interleavings of small programs over the gate, at its atomic operations, in the order of one memory (no reordering: the
// fences are argued for in `writer_gate_slow.h`).
//
// A state is what the atomics hold, which stay each thread is at, and what it has read in it so far, which says where it is. A step runs one thread's stay
// from its start: operations it did before return what they returned then, one more is done, and the rest waits. Loads of what
// only the thread itself writes are no steps, since nothing depends on when they happen. States that were seen before are not
// gone on from.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"
#include "indexer/index/atlas/writer_gate_slow.h"
#include "indexer/index/random_trie.h"

namespace kvatlas::atlas {
namespace {

constexpr size_t kWordsMax = 24;
constexpr size_t kThreadsMax = 3;
// A thread that waits longer is not followed any further; others are.
constexpr int kSpinsMax = 1;

struct OutOfSteps {};
struct TooLong {};

struct Thread {
  size_t stay = 0;
  std::vector<uint64_t> read;  // by the operations of this stay, in order
  uint64_t hash = 0;           // of `read`
  bool ended = false;
  int inside = 0;  // 1: among others; 2: alone
};

struct State {
  std::array<uint64_t, kWordsMax> words = {};
  std::array<Thread, kThreadsMax> threads;
};

// What runs now.
struct Step {
  State* state = nullptr;
  Thread* thread = nullptr;
  size_t number = 0;
  size_t threads = 0;
  size_t words = 0;  // atomics made so far
  size_t done = 0;   // operations of before that returned again
  bool stepped = false;
  size_t loaded = kWordsMax;  // by the step
  int spins = 0;
};
Step* step = nullptr;

// Does `operate` on the memory if it is this step's turn, or is no step.
template <typename Operate>
uint64_t Do(Operate operate, bool is_step = true) {
  std::vector<uint64_t>& read = step->thread->read;
  if (step->done < read.size()) return read[step->done++];
  if (is_step && std::exchange(step->stepped, true)) throw OutOfSteps();
  const uint64_t value = operate();
  read.push_back(value);
  ++step->done;
  step->thread->hash = MixBits(step->thread->hash ^ value) + read.size();
  return value;
}

template <typename T>
class ModelAtomic {
 public:
  explicit ModelAtomic(T) : at_(step->words++) {}  // memory begins with zeros
  T load(std::memory_order) const {
    return static_cast<T>(Do([&] { return step->loaded = at_, word(); }, !is_own()));
  }
  void store(T value, std::memory_order) {
    Do([&] { return word() = value, uint64_t{0}; });
  }
  T fetch_add(T by, std::memory_order) {
    return static_cast<T>(Do([&] { return std::exchange(word(), static_cast<T>(word() + by)); }));
  }
  T fetch_sub(T by, std::memory_order order) { return fetch_add(static_cast<T>(-by), order); }
  bool compare_exchange_strong(T& expected, T value, std::memory_order) {
    const T found = static_cast<T>(Do([&] {
      const uint64_t before = word();
      if (before == expected) word() = value;
      return before;
    }));
    if (found == expected) return true;
    expected = found;
    return false;
  }

 private:
  uint64_t& word() const { return step->state->words[at_]; }
  // The first word is the owner, then each thread has three of its own; the last three are of threads that are not there.
  bool is_own() const {
    return at_ > 0 && ((at_ - 1) / 3 == step->number || (at_ - 1) / 3 >= step->threads);
  }

  const size_t at_;
};

template <uint64_t claim>
struct ModelMachine {
  template <typename T>
  using Atomic = ModelAtomic<T>;
  static void Fence() {}
  static void Pause() {}
  static void SpinWait(int) {
    if (++step->spins > kSpinsMax) throw TooLong();
  }
  static constexpr uint32_t kCounts = 4;
  static constexpr uint32_t kInARow = 2;
  static constexpr uint64_t kClaim = claim;
};

// How often each thread stays, one after the other, `l` for a stay that is not brief, `b` for one that is.
using Programs = std::vector<std::string>;

template <uint64_t claim>
class Model {
 public:
  explicit Model(Programs programs) : programs_(std::move(programs)) {}

  // Everything that can happen, or up to the first thing that must not.
  void Run() {
    std::vector<State> open = {State()};
    while (!open.empty() && wrong_.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      for (size_t t = 0; t < programs_.size() && wrong_.empty(); ++t) {
        if (state.threads[t].ended) continue;
        State next = state;
        Advance(&next, t);
        uint64_t hash = 0;
        for (const uint64_t word : next.words) hash = MixBits(hash ^ word) + 1;
        for (const Thread& thread : next.threads)
          hash = MixBits(hash ^ thread.hash) + (thread.stay << 20) + thread.read.size() * 2 +
                 thread.ended;
        if (seen_.insert(hash).second) open.push_back(std::move(next));
      }
    }
  }

  // One step of thread t.
  void Advance(State* state, size_t t) {
    Step now{
        .state = state, .thread = &state->threads[t], .number = t, .threads = programs_.size()};
    step = &now;
    try {
      BasicWriterGate<ModelMachine<claim>> gate;
      const auto who = static_cast<uint32_t>(t + 1);
      const bool brief = programs_[t][now.thread->stay] == 'b';
      gate.Announce(who);
      gate.Enter(who, brief);
      const bool alone = gate.alone();
      Do([&] { return Inside(state, t, alone ? 2 : 1), uint64_t{0}; });
      Do([&] { return Inside(state, t, 0), uint64_t{0}; });
      gate.Leave(who, brief);
      // Nothing of a stay is left but what is in memory.
      now.thread->ended = ++now.thread->stay == programs_[t].size();
      now.thread->read.clear();
      now.thread->hash = 0;
    } catch (const OutOfSteps&) {
    } catch (const TooLong&) {
      now.thread->ended = true;
    }
    last_loaded_ = now.loaded;
  }

  // The word that the last step loaded; none: it did something else.
  size_t last_loaded() const { return last_loaded_; }
  const std::string& wrong() const { return wrong_; }
  size_t states() const { return seen_.size(); }
  bool was_alone() const { return was_alone_; }

 private:
  void Inside(State* state, size_t t, int how) {
    state->threads[t].inside = how;
    int inside = 0, alone = 0;
    for (const Thread& thread : state->threads) {
      inside += thread.inside != 0;
      alone += thread.inside == 2;
    }
    was_alone_ = was_alone_ || alone != 0;
    if (alone > 0 && inside > 1 && wrong_.empty()) {
      wrong_ = "one is alone and another is inside, after";
      for (const Thread& thread : state->threads)
        wrong_ += ' ' + std::to_string(thread.stay) + '/' + std::to_string(thread.read.size());
      wrong_ += " stays/operations";
    }
  }

  const Programs programs_;
  absl::flat_hash_set<uint64_t> seen_;
  std::string wrong_;
  bool was_alone_ = false;
  size_t last_loaded_ = kWordsMax;
};

constexpr uint64_t kCounted = RealMachine::kClaim;

void ExpectRight(const Programs& programs) {
  std::string all;
  for (const std::string& program : programs) all += program + ' ';
  SCOPED_TRACE(all);
  Model<kCounted> model(programs);
  model.Run();
  EXPECT_EQ(model.wrong(), "");
  EXPECT_TRUE(model.was_alone()) << "else this shows nothing";
  std::printf("%-14s %9zu states\n", all.c_str(), model.states());
}

TEST(WriterGateModelTest, TwoWritersInAllInterleavings) {
  for (const Programs& programs : {Programs{"bbbb", "bb"}, {"bblbb", "b"}, {"bbbb", "l"}})
    ExpectRight(programs);
}

// Millions of states: half a minute each.
TEST(WriterGateModelTest, ThreeWritersInAllInterleavings) {
  if (std::getenv("KVATLAS_MODEL_ALL") == nullptr)
    GTEST_SKIP() << "bazel test -c opt //indexer/index/atlas:long_writer_gate_model_test";
  for (const Programs& programs : {Programs{"bbb", "b", "b"}, {"bbb", "l", "b"}})
    ExpectRight(programs);
}

// One looks whether the owner is inside, sleeps, and ends a later time alone of the same owner, who is inside.
template <uint64_t claim>
std::string EndedByOneWhoSlept() {
  Model<claim> model({"bbbbbbb", "b", "bb"});
  constexpr size_t kA = 0, kB = 1, kC = 2;
  State state;
  const auto run = [&](size_t t, const auto& until) {
    for (int steps = 0;
         steps < 1000 && !until() && !state.threads[t].ended && model.wrong().empty(); ++steps)
      model.Advance(&state, t);
    return until();
  };
  const auto stays = [&](size_t t, size_t count) {
    return run(t, [&, t, count] { return state.threads[t].stay == count; });
  };
  EXPECT_TRUE(stays(kA, 2)) << "is alone from now on";
  EXPECT_TRUE(run(kB, [&] { return model.last_loaded() == 1; })) << "looks at A's count";
  EXPECT_TRUE(stays(kC, 1)) << "ends A's time";
  EXPECT_TRUE(stays(kA, 6)) << "is alone once more";
  EXPECT_TRUE(run(kA, [&] { return state.threads[kA].inside == 2; }));
  run(kC, [&] { return (state.words[0] >> 30 & 1) != 0; });
  run(kB, [&] { return state.threads[kB].inside != 0; });
  return model.wrong();
}

TEST(WriterGateModelTest, ATimeAloneIsNotEndedByOneWhoSleptSinceAnEarlierOne) {
  EXPECT_EQ(EndedByOneWhoSlept<kCounted>(), "");
  EXPECT_NE(EndedByOneWhoSlept<0>(), "") << "without counted claims";
}

}  // namespace
}  // namespace kvatlas::atlas
