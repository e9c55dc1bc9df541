// Threads that resolve names and probe endpoints, so that lanes never wait for either. `due` is the
// schedule: an entry is in it while no thread works on it. The state is shared with the threads:
// one that hangs in the resolver outlives `ZmqNames` and touches nothing but this state.

#include "indexer/kv_events/zmq_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/endpoint_probe.h"

namespace kvatlas {
namespace {

// vLLM 0.33, distributed/kv_events.py, `_is_bind_endpoint`: the replay socket is bound always, the
// publisher's at some endpoints alone.
constexpr char kDialsOut[] =
    ", while its replay endpoint accepts connections; vLLM binds its events' endpoint only where "
    "it has a *, and connects to any other, 0.0.0.0 too: start it with \"endpoint\": "
    "\"tcp://*:PORT\" in --kv-events-config";

}  // namespace

// Shared by the threads: it lives until the last of them has left.
struct ZmqNames::State {
  State(const EngineAddresses& of, HostResolver with, Duration every)
      : addresses(of), resolve(std::move(with)), look_every(every) {}

  struct Entry {
    std::weak_ptr<ZmqStream> stream;
    std::function<void()> changed;
    uint32_t failures = 0;
    uint32_t looks = 0;
    uint32_t unreached = 0;  // probes in a row
    Time probe_at{0};
  };

  // The mutex is held but for `LookUp`, which may take seconds.
  static void Run(const std::shared_ptr<State>& state) {
    MutexLock lock(&state->mutex);
    while (!state->stopping) {
      if (std::optional<Entry> entry = state->WaitForOne(); entry.has_value()) {
        state->mutex.Unlock();
        const bool goes_on = state->LookUp(&*entry);
        state->mutex.Lock();
        if (goes_on) state->Requeue(*std::move(entry));
      }
    }
    --state->threads;
    state->left.SignalAll();
  }

  // The entry that is due; nothing: something else happened.
  std::optional<Entry> WaitForOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (due.empty()) {
      wake.Wait(&mutex);
      return std::nullopt;
    }
    if (const Duration wait = due.begin()->first - Clock::Real().Now(); wait > Duration::zero()) {
      wake.WaitFor(&mutex, wait);
      return std::nullopt;
    }
    Entry entry = std::move(due.begin()->second);
    due.erase(due.begin());
    return entry;
  }

  // Soon after the first look, since a connection takes a moment; then `look_every`, and longer
  // with each failure.
  void Requeue(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Duration wait =
        ++entry.looks == 1 ? std::min(kFirstLook, look_every) : Backoff(entry.failures);
    due.emplace(Clock::Real().Now() + wait, std::move(entry));
  }
  Duration Backoff(uint32_t failures) const {
    return std::min(look_every * (int64_t{1} << std::min(failures, 20u)),
                    std::max(look_every, kRetryMax));
  }

  // False: the stream is over, or this is.
  bool LookUp(Entry* entry) ABSL_LOCKS_EXCLUDED(mutex) {
    std::vector<std::string> names;
    {
      const std::shared_ptr<ZmqStream> stream = entry->stream.lock();
      if (stream == nullptr || stream->abandoned()) return false;
      names = stream->NamesWanted();
    }
    bool failed = false;
    for (const std::string& name : names) {
      absl::StatusOr<std::vector<std::string>> found = Resolve(name);
      failed = failed || !found.ok();
      {
        MutexLock lock(&mutex);
        if (stopping) return false;
      }
      const std::shared_ptr<ZmqStream> stream = entry->stream.lock();
      if (stream == nullptr) return false;
      if (stream->SetAddresses(name, found)) entry->changed();
    }
    entry->failures = failed ? entry->failures + 1 : 0;
    return Probe(entry);
  }

  // False: as above.
  bool Probe(Entry* entry) ABSL_LOCKS_EXCLUDED(mutex) {
    if (Clock::Real().Now() < entry->probe_at) return true;
    std::vector<ZmqStream::Probe> probes;
    if (const std::shared_ptr<ZmqStream> stream = entry->stream.lock(); stream != nullptr)
      probes = stream->ProbesWanted();
    for (const ZmqStream::Probe& probe : probes) {
      CountResolving(1);
      absl::Status reached = ProbeEndpoint(probe.endpoint, resolve, kProbeTimeout);
      if (absl::IsUnavailable(reached) && !probe.replay_beside.empty() &&
          ProbeEndpoint(probe.replay_beside, resolve, kProbeTimeout).ok())
        reached = absl::UnavailableError(absl::StrCat(reached.message(), kDialsOut));
      CountResolving(-1);
      {
        MutexLock lock(&mutex);
        if (stopping) return false;
      }
      const std::shared_ptr<ZmqStream> stream = entry->stream.lock();
      if (stream == nullptr) return false;
      stream->Probed(probe, reached);
    }
    entry->unreached = probes.empty() ? 0 : entry->unreached + 1;
    entry->probe_at =
        probes.empty() ? Time(0) : Clock::Real().Now() + Backoff(entry->unreached - 1) / 2;
    return true;
  }

  // `Stop` does not wait for a thread that is here: the system's resolver cannot be interrupted.
  absl::StatusOr<std::vector<std::string>> Resolve(const std::string& name) {
    CountResolving(1);
    const absl::StatusOr<std::vector<std::string>> found = resolve(name);
    CountResolving(-1);
    if (!found.ok()) return found.status();
    return addresses.Within(name, *found);
  }
  void CountResolving(int change) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    resolving += change;
    left.SignalAll();
  }

  const EngineAddresses addresses;
  const HostResolver resolve;
  const Duration look_every;

  Mutex mutex;
  CondVar wake;
  CondVar left;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  int threads ABSL_GUARDED_BY(mutex) = 0;
  int resolving ABSL_GUARDED_BY(mutex) = 0;  // of these, at the resolver
  std::multimap<Time, Entry> due ABSL_GUARDED_BY(mutex);
};

ZmqNames::ZmqNames(const EngineAddresses& addresses, HostResolver resolve, Duration look_every)
    : state_(std::make_shared<State>(addresses, std::move(resolve), look_every)) {}

ZmqNames::~ZmqNames() { Stop(); }

void ZmqNames::Watch(const std::shared_ptr<ZmqStream>& stream, std::function<void()> changed) {
  MutexLock lock(&state_->mutex);
  if (state_->stopping) return;
  state_->due.emplace(Clock::Real().Now(),
                      State::Entry{.stream = stream, .changed = std::move(changed)});
  state_->wake.Signal();
  for (; state_->threads < kThreads; ++state_->threads)
    std::thread([state = state_] { State::Run(state); }).detach();
}

// Waits for all threads but those at the resolver or a probe; they see `stopping` afterwards and
// leave.
void ZmqNames::Stop() {
  MutexLock lock(&state_->mutex);
  state_->stopping = true;
  state_->wake.SignalAll();
  while (state_->threads > state_->resolving) state_->left.Wait(&state_->mutex);
}

}  // namespace kvatlas
