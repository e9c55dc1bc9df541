// dump, diff, checkpoint: who holds what, how two tellers differ, and a leaf's checkpoint. `diff`
// looks several times, since two sources cannot be read at one moment: only what differed at every
// look counts.

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/holdings.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

const Address kLeafHttp{"127.0.0.1", 8090};
constexpr char kDefaultSource[] = "leaf=127.0.0.1:7410";
constexpr char kSourceHelp[] =
    "a source: leaf=HOST:PORT, hierarchy=HOST:PORT, relay=HOST:PORT, file=PATH or checkpoint=PATH; "
    "a word does as well";

// --model without --tenant means the empty tenant; all tenants would be another question.
DumpFilter FilterOf(const Command& command, const std::string& worker) {
  return {.model = command.model(), .tenant = command.tenant(), .worker = worker};
}

// ---- diff ----

// "main", "window:127", …; "side" of a class that neither teller knows.
std::string ClassOf(const Difference& difference) {
  if (!difference.sides) return "main";
  return difference.side.empty() ? "side" : difference.side;
}

// At most `hashes_max` hashes of each side, '<' for those of the left alone, '>' for those of the
// right.
void PrintDifferences(Command* command, const std::vector<Difference>& differences,
                      const std::string& left, const std::string& right, size_t hashes_max) {
  Table table({"HOLDER", "DOMAIN", "TIER", "CLASS", "ONLY LEFT>", "ONLY RIGHT>", "FIRST HASHES"});
  for (const Difference& difference : differences) {
    const auto& [domain, holder] = difference.holder;
    std::string first;
    Json json = {{"model", domain.model},
                 {"tenant", domain.tenant},
                 {"holder", holder.name},
                 {"rank", holder.rank},
                 {"replica", holder.replica},
                 {"tier", TierText(difference.tier)},
                 {"sides", difference.sides},
                 {"class", ClassOf(difference)},
                 {"left", left},
                 {"right", right},
                 {"only_left", difference.only_left.size()},
                 {"only_right", difference.only_right.size()}};
    for (const auto& [field, sign, blocks] :
         {std::tuple("first_only_left", "<", &difference.only_left),
          std::tuple("first_only_right", ">", &difference.only_right)}) {
      json[field] = Json::array();
      for (const uint64_t block : *blocks) {
        if (json[field].size() == hashes_max) break;
        json[field].push_back(Hex(block));
        first += (first.empty() ? "" : " ") + std::string(sign) + Hex(block);
      }
    }
    command->PrintJson(json);
    const std::string tier = TierText(difference.tier);
    table.Add({HolderText(holder), DomainName(domain), tier, ClassOf(difference),
               Grouped(difference.only_left.size()), Grouped(difference.only_right.size()), first});
  }
  if (!command->table()) return;
  command->out() << "left " << left << ", right " << right << '\n';
  table.Print(command->out());
}

// Trust that is not exact explains a difference.
void PrintDoubts(const Command& command, const std::string& who, const AllHoldings& all) {
  if (!command.table()) return;
  for (const auto& [holder, of] : all)
    if (!of.trust.empty() && of.trust != "exact")
      command.out() << who << ": " << Shown(HolderText(holder.second)) << " is " << of.trust
                    << '\n';
}

// Holdings: a block in two tiers counts twice.
uint64_t BlocksOf(const AllHoldings& all) {
  uint64_t blocks = 0;
  for (const auto& [holder, of] : all) {
    for (const auto& tier : of.blocks) blocks += tier.size();
    for (const auto& [side, tiers] : of.sides)
      for (const auto& tier : tiers) blocks += tier.size();
  }
  return blocks;
}

}  // namespace

int RunDump(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("dump", "Who holds what: runs of blocks, holder by holder.", io);
  std::string from = kDefaultSource;
  std::string worker;
  command.TakeWords("[SOURCE]");
  command.flags().Add("from", &from, kSourceHelp);
  command.flags().Add("worker", &worker, "only this worker, or cell");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  if (command.words().size() > 1) return command.Usage("expected one source");
  if (!command.words().empty()) from = command.words()[0];
  const absl::StatusOr<Source> source = Source::Parse(from);
  if (!source.ok()) return command.Usage("--from: " + std::string(source.status().message()));
  Table table({"HOLDER", "DOMAIN", "TIER", "POSITION>", "BLOCKS>", "FIRST", "LAST"});
  uint64_t holders = 0, blocks = 0;
  // Printed piece by piece: a dump may be larger than memory; the table alone is kept.
  const absl::Status status = ReadSource(
      *source, FilterOf(command, worker), command.timeout(), [&](const v1::DumpResponse& piece) {
        command.PrintJson(piece);
        holders += piece.last_of_worker();
        for (const v1::Stored& run : piece.stored()) {
          if (run.blocks_size() == 0) continue;
          blocks += static_cast<uint64_t>(run.blocks_size());
          if (!command.table()) continue;
          const std::string side = SideTextOf(piece, run);
          table.Add({HolderText(piece.worker()), DomainName(piece.domain()),
                     TierText(static_cast<Tier>(run.tier() % kTiers)),
                     run.side() == 0 ? Grouped(run.position())
                     : side.empty()  ? "side"
                                     : side,
                     Grouped(static_cast<uint64_t>(run.blocks_size())), Hex(run.blocks(0)),
                     Hex(run.blocks(run.blocks_size() - 1))});
        }
      });
  if (!status.ok()) return command.Fail(status);
  if (!command.table()) return command.Done();
  table.Print(command.out());
  command.out() << Grouped(holders) << (holders == 1 ? " holder, " : " holders, ")
                << Grouped(blocks) << " holdings at " << source->ToString() << '\n';
  return command.Done();
}

int RunDiff(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "diff", "How two tellers differ: a leaf, its replica, a relay, a checkpoint, a dump.", io);
  std::string left_text = kDefaultSource, right_text, worker;
  uint32_t hashes_max = 3, tries = 3;
  Duration again_after = std::chrono::milliseconds(500);
  command.TakeWords("[SOURCE SOURCE]");
  command.flags().Add("left", &left_text, kSourceHelp);
  command.flags().Add("right", &right_text, "the same");
  command.flags().Add("worker", &worker, "only this worker, or cell");
  command.flags().Add("hashes", &hashes_max, "how many hashes are named of each difference");
  command.flags().Add("tries", &tries, "looks until a difference counts: streams move meanwhile", 1,
                      1000);
  command.flags().Add("again_after", &again_after, "time between two looks");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  if (!command.words().empty() && command.words().size() != 2)
    return command.Usage("expected two sources, or --left and --right");
  if (!command.words().empty()) {
    left_text = command.words()[0];
    right_text = command.words()[1];
  }
  if (right_text.empty()) return command.Usage("--right is missing");
  const absl::StatusOr<Source> left = Source::Parse(left_text), right = Source::Parse(right_text);
  if (!left.ok()) return command.Usage("--left: " + std::string(left.status().message()));
  if (!right.ok()) return command.Usage("--right: " + std::string(right.status().message()));
  const DumpFilter filter = FilterOf(command, worker);
  std::vector<Difference> differences;
  // The first look without a difference ends it. Beside a relay only its own workers are compared.
  for (uint32_t look = 0; look < tries; ++look) {
    if (look > 0) std::this_thread::sleep_for(again_after);
    const absl::StatusOr<AllHoldings> a = LoadSource(*left, filter, command.timeout());
    if (!a.ok()) return command.Fail(a.status());
    const absl::StatusOr<AllHoldings> b = LoadSource(*right, filter, command.timeout());
    if (!b.ok()) return command.Fail(b.status());
    std::vector<Difference> now =
        Compare(*a, *b, left->kind == SourceKind::kRelay, right->kind == SourceKind::kRelay);
    differences = look == 0 ? std::move(now) : Persisting(differences, now);
    if (differences.empty()) {
      if (command.table())
        command.out() << "equal: " << Grouped(BlocksOf(*a)) << " holdings at " << left->ToString()
                      << ", " << Grouped(BlocksOf(*b)) << " at " << right->ToString() << '\n';
      return command.Done();
    }
    if (look + 1 < tries) continue;
    PrintDifferences(&command, differences, left->ToString(), right->ToString(), hashes_max);
    const bool node = left->kind == SourceKind::kHierarchy;
    if (command.table() && node != (right->kind == SourceKind::kHierarchy))
      command.out() << "a hierarchy node holds waypoints of cells, and the other source blocks of "
                       "workers: these are never equal\n";
    PrintDoubts(command, left->ToString(), *a);
    PrintDoubts(command, right->ToString(), *b);
  }
  const int done = command.Done();
  return done == kExitOk ? kExitDifferent : done;
}

// Writing may take long, hence the timeout of dumps.
int RunCheckpoint(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("checkpoint", "Has a leaf write a checkpoint now, and waits until it is durable.",
                  io);
  Address leaf_http = kLeafHttp;
  command.AddServices({ServiceRole::kLeaf, ServiceRole::kServe}, 1);
  command.flags().Add("leaf_http", &leaf_http, "address of the leaf");
  if (const auto exit = command.Parse(arguments)) return *exit;
  const absl::StatusOr<Address> at = command.Find(ServiceRole::kLeaf, Plane::kHttp, leaf_http);
  if (!at.ok()) return command.Fail(at.status());
  const absl::StatusOr<std::string> body =
      HttpBody("leaf", *at, "POST", "/checkpoint", "", command.timeout() * kDumpTimeouts);
  if (!body.ok()) return command.Fail(body.status());
  const Json answer = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object())
    return command.Fail(
        absl::FailedPreconditionError("leaf " + at->ToString() + ": the answer is no report"));
  command.PrintJson(answer);
  if (!command.table()) return command.Done();
  Table table({"WHAT", "VALUE>"});
  for (const auto& [name, value] : answer.items()) {
    const std::string text = value.is_string()            ? value.get<std::string>()
                             : value.is_number_unsigned() ? Grouped(value.get<uint64_t>())
                                                          : value.dump();
    table.Add({name, text});
  }
  table.Print(command.out());
  return command.Done();
}

}  // namespace kvatlas
