// Merges the records of several sources. A source reports on its own thread (or from within its
// `Start`) into `State::OnReport`, which tells the owner if the merged set became another.
// Locks: `telling` is held while `on_change` runs, so that its calls come one at a time and in the
// order of the reports; it is taken before `mutex`, which is never held across a call out.

#include "indexer/discovery/directory.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/discovery/directory_source.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {
namespace {

// The order of `DirectoryView::records`: by id, then address.
bool InOrder(const ServiceRecord& a, const ServiceRecord& b) {
  return std::tie(a.name, a.replica, a.grpc) < std::tie(b.name, b.replica, b.grpc);
}

// Changes of load are no change of the set; `View` has the new loads nevertheless.
bool SameSet(const std::vector<ServiceRecord>& a, const std::vector<ServiceRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameButLoad);
}

}  // namespace

struct Directory::State {
  struct Source {
    std::string entry;
    std::unique_ptr<DirectorySource> source;
    std::vector<ServiceRecord> records;
    std::optional<Time> heard;  // the last report that was no failure
    absl::Status status;
    bool asked = false;                                // it has reported once, records or failure
    std::unique_ptr<ConnectionWatch> watch = nullptr;  // null: a fixed entry
  };

  // 1. The source's entry: a failure leaves its records as they were.
  // 2. The sources are merged anew; `changed` looks at the set without loads.
  // 3. `on_change`, outside of `mutex`. Before `Open` has told the first set (`open`) changes are
  //    only kept.
  // `telling` is held from before the merge, so a later report cannot overtake this one on its way
  // to `on_change`.
  void OnReport(size_t index, absl::StatusOr<std::vector<ServiceRecord>> report)
      ABSL_LOCKS_EXCLUDED(telling, mutex) {
    MutexLock tell(&telling);
    std::optional<std::vector<ServiceRecord>> now;
    {
      MutexLock lock(&mutex);
      Source& source = sources[index];
      source.asked = true;
      source.status = report.status();
      if (source.watch != nullptr) {
        source.watch->Set(report.ok() || absl::IsUnavailable(source.status)
                              ? source.status
                              : absl::UnavailableError(source.status.ToString()));
      }
      if (report.ok()) {
        source.records = *std::move(report);
        source.heard = options.clock->Now();
      }
      std::vector<ServiceRecord> merged = Merged();
      const bool changed = !SameSet(merged, records);
      records = std::move(merged);
      if (changed && open) now = records;
      some_asked.SignalAll();
    }
    if (now.has_value()) on_change(*now);
  }

  // All sources' records in order, each address once: of several records of an address one with a
  // name is kept, else that of the first source. At most `kDirectoryRecordsMax`; the last in order
  // are left out and counted.
  std::vector<ServiceRecord> Merged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::vector<ServiceRecord> merged;
    for (const Source& source : sources)
      merged.insert(merged.end(), source.records.begin(), source.records.end());
    std::stable_sort(merged.begin(), merged.end(),
                     [](const ServiceRecord& a, const ServiceRecord& b) {
                       return std::make_tuple(std::string_view(a.grpc), a.name.empty()) <
                              std::make_tuple(std::string_view(b.grpc), b.name.empty());
                     });
    merged.erase(std::unique(merged.begin(), merged.end(),
                             [](const ServiceRecord& a, const ServiceRecord& b) {
                               return a.grpc == b.grpc;
                             }),
                 merged.end());
    std::sort(merged.begin(), merged.end(), InOrder);
    left_out = merged.size() > kDirectoryRecordsMax ? merged.size() - kDirectoryRecordsMax : 0;
    merged.resize(merged.size() - left_out);
    return merged;
  }

  // Until each source has reported, a failure included, or `first_answer` has passed.
  void WaitForFirstAnswers() ABSL_LOCKS_EXCLUDED(mutex) {
    const Time until = Clock::Real().Now() + options.first_answer;
    MutexLock lock(&mutex);
    const auto all_asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return std::all_of(sources.begin(), sources.end(), [](const Source& s) { return s.asked; });
    };
    while (!all_asked()) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration::zero() || !some_asked.WaitFor(&mutex, left)) break;
    }
  }

  DirectoryOptions options;
  OnChange on_change;
  Mutex telling;  // held while `on_change` runs; before `mutex`
  mutable Mutex mutex;
  CondVar some_asked;
  std::vector<Source> sources ABSL_GUARDED_BY(mutex);
  std::vector<ServiceRecord> records ABSL_GUARDED_BY(mutex);
  size_t left_out ABSL_GUARDED_BY(mutex) = 0;
  bool open ABSL_GUARDED_BY(mutex) = false;
};

// 1. All entries are parsed before any source starts: an error has no side effects.
// 2. Sources start; fixed ones report at once.
// 3. `WaitForFirstAnswers`, then the first call of `on_change`, whatever is known by then.
//    `telling` is taken before `open` is set, so that no report is told before the first set.
absl::StatusOr<std::unique_ptr<Directory>> Directory::Open(DirectoryOptions options,
                                                           OnChange on_change) {
  auto state = std::make_unique<State>();
  std::vector<DirectorySource*> started;
  {
    MutexLock lock(&state->mutex);
    for (const std::string& entry : options.entries) {
      auto source = MakeDirectorySource(entry, options);
      if (!source.ok()) return source.status();
      started.push_back(source->get());
      state->sources.push_back({entry, *std::move(source), {}, std::nullopt, {}, false});
      if (IsPlaceToLook(entry)) {
        state->sources.back().watch = std::make_unique<ConnectionWatch>(
            "directory", WithoutPasswords(entry), std::vector<LogField>{}, options.clock);
      }
    }
  }
  state->options = std::move(options);
  state->on_change = std::move(on_change);
  State* const raw = state.get();
  std::unique_ptr<Directory> directory(new Directory(std::move(state)));
  for (size_t i = 0; i < started.size(); ++i) {
    started[i]->Start([raw, i](absl::StatusOr<std::vector<ServiceRecord>> report) {
      raw->OnReport(i, std::move(report));
    });
  }
  raw->WaitForFirstAnswers();
  MutexLock tell(&raw->telling);
  std::vector<ServiceRecord> first;
  {
    MutexLock lock(&raw->mutex);
    raw->open = true;
    first = raw->records;
  }
  raw->on_change(first);
  return directory;
}

Directory::Directory(std::unique_ptr<State> state) : state_(std::move(state)) {}

// Stopped without `mutex`: a source that is about to report needs it, and `Stop` waits for its
// thread.
Directory::~Directory() {
  std::vector<DirectorySource*> sources;
  {
    MutexLock lock(&state_->mutex);
    for (State::Source& source : state_->sources) sources.push_back(source.source.get());
  }
  for (DirectorySource* source : sources) source->Stop();
}

DirectoryView Directory::View() const {
  DirectoryView view;
  MutexLock lock(&state_->mutex);
  view.records = state_->records;
  for (const State::Source& source : state_->sources) {
    DirectorySourceView of;
    of.entry = source.entry;
    of.records = source.records.size();
    of.status = source.status;
    // The age counts only while the source fails: what it last named is then so old.
    of.age = source.heard.has_value() && !source.status.ok()
                 ? state_->options.clock->Now() - *source.heard
                 : Duration::zero();
    if (view.status.ok()) view.status = source.status;
    view.sources.push_back(std::move(of));
  }
  if (state_->left_out > 0 && view.status.ok()) {
    view.status = absl::ResourceExhaustedError(std::to_string(state_->left_out) +
                                               " services beyond the first 65536 are left out");
  }
  return view;
}

void Directory::Refresh() {
  std::vector<DirectorySource*> sources;
  {
    MutexLock lock(&state_->mutex);
    for (State::Source& source : state_->sources) sources.push_back(source.source.get());
  }
  for (DirectorySource* source : sources) source->Refresh();
}

}  // namespace kvatlas
