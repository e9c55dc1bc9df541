// One `Fill` for each message of the statistics, from the inside out, and the dump. A domain or
// holder that goes while it is being asked is left out: there is no cut over all of them.

#include "indexer/transport/holders_wire.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>
#include <vector>

#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/net/call_progress.h"
#include "indexer/net/long_answers.h"
#include "indexer/process/process_facts.h"
#include "indexer/registry/refused_holders.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

void FillPending(const PendingStats& pending, v1::PendingStats* stats) {
  stats->set_blocks(pending.blocks);
  stats->set_requests(pending.requests);
  stats->set_bytes(pending.bytes);
  stats->set_told(pending.counts.told);
  stats->set_confirmed(pending.counts.confirmed);
  stats->set_failed(pending.counts.failed);
  stats->set_contradicted(pending.counts.contradicted);
  stats->set_timed_out(pending.counts.timed_out);
  stats->set_dropped(pending.counts.dropped);
}

// Labels may carry URLs with passwords: they are shown without secrets.
void FillHolder(const HolderStats& holder, v1::HolderStats* stats) {
  ToProto(holder.holder->id, stats->mutable_holder());
  stats->set_epoch(holder.epoch);
  stats->set_applied(holder.applied);
  stats->set_trust(ToProto(holder.trust));
  stats->set_age_ms(Milliseconds(holder.age));
  stats->set_masked(holder.masked);
  stats->set_blocks(holder.blocks);
  stats->set_connected(holder.connected);
  stats->set_batches(holder.receiver.batches_applied + holder.receiver.snapshots_applied);
  if (holder.load.has_value()) ToProto(*holder.load, stats->mutable_load());
  stats->set_side_blocks(holder.side_blocks);
  if (!holder.layout.plain()) ToProto(holder.layout, stats->mutable_layout());
  stats->set_address(holder.holder->address);
  for (const auto& [name, value] : holder.holder->labels)
    (*stats->mutable_labels())[name] = WithoutSecrets(value);
  stats->set_state(holder.connected ? "connected" : holder.masked ? "silent" : "disconnected");
  stats->set_gaps(holder.receiver.gaps);
  stats->set_snapshots(holder.receiver.snapshots_applied);
  stats->set_digests_different(holder.receiver.digests_different);
  stats->set_refusals(holder.receiver.hellos_refused + holder.receiver.sheds);
  if (holder.pending.counts.told > 0) FillPending(holder.pending, stats->mutable_pending());
}

// Counts since the start include holders that are gone (`DomainStats`).
void FillDomain(const DomainStats& domain, v1::DomainStats* stats) {
  ToProto(domain.domain, stats->mutable_domain());
  stats->set_block_size(domain.block_size);
  stats->set_holders(domain.index.holders);
  stats->set_blocks(domain.index.blocks);
  stats->set_holdings(domain.index.holdings);
  stats->set_index_bytes(domain.index.bytes);
  stats->set_side_holdings(domain.sides.holdings);
  stats->set_side_bytes(domain.sides.bytes);
  stats->set_blocks_stored(domain.blocks_stored);
  stats->set_blocks_removed(domain.blocks_removed);
  stats->set_batches(domain.batches);
  stats->set_bytes_received(domain.bytes_received);
  stats->set_gaps(domain.gaps);
  stats->set_snapshots(domain.snapshots);
  stats->set_digests_equal(domain.digests_equal);
  stats->set_digests_different(domain.digests_different);
  if (domain.pending.counts.told > 0) FillPending(domain.pending, stats->mutable_pending());
  for (const HolderStats& holder : domain.holders) FillHolder(holder, stats->add_holder_stats());
}

void FillMemory(const MemoryBudget& memory, v1::MemoryStats* stats) {
  stats->set_budget_bytes(memory.bytes_max());
  stats->set_used_bytes(memory.used_bytes());
  stats->set_level(std::string(MemoryLevelName(memory.level())));
  for (const auto& [part, bytes] : memory.Parts()) (*stats->mutable_parts())[part] = bytes;
}

// The fields that all messages of a holder share are set once. A false from `write` ends the dump
// at once.
absl::Status DumpHolder(const Domain& domain, const HolderDump& dump,
                        const std::function<bool(const v1::DumpResponse&)>& write) {
  v1::DumpResponse response;
  ToProto(domain, response.mutable_domain());
  ToProto(dump.holder->id, response.mutable_worker());
  response.set_applied(dump.applied);
  response.set_trust(ToProto(dump.trust));
  if (!dump.layout.plain()) ToProto(dump.layout, response.mutable_layout());
  for (const Stored& run : dump.runs) {
    response.clear_stored();
    ToProto(run, response.add_stored());
    if (!write(response)) return absl::CancelledError("the asker has gone");
  }
  response.clear_stored();
  response.set_last_of_worker(true);
  return write(response) ? absl::OkStatus() : absl::CancelledError("the asker has gone");
}

}  // namespace

void FillStats(const HolderRegistry& registry, v1::StatsResponse* response) {
  response->set_streams_open(registry.Stats().streams_open);
  if (registry.memory() != nullptr) FillMemory(*registry.memory(), response->mutable_memory());
  for (const Domain& domain : registry.Domains()) FillStats(registry, domain, response);
  for (const RefusedHolder& holder : registry.Refused()) {
    v1::RefusedStream* refused = response->add_refused();
    ToProto(holder.domain, refused->mutable_domain());
    ToProto(holder.holder, refused->mutable_holder());
    refused->set_reason(holder.reason);
    refused->set_times(holder.times);
  }
}

// Nothing for a process that told no facts, such as a test.
void FillProcess(v1::StatsResponse* response) {
  const ProcessFacts facts = FactsOfProcess();
  if (facts.program.empty()) return;
  v1::ProcessStats* process = response->mutable_process();
  process->set_program(facts.program);
  process->set_version(facts.version);
  process->set_pid(facts.pid);
  process->set_started_unix_ms(facts.started_unix_ms);
  process->set_now_unix_ms(facts.now_unix_ms);
  process->set_uptime_ms(facts.uptime_ms);
  process->set_log(facts.log);
  for (const auto& [name, address] : facts.listens) (*process->mutable_listens())[name] = address;
  for (const ToldFlag& told : facts.flags) {
    v1::FlagStats* flag = process->add_flags();
    flag->set_name(told.name);
    flag->set_value(told.value);
    flag->set_from(told.where);
  }
}

void FillStats(const HolderRegistry& registry, const Domain& domain, v1::StatsResponse* response) {
  const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
  if (stats.ok()) FillDomain(*stats, response->add_domains());
}

// Zeros are printed, so that a field is always there, and names are those of the proto.
HttpResponse StatusPage(const v1::StatsResponse& stats) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpResponse response;
  if (!google::protobuf::util::MessageToJsonString(stats, &response.body, options).ok()) {
    return HttpError(500, "the statistics are not printable as JSON");
  }
  return response;
}

uint64_t IndexBytes(const HolderRegistry& registry) {
  uint64_t bytes = 0;
  for (const Domain& domain : registry.Domains()) {
    const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
    if (stats.ok()) bytes += stats->index.bytes + stats->sides.bytes;
  }
  return bytes;
}

uint64_t SnapshotBytes(const HolderRegistry& registry) {
  uint64_t bytes = 0;
  for (const Domain& domain : registry.Domains()) {
    const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
    if (!stats.ok()) continue;
    for (const HolderStats& holder : stats->holders) bytes += holder.snapshot_bytes;
  }
  return bytes;
}

// One holder's dump is in memory at a time. An unknown domain is an error, an unknown worker an
// empty dump.
absl::Status DumpHolders(const HolderRegistry& registry, const v1::DumpRequest& request,
                         const std::function<bool(const v1::DumpResponse&)>& write) {
  std::vector<Domain> domains = registry.Domains();
  if (request.has_domain()) {
    Domain domain;
    if (absl::Status bad = FromProto(request.domain(), &domain); !bad.ok()) return bad;
    if (std::find(domains.begin(), domains.end(), domain) == domains.end()) {
      return absl::NotFoundError("domain " + ToString(domain) + " was never announced");
    }
    domains = {domain};
  }
  for (const Domain& domain : domains) {
    for (const HolderId& holder : registry.HoldersOf(domain)) {
      if (!request.worker().empty() && holder.name != request.worker()) continue;
      const absl::StatusOr<HolderDump> dump = registry.Dump(domain, holder);
      if (!dump.ok()) continue;  // Gone meanwhile.
      if (absl::Status status = DumpHolder(domain, *dump, write); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

// Dumps need memory and a thread for as long as their reader takes: none begins when memory is full
// or all places are taken, and `CallProgress` cuts off a reader that does not read.
absl::Status ServeDump(const HolderRegistry& registry, grpc::ServerContext* context,
                       const v1::DumpRequest& request,
                       grpc::ServerWriter<v1::DumpResponse>* writer) {
  absl::Status full = CheckMemory(registry.memory(), MemoryLevel::kFull, "dumps");
  if (!full.ok()) return full;
  const LongAnswers::Place place = LongAnswers::Process().Take();
  if (place == nullptr) return absl::ResourceExhaustedError(kTooManyLongAnswers);
  CallProgress progress(context);
  return DumpHolders(registry, request, [&](const v1::DumpResponse& response) {
    if (context->IsCancelled() || !writer->Write(response)) return false;
    progress.Made();
    return true;
  });
}

}  // namespace kvatlas
