// The facts of the process, kept by SetFactsOfProcess and completed with the present time when
// asked. One instance, never destroyed: answers may be given while static objects go.

#include "indexer/process/process_facts.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/base/version.h"
#include "indexer/net/redis_url.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

uint64_t UnixMs() {
  using std::chrono::system_clock;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(system_clock::now().time_since_epoch())
          .count());
}

// The facts as set, without the fields that FactsOfProcess fills in. `started` is of the monotonic
// clock.
struct Kept {
  Mutex mutex;
  ProcessFacts facts ABSL_GUARDED_BY(mutex);
  Time started ABSL_GUARDED_BY(mutex){0};
};

Kept& OfProcess() {
  static auto* const kept = new Kept;
  return *kept;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(&out, text);
  return out + "\"";
}

// The path of the file that standard error was redirected to.
std::string LogFile() {
  struct stat file = {};
  if (fstat(STDERR_FILENO, &file) != 0 || !S_ISREG(file.st_mode)) return "";
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/fd/2", path, sizeof(path));
  return size <= 0 ? "" : std::string(path, static_cast<size_t>(size));
}

}  // namespace

// Facts without a program, as in a test, are returned as they are.
ProcessFacts FactsOfProcess() {
  Kept& kept = OfProcess();
  MutexLock lock(&kept.mutex);
  ProcessFacts facts = kept.facts;
  if (facts.program.empty()) return facts;
  facts.log = LogFile();
  facts.now_unix_ms = UnixMs();
  facts.uptime_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::Real().Now() - kept.started)
          .count());
  return facts;
}

// "salt=" counts at the start of an option only ("engine;salt=S"), and the value ends with the
// option.
std::string WithoutSecrets(std::string_view value) {
  constexpr std::string_view kSalt = "salt=";
  std::string text = WithoutPasswords(value);
  for (size_t at = text.find(kSalt); at != std::string::npos; at = text.find(kSalt, at)) {
    const size_t from = at + kSalt.size();
    const bool is_option = at == 0 || text[at - 1] == ';' || text[at - 1] == ',';
    at = from;
    if (!is_option) continue;
    const size_t end = std::min(text.find_first_of(";,", from), text.size());
    text.replace(from, end - from, "***");
  }
  return text;
}

// The first call fixes the start time; later ones (reloads) replace the flags. Secrets are removed
// before anything is kept.
void SetFactsOfProcess(std::string program, std::vector<ToldFlag> flags) {
  Kept& kept = OfProcess();
  MutexLock lock(&kept.mutex);
  if (kept.facts.program.empty()) {
    kept.started = Clock::Real().Now();
    kept.facts.started_unix_ms = UnixMs();
  }
  kept.facts.program = std::move(program);
  kept.facts.version = kVersion;
  kept.facts.pid = static_cast<uint64_t>(getpid());
  for (ToldFlag& flag : flags) flag.value = WithoutSecrets(flag.value);
  kept.facts.flags = std::move(flags);
}

void SetListensOfProcess(const std::vector<std::pair<std::string, Address>>& listens) {
  Kept& kept = OfProcess();
  MutexLock lock(&kept.mutex);
  kept.facts.listens.clear();
  for (const auto& [name, address] : listens)
    kept.facts.listens.emplace_back(name, address.ToString());
}

std::string ProcessFactsJson(const ProcessFacts& facts) {
  std::string json =
      absl::StrCat("{\"program\":", Quoted(facts.program), ",\"version\":", Quoted(facts.version),
                   ",\"pid\":", facts.pid, ",\"started_unix_ms\":", facts.started_unix_ms,
                   ",\"now_unix_ms\":", facts.now_unix_ms, ",\"uptime_ms\":", facts.uptime_ms,
                   ",\"log\":", Quoted(facts.log), ",\"listens\":{");
  const char* comma = "";
  for (const auto& [name, address] : facts.listens) {
    absl::StrAppend(&json, comma, Quoted(name), ":", Quoted(address));
    comma = ",";
  }
  json += "},\"flags\":{";
  comma = "";
  for (const ToldFlag& flag : facts.flags) {
    absl::StrAppend(&json, comma, Quoted(flag.name), ":{\"value\":", Quoted(flag.value),
                    ",\"from\":", Quoted(flag.where), "}");
    comma = ",";
  }
  return json + "}}";
}

}  // namespace kvatlas
