// long_simulation: rounds of `long_simulation.h` until so many events have happened. Ends with 1
// when anything was wrong.

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/log.h"
#include "tests/long_simulation.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

struct Options {
  uint64_t events = 1'000'000'000;
  uint64_t seed = 1;
  uint64_t round = 0;  // this one alone; 0: all
  uint64_t round_events = 2'000'000;
  uint32_t threads = 0;
  std::string state;
};

// The seed of a round.
uint64_t SeedOf(const Options& options, uint64_t round) { return options.seed * 1'000'003 + round; }

// What the rounds from 1 on have found. A file of one line, so that a run can go on where it was
// ended.
struct Progress {
  uint64_t rounds = 0;
  RoundResult total;
};

// Numbers of the file, in order, behind the options that it is of.
template <typename Visit>
void ForEachNumber(Progress* progress, Visit visit) {
  visit(&progress->rounds);
  for (uint64_t* number : progress->total.Counts()) visit(number);
}

// False: the file is of a run with other options. A file that is not there is the start of a run.
bool Load(const Options& options, Progress* progress) {
  std::ifstream file(options.state);
  if (options.state.empty() || !file) return true;
  uint64_t seed = 0, round_events = 0;
  file >> seed >> round_events;
  ForEachNumber(progress, [&](uint64_t* number) { file >> *number; });
  return file && seed == options.seed && round_events == options.round_events;
}

void Save(const Options& options, Progress progress) {
  if (options.state.empty()) return;
  const std::string next = options.state + ".next";
  {
    std::ofstream file(next);
    file << options.seed << ' ' << options.round_events;
    ForEachNumber(&progress, [&](const uint64_t* number) { file << ' ' << *number; });
    file << '\n';
  }
  std::rename(next.c_str(), options.state.c_str());
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options) {}

  // False: the state is of another run.
  bool Start() {
    MutexLock lock(&mutex_);
    if (!Load(options_, &progress_)) return false;
    next_ = progress_.rounds + 1;
    return true;
  }

  // Rounds, one after the other, until there are enough events or something is wrong.
  void Work() {
    for (;;) {
      uint64_t round = 0;
      {
        MutexLock lock(&mutex_);
        // What is under way counts as if it were done.
        const uint64_t begun = next_ - 1 - progress_.rounds;
        if (wrong_ != 0 ||
            progress_.total.events + begun * options_.round_events >= options_.events)
          return;
        round = next_++;
      }
      const RoundResult result =
          RunRound({.seed = SeedOf(options_, round), .events = options_.round_events});
      MutexLock lock(&mutex_);
      done_.emplace(round, result);
      if (!result.ok() && (wrong_ == 0 || round < wrong_)) wrong_ = round;
      for (auto first = done_.begin(); first != done_.end() && first->first == progress_.rounds + 1;
           first = done_.erase(first)) {
        progress_.rounds = first->first;
        progress_.total += first->second;
        if (progress_.total.ok()) Save(options_, progress_);
      }
    }
  }

  Progress progress() {
    MutexLock lock(&mutex_);
    return progress_;
  }
  uint64_t wrong() {
    MutexLock lock(&mutex_);
    return wrong_;
  }

 private:
  const Options options_;
  Mutex mutex_;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, RoundResult> done_
      ABSL_GUARDED_BY(mutex_);  // while one before them is under way
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t wrong_ ABSL_GUARDED_BY(mutex_) = 0;  // the first round that was; 0: none
};

void Print(const RoundResult& total, uint64_t rounds) {
  const auto line = [](const char* what, uint64_t number) {
    std::printf("  %-34s %16s\n", what, Grouped(number).c_str());
  };
  line("rounds", rounds);
  line("events", total.events);
  line("engines, leaves, nodes killed", total.kills);
  line("clocks that jumped", total.clock_jumps);
  line("messages lost", total.messages_lost);
  line("batches dropped by full windows", total.batches_dropped);
  line("snapshots sent", total.snapshots);
  line("blocks and waypoints compared", total.compared);
  line("over at rest", total.over);
  line("under at rest", total.under);
  if (!total.error.empty()) std::printf("  %s\n", total.error.c_str());
}

int Main(int argc, char** argv) {
  Options options;
  FlagSet flags(
      "long_simulation",
      "Engines, leaves and a hierarchy in simulated time, with everything that can go wrong: "
      "does each know what engines have?");
  flags.Add("events", &options.events, "blocks stored or removed, at least", uint64_t{1});
  flags.Add("seed", &options.seed, "of the run");
  flags.Add("round", &options.round, "only this round of it, as a failure names it");
  flags.Add("round_events", &options.round_events, "of one round", uint64_t{1000});
  flags.Add("threads", &options.threads, "rounds at a time; 0: one per core", 0u, 1024u);
  flags.Add("state", &options.state, "file to go on from, and to write after every round");
  flags.ParseOrExit(argc, argv);
  ConfigureLog({.component = "long_simulation", .level_min = LogLevel::kError});
  if (options.round != 0) {
    const RoundResult result =
        RunRound({.seed = SeedOf(options, options.round), .events = options.round_events});
    Print(result, 1);
    return result.ok() ? 0 : 1;
  }
  Run run(options);
  if (!run.Start()) {
    std::fprintf(stderr,
                 "long_simulation: %s is of a run with another seed or --round_events, or damaged; "
                 "give its --seed and --round_events, or another file\n",
                 options.state.c_str());
    return 2;
  }
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  absl::BlockingCounter working(static_cast<int>(options.threads));
  absl::Notification over;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.threads; ++i)
    threads.emplace_back([&] {
      run.Work();
      working.DecrementCount();
    });
  threads.emplace_back([&] {
    working.Wait();
    over.Notify();
  });
  const Time start = Clock::Real().Now();
  const uint64_t before = run.progress().total.events;
  while (!over.WaitForNotificationWithTimeout(absl::Seconds(5))) {
    const Progress now = run.progress();
    const double seconds = std::chrono::duration<double>(Clock::Real().Now() - start).count();
    const double per_s = static_cast<double>(now.total.events - before) / seconds;
    const double left =
        static_cast<double>(options.events - std::min(options.events, now.total.events));
    std::fprintf(
        stderr, "%5.1f %%  %15s events  %5" PRIu64 " rounds  %6.0f k/s  %s\n",
        100 - 100 * left / static_cast<double>(options.events), Grouped(now.total.events).c_str(),
        now.rounds, per_s / 1000,
        per_s == 0 ? "" : absl::StrCat(static_cast<int64_t>(left / per_s), " s left").c_str());
  }
  for (std::thread& thread : threads) thread.join();
  const Progress end = run.progress();
  Print(end.total, end.rounds);
  if (run.wrong() == 0) return 0;
  std::fprintf(stderr,
               "long_simulation: round %" PRIu64 " was wrong; run it alone: --seed=%" PRIu64
               " --round_events=%" PRIu64 " --round=%" PRIu64 "\n",
               run.wrong(), options.seed, options.round_events, run.wrong());
  return 1;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
