// The facts that a process reports about itself to an operator: program and version, since when it
// runs, its clock, where it listens, and the flags that it was given.
//
// *Place*: `ServiceMain` keeps it up to date; services put it into /status and `Stats`.
// *Truth*: flags are those that were given, on the command line, in the environment or in a file,
// as they count now. No secret is in them: passwords in URLs and salts of engines are left out
// (`WithoutSecrets`).
// *Threads*: any.

#ifndef KVATLAS_INDEXER_PROCESS_PROCESS_FACTS_H_
#define KVATLAS_INDEXER_PROCESS_PROCESS_FACTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "indexer/base/address.h"

namespace kvatlas {

struct ToldFlag {
  std::string name;
  std::string value;
  std::string where;  // "flag --cell", "KVATLAS_CELL", "leaf.toml:3"
};

struct ProcessFacts {
  std::string program = {};  // "kvatlas-leaf"; empty: no process of ours, such as a test
  std::string version = {};
  uint64_t pid = 0;
  uint64_t started_unix_ms = 0;
  uint64_t now_unix_ms = 0;
  uint64_t uptime_ms = 0;                                         // by the monotonic clock
  std::vector<std::pair<std::string, std::string>> listens = {};  // "grpc", "127.0.0.1:7410"
  std::vector<ToldFlag> flags = {};
  std::string log = {};  // the file that standard error is; empty: it is none
};

ProcessFacts FactsOfProcess();

// A value for others to read: passwords of URLs and salts ("…;salt=S") are replaced by ***.
std::string WithoutSecrets(std::string_view value);

void SetFactsOfProcess(std::string program, std::vector<ToldFlag> flags);
void SetListensOfProcess(const std::vector<std::pair<std::string, Address>>& listens);

// {"program":…,"version":…,"pid":…,"started_unix_ms":…,"now_unix_ms":…,"uptime_ms":…,"log":…,"listens":{…},"flags":{NAME:{"value":…,"from":…}}}
std::string ProcessFactsJson(const ProcessFacts& facts);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_PROCESS_FACTS_H_
