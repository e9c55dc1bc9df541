// The flags of kvatlas-frontend, and what is made of them before anything starts.
//
// *Truth*: INVALID_ARGUMENT begins with the flag's name. *Threads*: functions without state.

#ifndef KVATLAS_FRONTEND_FRONTEND_FLAGS_H_
#define KVATLAS_FRONTEND_FRONTEND_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/accuracy/truth.h"
#include "frontend/gateway/ext_proc/ext_proc_server.h"
#include "frontend/gateway/http/prompt_flags.h"
#include "frontend/router/cost.h"
#include "frontend/router/frontend.h"
#include "indexer/base/address.h"
#include "indexer/base/waypoints.h"
#include "indexer/discovery/announce_flag.h"
#include "indexer/process/flags.h"

namespace kvatlas {

struct FrontendFlags {
  Address grpc{"127.0.0.1", 7430};
  Address http{"127.0.0.1", 8092};
  std::string hierarchies;
  std::string schedule = WaypointSchedule::Standard().Name();
  std::string hierarchy_schedule;
  std::vector<std::string> leaves;
  AnnounceFlag announce;
  ExtProcFlags ext_proc;
  PromptFlags prompts;
  std::string models;
  ProxyFlags proxy;
  std::string model_weights;
  std::vector<std::string> draining;
  bool question_streams = true;
  FrontendOptions frontend;
  TruthOptions truth;
  std::string memory_budget;
  bool ui_explain = false;
};

void Declare(FlagSet& flags, FrontendFlags* f);

// An entry of --leaves.
absl::Status CheckLeaf(const std::string& entry);

struct Schedules {
  WaypointSchedule leaves = WaypointSchedule::Standard();
  WaypointSchedule hierarchy = WaypointSchedule::Standard();  // a part of the leaves'
};

absl::StatusOr<Schedules> ReadSchedules(const FrontendFlags& flags);

absl::StatusOr<std::map<std::string, CostWeights>> WeightsOfModels(const FrontendFlags& flags);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_FRONTEND_FLAGS_H_
