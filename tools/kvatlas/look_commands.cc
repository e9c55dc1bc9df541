// cells, workers, streams: what there is, and how it is doing. cells and workers print the holders
// of one node or leaf; streams turns the states of any service into rows of one form (`StreamRow`).

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/holdings.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/survey.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

const Address kLeaf{"127.0.0.1", 7410};
const Address kHierarchy{"127.0.0.1", 7420};
constexpr size_t kStreamsOfMax = 1024;  // services

// Without --model every domain.
bool InDomain(const Command& command, const v1::Domain& domain) {
  return command.model().empty() ||
         (domain.model() == command.model() && domain.tenant() == command.tenant());
}

// The state of a holder in one word: whether it is heard comes before how sure its blocks are.
std::string StateOf(const v1::HolderStats& holder) {
  if (holder.masked()) return "masked";
  if (!holder.state().empty() && holder.state() != "connected") return holder.state();
  return TrustText(holder.trust());
}

// "-": it told no load.
std::string LoadCell(const v1::HolderStats& holder, uint64_t value) {
  return holder.has_load() ? Grouped(value) : "-";
}

// "-" for an engine whose pool's size is not known: then neither used nor free blocks are told.
std::string FreeCell(const v1::HolderStats& holder) {
  const v1::Load& load = holder.load();
  return load.used_blocks() + load.free_blocks() == 0 ? "-" : Grouped(load.free_blocks());
}

// The number of the last batch applied. The stream of an engine that the leaf listens to has no
// numbers of ours: then how many were applied.
uint64_t BatchOf(const v1::HolderStats& holder) {
  return holder.has_engine() ? holder.batches() : holder.applied();
}

// `batch` is what the table shows; `epoch` and `applied` are the stream's own numbers.
Json HolderJson(const v1::Domain& domain, const v1::HolderStats& holder) {
  Json json = {{"model", domain.model()},
               {"tenant", domain.tenant()},
               {"holder", holder.holder().name()},
               {"rank", holder.holder().rank()},
               {"replica", holder.holder().replica()},
               {"trust", TrustText(holder.trust())},
               {"masked", holder.masked()},
               {"age_ms", holder.age_ms()},
               {"blocks", holder.blocks()},
               {"side_blocks", holder.side_blocks()},
               {"epoch", holder.epoch()},
               {"applied", holder.applied()},
               {"batch", BatchOf(holder)},
               {"load", nullptr}};
  if (holder.has_load()) {
    const v1::Load& load = holder.load();
    json["load"] = {{"running_requests", load.running_requests()},
                    {"waiting_requests", load.waiting_requests()},
                    {"used_blocks", load.used_blocks()},
                    {"free_blocks", load.free_blocks()},
                    {"waiting_prefill_blocks", load.waiting_prefill_blocks()},
                    {"workers", load.workers()}};
  }
  return json;
}

// Whether `--model` was named and is not there.
absl::Status CheckDomain(const Command& command, const std::string& who,
                         const v1::StatsResponse& stats) {
  if (command.model().empty()) return absl::OkStatus();
  for (const v1::DomainStats& domain : stats.domains())
    if (InDomain(command, domain.domain())) return absl::OkStatus();
  return absl::NotFoundError(who + ": domain " + DomainName({command.model(), command.tenant()}) +
                             " was never announced");
}

// Prints the holders of a leaf or a node: `what` heads their names, `blocks` their blocks.
int PrintHolders(Command* command, const HolderService& service, const char* what,
                 const char* blocks) {
  const absl::StatusOr<v1::StatsResponse> stats = service.Stats();
  if (!stats.ok()) return command->Fail(stats.status());
  if (absl::Status bad = CheckDomain(*command, service.name(), *stats); !bad.ok())
    return command->Fail(bad);
  Table table({what, "DOMAIN", "TRUST*", "AGE>", blocks, "SIDE>", "RUNNING>", "WAITING>",
               "FREE BLOCKS>", "BATCH>"});
  for (const v1::DomainStats& domain : stats->domains()) {
    if (!InDomain(*command, domain.domain())) continue;
    for (const v1::HolderStats& holder : domain.holder_stats()) {
      command->PrintJson(HolderJson(domain.domain(), holder));
      table.Add({HolderText(holder.holder()), DomainName(domain.domain()), StateOf(holder),
                 ShortMs(holder.age_ms()), Grouped(holder.blocks()),
                 holder.side_blocks() == 0 ? "-" : Grouped(holder.side_blocks()),
                 LoadCell(holder, holder.load().running_requests()),
                 LoadCell(holder, holder.load().waiting_requests()), FreeCell(holder),
                 Grouped(BatchOf(holder))});
    }
  }
  if (!command->table()) return command->Done();
  table.Print(command->out(), command->colours());
  command->out() << table.rows() << (table.rows() == 1 ? " holder" : " holders") << " at "
                 << service.name() << " (" << Shown(stats->cell())
                 << (stats->replica().empty() ? "" : "@" + Shown(stats->replica())) << ")\n";
  return command->Done();
}

// ---- streams ----

struct StreamRow {
  const char* direction;  // "in", "out"
  std::string peer;       // where it comes from or goes to: an endpoint, an address
  std::string holder;
  std::string domain;
  std::string state;
  uint64_t number = 0;                        // last batch: applied, or sent
  std::optional<uint64_t> acknowledged = {};  // of one that goes out
  std::optional<double> lag_ms = {};          // engine's clock to applied, of the last batch
  std::optional<uint64_t> gaps = {};  // of one that comes in: times that something was missing
  std::optional<uint64_t> lost = {};  // of an engine's own: messages that never came
  std::string detail;
};

template <typename Number>
Json OrNull(const std::optional<Number>& number) {
  return number.has_value() ? Json(*number) : Json();
}
std::string OrDash(const std::optional<uint64_t>& number) {
  return number.has_value() ? Grouped(*number) : "-";
}
// Losses are named only where there are some: a gap that a replay filled is no loss.
std::string GapsText(const StreamRow& row) {
  std::string text = OrDash(row.gaps);
  if (row.lost.value_or(0) > 0) text += " (" + Grouped(*row.lost) + " lost)";
  return text;
}

void PrintStreams(Command* command, const std::string& who, const std::vector<StreamRow>& rows) {
  Table table(
      {"", "PEER", "HOLDER", "DOMAIN", "STATE*", "BATCH>", "ACKED>", "LAG>", "GAPS>", "DETAIL"});
  for (const StreamRow& row : rows) {
    command->PrintJson({{"at", who},
                        {"direction", row.direction},
                        {"peer", row.peer},
                        {"holder", row.holder},
                        {"domain", row.domain},
                        {"state", row.state},
                        {"batch", row.number},
                        {"acknowledged", OrNull(row.acknowledged)},
                        {"lag_ms", OrNull(row.lag_ms)},
                        {"gaps", OrNull(row.gaps)},
                        {"lost", OrNull(row.lost)},
                        {"detail", row.detail}});
    const std::string lag =
        row.lag_ms.has_value() ? ShortMs(static_cast<uint64_t>(std::max(*row.lag_ms, 0.0))) : "-";
    table.Add({row.direction, row.peer, row.holder, row.domain, row.state, Grouped(row.number),
               OrDash(row.acknowledged), lag, GapsText(row), row.detail});
  }
  if (!command->table()) return;
  command->out() << Shown(who) << '\n';
  table.Print(command->out(), command->colours());
  if (rows.empty()) command->out() << "no streams\n";
}

// A stream into a leaf or node. A reason, where there is one, takes the place of the age.
StreamRow IncomingRow(const v1::Domain& domain, const v1::HolderStats& holder) {
  StreamRow row{.direction = "in",
                .peer = "publisher",
                .holder = HolderText(holder.holder()),
                .domain = DomainName(domain),
                .state = StateOf(holder),
                .number = BatchOf(holder),
                .gaps = holder.gaps(),
                .detail = holder.reason()};
  if (row.detail.empty()) {
    row.detail = "heard " + ShortMs(holder.age_ms()) + " ago";
    if (holder.epoch() != 0) row.detail += ", epoch " + std::to_string(holder.epoch());
  }
  if (!holder.has_engine()) return row;
  // The leaf listens to it itself: there is no hello, and so no epoch.
  row.peer = holder.endpoint().empty() ? "engine" : holder.endpoint();
  row.lag_ms = holder.engine().lag_ms();
  row.lost = holder.engine().messages_lost();
  if (!holder.engine().last_refusal().empty())
    row.detail += "; last refusal: " + holder.engine().last_refusal();
  return row;
}

// A refusal comes before the connection: a refused stream may be connected.
std::string StateOf(const v1::ParentStats& parent) {
  if (!parent.refused().empty()) return "refused";
  if (!parent.connected()) return parent.state().empty() ? "down" : parent.state();
  return parent.at_rest() ? "at rest" : "sending";
}

absl::StatusOr<std::vector<StreamRow>> StreamsOf(const Command& command,
                                                 const HolderService& service) {
  const absl::StatusOr<v1::StatsResponse> stats = service.Stats();
  if (!stats.ok()) return stats.status();
  if (absl::Status bad = CheckDomain(command, service.name(), *stats); !bad.ok()) return bad;
  std::vector<StreamRow> rows;
  for (const v1::DomainStats& domain : stats->domains()) {
    if (!InDomain(command, domain.domain())) continue;
    for (const v1::HolderStats& holder : domain.holder_stats())
      rows.push_back(IncomingRow(domain.domain(), holder));
  }
  // Refused streams have no holder in the domain, so they are told apart.
  for (const v1::RefusedStream& refused : stats->refused()) {
    if (!InDomain(command, refused.domain())) continue;
    rows.push_back({.direction = "in",
                    .peer = "publisher",
                    .holder = HolderText(refused.holder()),
                    .domain = DomainName(refused.domain()),
                    .state = "refused",
                    .detail = refused.reason() + ", " + Grouped(refused.times()) +
                              (refused.times() == 1 ? " time" : " times")});
  }
  for (const v1::ParentStats& parent : stats->parents()) {
    if (!InDomain(command, parent.domain())) continue;
    const std::string& why = parent.refused().empty() ? parent.reason() : parent.refused();
    rows.push_back({.direction = "out",
                    .peer = parent.address(),
                    .holder = stats->cell(),
                    .domain = DomainName(parent.domain()),
                    .state = StateOf(parent),
                    .number = parent.last_batch(),
                    .acknowledged = parent.acknowledged(),
                    .detail = !why.empty()
                                  ? why
                                  : Grouped(parent.waypoints_held()) + " waypoints held, " +
                                        Grouped(parent.bytes_sent()) + " bytes"});
  }
  return rows;
}

using Page = nlohmann::json;  // of a relay

// 0: missing, or no number.
uint64_t Number(const Page& json, const char* field) {
  const auto it = json.find(field);
  return it != json.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}
std::optional<double> Real(const Page& json, const char* field) {
  const auto it = json.find(field);
  if (it == json.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}
bool IsTrue(const Page& json, const char* field) {
  const auto it = json.find(field);
  return it != json.end() && it->is_boolean() && it->get<bool>();
}
// One engine of a relay: its streams in, then each rank's streams to leaves. A rank that is not
// offered has one row without a peer, which says why.
void AddRelayWorker(const Page& worker, std::vector<StreamRow>* rows) {
  const Domain domain{TextIn(worker, "model"), TextIn(worker, "tenant")};
  const auto holder = [&](const Page& of) {
    return HolderText(
        HolderId{TextIn(worker, "worker"), static_cast<uint32_t>(Number(of, "rank")), ""});
  };
  for (const Page& stream : ListIn(worker, "streams")) {
    rows->push_back({.direction = "in",
                     .peer = TextIn(stream, "endpoint"),
                     .holder = holder(stream),
                     .domain = DomainName(domain),
                     .state = TextIn(stream, "state"),
                     .number = Number(stream, "last_sequence"),
                     .lag_ms = Real(stream, "lag_ms"),
                     .gaps = Number(stream, "gaps"),
                     .lost = Number(stream, "lost"),
                     .detail = TextIn(stream, "reason").empty() ? TextIn(stream, "status")
                                                                : TextIn(stream, "reason")});
  }
  for (const Page& rank : ListIn(worker, "ranks")) {
    const std::string doubt = TextIn(rank, "doubt");
    if (ListIn(rank, "leaves").empty()) {
      rows->push_back({.direction = "out",
                       .peer = "-",
                       .holder = holder(rank),
                       .domain = DomainName(domain),
                       .state = TextIn(rank, "stand"),
                       .number = 0,
                       .detail = doubt});
    }
    for (const Page& link : ListIn(rank, "leaves")) {
      const std::string error = TextIn(link, "error");
      const char* state = !error.empty()               ? "refused"
                          : !IsTrue(link, "connected") ? "down"
                          : IsTrue(link, "at_rest")    ? "at rest"
                                                       : "sending";
      rows->push_back({.direction = "out",
                       .peer = TextIn(link, "leaf"),
                       .holder = holder(rank),
                       .domain = DomainName(domain),
                       .state = state,
                       .number = Number(link, "last_number"),
                       .acknowledged = Number(link, "acknowledged"),
                       .detail = !error.empty()  ? error
                                 : doubt.empty() ? TextIn(rank, "trust") + ", " +
                                                       Grouped(Number(rank, "blocks")) + " blocks"
                                                 : TextIn(rank, "trust") + ": " + doubt});
    }
  }
}

// The program is checked: other services have a /status, too.
absl::StatusOr<std::vector<StreamRow>> StreamsOfRelay(const Command& command,
                                                      const Address& relay) {
  const absl::StatusOr<std::string> body =
      HttpBody("relay", relay, "GET", "/status", "", command.timeout());
  if (!body.ok()) return body.status();
  const Page json = Page::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || TextIn(json, "program") != "kvatlas-relay")
    return absl::FailedPreconditionError("relay " + relay.ToString() + ": this is no relay");
  std::vector<StreamRow> rows;
  bool known = command.model().empty();
  for (const Page& worker : ListIn(json, "workers")) {
    v1::Domain domain;
    domain.set_model(TextIn(worker, "model"));
    domain.set_tenant(TextIn(worker, "tenant"));
    if (!InDomain(command, domain)) continue;
    known = true;
    AddRelayWorker(worker, &rows);
  }
  if (known) return rows;
  return absl::NotFoundError("relay " + relay.ToString() + ": domain " +
                             DomainName({command.model(), command.tenant()}) +
                             " has no worker here");
}

// By the kind of the service; `serve` means the leaf in it.
absl::StatusOr<std::vector<StreamRow>> StreamsOf(const Command& command, const ServiceName& name) {
  const bool relay = name.role == ServiceRole::kRelay;
  const ServiceRole role = name.role == ServiceRole::kServe ? ServiceRole::kLeaf : name.role;
  const absl::StatusOr<Address> at =
      Located({role, name.address}, relay ? Plane::kHttp : Plane::kGrpc, command.timeout());
  if (!at.ok()) return at.status();
  if (relay) return StreamsOfRelay(command, *at);
  return StreamsOf(command, HolderService(role, *at, command.timeout()));
}

}  // namespace

int RunCells(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("cells", "Cells that report to a hierarchy node: how fresh, how much, how busy.",
                  io);
  Address hierarchy = kHierarchy;
  command.AddServices({ServiceRole::kHierarchy}, 1);
  command.AddWatch();
  command.flags().Add("hierarchy", &hierarchy, "address of the node");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  const absl::StatusOr<Address> at = command.Find(ServiceRole::kHierarchy, Plane::kGrpc, hierarchy);
  if (!at.ok()) return command.Fail(at.status());
  return PrintHolders(&command, HolderService(ServiceRole::kHierarchy, *at, command.timeout()),
                      "CELL", "WAYPOINTS>");
}

int RunWorkers(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("workers", "Worker ranks of a leaf: how sure, how fresh, how much, how busy.",
                  io);
  Address leaf = kLeaf;
  command.AddServices({ServiceRole::kLeaf, ServiceRole::kServe}, 1);
  command.AddWatch();
  command.flags().Add("leaf", &leaf, "address of the leaf");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  const absl::StatusOr<Address> at = command.Find(ServiceRole::kLeaf, Plane::kGrpc, leaf);
  if (!at.ok()) return command.Fail(at.status());
  return PrintHolders(&command, HolderService(ServiceRole::kLeaf, *at, command.timeout()), "WORKER",
                      "BLOCKS>");
}

int RunStreams(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "streams", "Streams into and out of services. Without any service: of the leaf on this host.",
      io);
  std::vector<Address> leaves, hierarchies, relays;
  command.AddServices(
      {ServiceRole::kLeaf, ServiceRole::kHierarchy, ServiceRole::kRelay, ServiceRole::kServe},
      kStreamsOfMax);
  command.AddWatch();
  command.flags().Add("leaf", &leaves, "addresses of leaves");
  command.flags().Add("hierarchy", &hierarchies, "addresses of hierarchy nodes");
  command.flags().Add("relay", &relays, "HTTP addresses of relays");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  std::vector<ServiceName> services = command.services();
  for (const auto& [role, addresses] :
       {std::pair(ServiceRole::kLeaf, &leaves), std::pair(ServiceRole::kHierarchy, &hierarchies),
        std::pair(ServiceRole::kRelay, &relays)})
    for (const Address& address : *addresses) services.push_back({role, address});
  if (services.empty()) services.push_back({ServiceRole::kLeaf, kLeaf});
  int worst = kExitOk;
  // A service that cannot be asked is an error of its own; the others are still shown.
  const auto take = [&](const std::string& who,
                        const absl::StatusOr<std::vector<StreamRow>>& rows) {
    if (rows.ok()) return PrintStreams(&command, who, *rows);
    worst = std::max(worst, command.Fail(rows.status()));
  };
  for (const ServiceName& name : services) take(name.Title(), StreamsOf(command, name));
  const int done = command.Done();
  return worst == kExitOk ? done : worst;
}

}  // namespace kvatlas
