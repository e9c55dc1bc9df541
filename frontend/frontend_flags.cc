// The flags in the order of the manual, group by group, then what is made of them. Options of parts
// are set in place, so a flag's default is the part's.

#include "frontend/frontend_flags.h"

#include <chrono>
#include <utility>

#include "frontend/router/policy/policy.h"
#include "frontend/router/policy/weights_file.h"
#include "indexer/discovery/directory.h"
#include "indexer/process/memory_watch.h"

namespace kvatlas {

void Declare(FlagSet& flags, FrontendFlags* f) {
  FrontendOptions& o = f->frontend;
  flags.Group("Addresses");
  flags.Add("grpc", &f->grpc, "address for gRPC").Listens();
  flags.Add("http", &f->http, "address for HTTP").Listens();
  AddAnnounceFlags(flags, &f->announce);
  flags.Group("Fleet");
  flags
      .Add("hierarchy", &f->hierarchies,
           "the hierarchy's top: HOST:PORT,… that each know all cells, or "
           "NAME=HOST:PORT|HOST:PORT,… "
           "that share what is known, as in its reporters' --parents; or @FILE with either, or "
           "dns:HOST:PORT, or k8s:SERVICE[.NAMESPACE][:PORT], or redis://HOST:PORT where its nodes "
           "announce themselves")
      .List();
  flags.Add("schedule", &f->schedule, "the waypoints that leaves report, as in their --schedule");
  flags.Add("hierarchy_schedule", &f->hierarchy_schedule,
            "the waypoints that a top level of shards is told; empty: the leaves'");
  flags.Group("Questions");
  flags.Add("ask_shards", &o.ask_shards, "shards of the top level asked at once", 1, 256);
  flags.Add("hedge_after", &o.hedge_after,
            "without an answer for so long, a replica is asked beside the first");
  flags.Group("Fleet");
  flags.Add("leaves", &f->leaves,
            "own cells, asked when no hierarchy helps: CELL=HOST:PORT, or redis://HOST:PORT where "
            "leaves announce themselves");
  // Balancers that spread calls cannot spread the questions within a stream.
  flags.Add("question_streams", &f->question_streams,
            "hierarchy and leaves are asked over calls that stay open; false: a call per question, "
            "for balancers of calls in between");
  flags.Group("Questions");
  // Bounds of the search (`cell_search.h`).
  flags.Add("ask", &o.ask_cells, "leaves asked at once", 1, 64);
  flags.Add("ask_ahead", &o.ask_ahead,
            "leaves asked at the same time as the hierarchy, where they can be guessed; 0: none", 0,
            64);
  flags.Add("ask_blind", &o.ask_cells_blind, "leaves asked at once without coverage information", 1,
            256);
  flags.Add("asked_max", &o.asked_max, "leaves asked for one prompt, failures included", 1, 4096);
  flags.Add("cells_best", &o.cells_best, "cells wanted from the hierarchy; 0 means all");
  flags.Add("block_size", &o.block_size, "tokens per block until the fleet says otherwise", 1,
            kBlockSizeMax);
  flags.Add("contract_seed", &o.contract.seed,
            "seed S of the hash contract, as in the leaves' --contract_seed");
  flags.Add("deadline", &o.deadline, "time for a route that names no deadline",
            std::chrono::milliseconds(1));
  flags.Group("Envoy");
  // Groups of flags that other programs have too are declared where their parts are.
  AddExtProcFlags(flags, &f->ext_proc);
  flags.Group("Prompts");
  AddPromptFlags(flags, &f->prompts);
  flags
      .Add("models", &f->models,
           "tokenizers of models: NAME=PATH,… with a folder, a file or an earlier name, or @FILE")
      .List();
  flags.Group("Proxy");
  AddProxyFlags(flags, &f->proxy);
  flags.Group("Weights");
  // Weights may be changed while the process runs (`AddReloads` of main.cc).
  flags.Add("zone", &o.zone, "cells labelled with another zone are farther away");
  flags.Add("zone_distance", &o.zone_distance, "distance to such a cell, in blocks of prefill", 0);
  flags.Add("prefill_weight", &o.weights.prefill, "cost of a block to prefill", 0);
  flags.Add("queue_weight", &o.weights.queue, "cost of a block of prefill waiting ahead", 0);
  flags.Add("decode_weight", &o.weights.decode, "cost of a request at the worker", 0);
  flags.Add("memory_weight", &o.weights.memory, "cost of a block that the worker's pool lacks", 0);
  flags.Add("fetch_host", &o.weights.fetch_host, "cost of a block fetched from host memory", 0);
  flags.Add("fetch_disk", &o.weights.fetch_disk, "cost of a block fetched from the worker's disk",
            0);
  flags.Add("fetch_remote", &o.weights.fetch_remote, "cost of a block fetched from another machine",
            0);
  flags.Add("session_weight", &o.weights.session, "cost of leaving the session's worker", 0);
  flags.Add("siblings_weight", &o.weights.siblings,
            "cost of a block that another worker was just sent, when siblings go together", 0);
  flags.Add(
      "crowding_weight", &o.weights.crowding,
      "cost of a block to store, where a pool of blocks more than the average was lately stored",
      0);
  flags.Add("transfer_weight", &o.weights.transfer,
            "cost of a block sent to a worker of the same cell that decodes", 0);
  flags.Add("transfer_far_weight", &o.weights.transfer_far,
            "cost of a block sent to a worker of another cell that decodes", 0);
  flags.Add(
      "model_weights", &f->model_weights,
      "a JSON file, {\"MODEL\": {\"prefill\": 2, …}, …}: weights of models that have their own");
  flags.Group("Choice");
  flags.AddChoice("policy", &o.policy, "rule by which a worker is chosen", PolicyNames());
  flags.Add("siblings_together", &o.siblings_together,
            "requests of one prefix go to one worker before its events are back");
  flags.Add("sibling_ttl", &o.sibling_ttl,
            "how long a prompt is expected at the worker that it was sent to", Duration(0));
  flags.Add("tell_leaves", &o.tell_leaves,
            "leaves hear which prompts were sent to their workers, and say what other frontends "
            "sent there");
  flags.Add("session_ttl", &o.sessions.ttl,
            "time without a request after which a session is forgotten");
  // Thresholds, and what happens at them (`policy/worker_fit.h`).
  flags.Add("overload_queue", &o.overload.queue_blocks,
            "blocks to prefill from which on a worker gets no more requests; 0: no such threshold");
  flags.Add("overload_requests", &o.overload.requests,
            "requests at a worker from which on it gets no more; 0: no such threshold", 0);
  flags.Add(
      "overload_used", &o.overload.used_share,
      "share of its pool in use from which on a worker gets no more requests; 0: no such threshold",
      0.0, 1.0);
  flags.Add("queue_wait", &o.queue_wait,
            "how long a route waits for a worker below the thresholds; 0: it is refused at once",
            Duration(0));
  flags.Add("queue_max", &o.queue_max, "routes that wait at once", 0);
  flags.Add("draining", &f->draining, "workers, by name, that get no requests");
  flags.Group("Weights");
  flags.Add("temperature", &o.weights.temperature,
            "spread of the choice: a worker that costs T more is chosen e times less often; 0: the "
            "cheapest",
            0);
  flags.Add("seed", &o.weights.seed, "seed of tie-breaks and of the temperature");
  flags.Group("Choice");
  flags.Add("in_flight_ttl", &o.memory.in_flight_ttl, "how long a choice counts without a report");
  // Diagnoses: what is kept, and how much leaves may be asked for them.
  TruthOptions& t = f->truth;
  flags.Group("Truth");
  flags.Add("ui_explain", &f->ui_explain,
            "the page shows where a prompt is cached also where --http is beyond loopback");
  flags.Add("decisions_max", &t.decisions.count_max, "receipts kept to be looked up by id", 1);
  flags.Add("decisions_age", &t.decisions.age_max, "and for how long");
  flags.Add("sent_blocks_max", &t.sent_max,
            "blocks of prompts of which it is known which worker they were sent to, for diagnoses",
            1);
  flags.Add("checks_per_s", &t.checks_per_s,
            "finished prompts that leaves are asked about again, to find out why predictions fail",
            0);
  flags.Group("Limits");
  AddMemoryFlag(flags, &f->memory_budget);
  flags.Example("kvatlas-frontend --hierarchy=127.0.0.1:7420 --leaves=a=127.0.0.1:7410",
                "routes for gateways, by a hierarchy or, without it, the own cell");
  flags.Example(
      "kvatlas-frontend --hierarchy=127.0.0.1:7420 --proxy=127.0.0.1:8000 --engines="
      "w0=http://127.0.0.1:9000",
      "takes requests for engines itself");
}

// An own cell: one that is given needs its cell's name, announced ones have it.
absl::Status CheckLeaf(const std::string& entry) {
  absl::Status bad = CheckDirectoryEntry(entry);
  if (bad.ok() && !entry.starts_with("redis") && entry.find('=') == std::string::npos) {
    bad =
        absl::InvalidArgumentError("'" + entry + "' is none of CELL=HOST:PORT, redis://HOST:PORT");
  }
  return OfFlag("leaves", bad);
}

// The hierarchy's schedule has to be a part of the leaves': a waypoint that no leaf reports can
// never be covered.
absl::StatusOr<Schedules> ReadSchedules(const FrontendFlags& flags) {
  absl::StatusOr<WaypointSchedule> leaves = WaypointSchedule::Parse(flags.schedule);
  if (!leaves.ok()) return OfFlag("schedule", leaves.status());
  absl::StatusOr<WaypointSchedule> hierarchy = WaypointSchedule::Parse(
      flags.hierarchy_schedule.empty() ? flags.schedule : flags.hierarchy_schedule);
  absl::Status bad = hierarchy.status();
  if (bad.ok()) bad = hierarchy->Over(*leaves).status();
  if (!bad.ok()) return OfFlag("hierarchy_schedule", bad);
  return Schedules{*std::move(leaves), *std::move(hierarchy)};
}

// Fields that a model does not name are those of the flags, so this is read again when these
// change.
absl::StatusOr<std::map<std::string, CostWeights>> WeightsOfModels(const FrontendFlags& flags) {
  if (flags.model_weights.empty()) return std::map<std::string, CostWeights>();
  auto weights = ReadModelWeights(flags.model_weights, flags.frontend.weights);
  if (weights.ok()) return weights;
  return absl::InvalidArgumentError(OfFlag("model_weights", weights.status()).message());
}

}  // namespace kvatlas
