// query, explain: who has how much of a prompt, and why. A prompt of text is made tokens of first
// (`MakeTokens`); then a leaf, a node or a frontend is asked in its own form: token ids, sequence
// hashes, or waypoints.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "indexer/base/waypoints.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/holdings.h"
#include "tools/kvatlas/prompt.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/table.h"
#include "tools/kvatlas/text_prompt.h"

namespace kvatlas {
namespace {

const Address kLeaf{"127.0.0.1", 7410};
const Address kLeafHttp{"127.0.0.1", 8090};

std::string OneDecimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// Running and waiting requests, "3+1".
std::string LoadText(const v1::Load& load, bool there) {
  if (!there) return "-";
  return std::to_string(load.running_requests()) + "+" + std::to_string(load.waiting_requests());
}

void SetDomain(const Command& command, v1::Domain* domain) {
  domain->set_model(command.model());
  domain->set_tenant(command.tenant());
}

// 0: every tier. INVALID_ARGUMENT: no such tier.
absl::StatusOr<uint32_t> TierBits(const std::vector<std::string>& names) {
  uint32_t bits = 0;
  for (const std::string& name : names) {
    int tier = 0;
    while (tier < kTiers && name != TierText(static_cast<Tier>(tier))) ++tier;
    if (tier == kTiers)
      return absl::InvalidArgumentError("--tiers: \"" + name +
                                        "\" is not device, host, disk or external");
    bits |= 1u << tier;
  }
  return bits;
}

// REQUIRES: the numbers are token ids, which `AskedPromptFlags::Read` has checked.
void SetTokens(const AskedPrompt& prompt, v1::Tokens* tokens) {
  tokens->mutable_ids()->Reserve(static_cast<int>(prompt.numbers.size()));
  for (const uint64_t number : prompt.numbers) tokens->add_ids(static_cast<uint32_t>(number));
  tokens->set_lora_name(prompt.lora_name);
  tokens->set_cache_salt(prompt.cache_salt);
}

// ---- query ----

// The leaf hashes token ids itself; hashes go as they are.
int QueryLeaf(Command* command, const Address& leaf, const AskedPrompt& prompt,
              v1::FindOverlapsRequest request) {
  SetDomain(*command, request.mutable_domain());
  if (prompt.form == AskedForm::kTokens) SetTokens(prompt, request.mutable_tokens());
  auto* const hashes = prompt.form == AskedForm::kHashes ? request.mutable_sequence_hashes()
                                                         : request.mutable_local_hashes();
  if (prompt.form != AskedForm::kTokens) hashes->Add(prompt.numbers.begin(), prompt.numbers.end());
  const HolderService service(ServiceRole::kLeaf, leaf, command->timeout());
  const absl::StatusOr<v1::FindOverlapsResponse> answer = service.FindOverlaps(request);
  if (!answer.ok()) return command->Fail(answer.status());
  Table table({"WORKER", "BLOCKS>", "OF>", "TOKENS>", "TRUST*", "AGE>", "RUNNING+WAITING>"});
  for (const v1::WorkerOverlap& worker : answer->workers()) {
    const uint64_t tokens = uint64_t{worker.blocks()} * answer->block_size();
    command->PrintJson({{"worker", worker.worker().name()},
                        {"rank", worker.worker().rank()},
                        {"blocks", worker.blocks()},
                        {"of", answer->blocks()},
                        {"tokens", tokens},
                        {"trust", TrustText(worker.trust())},
                        {"age_ms", worker.age_ms()}});
    table.Add({HolderText(worker.worker()), Grouped(worker.blocks()), Grouped(answer->blocks()),
               Grouped(tokens), TrustText(worker.trust()), ShortMs(worker.age_ms()),
               LoadText(worker.load(), worker.has_load())});
  }
  if (!command->table()) return command->Done();
  table.Print(command->out(), command->colours());
  if (table.rows() == 0)
    command->out() << "no holder has the first of " << Grouped(answer->blocks()) << " blocks\n";
  return command->Done();
}

// The block size of the domain at a node: hashes are made here, as a node takes waypoints alone.
// NOT_FOUND: the domain is unknown there.
absl::StatusOr<uint32_t> BlockSizeAt(const Command& command, const HolderService& service) {
  const absl::StatusOr<v1::StatsResponse> stats = service.Stats();
  if (!stats.ok()) return stats.status();
  for (const v1::DomainStats& domain : stats->domains())
    if (domain.domain().model() == command.model() && domain.domain().tenant() == command.tenant())
      return domain.block_size();
  return absl::NotFoundError(service.name() + ": domain " +
                             DomainName({command.model(), command.tenant()}) +
                             " was never announced");
}

// Hashes the prompt, selects the waypoints of the schedule, and asks for cells. A node with another
// schedule refuses the question.
int QueryHierarchy(Command* command, const Address& hierarchy, const AskedPrompt& prompt,
                   const WaypointSchedule& schedule, uint32_t best) {
  const HolderService service(ServiceRole::kHierarchy, hierarchy, command->timeout());
  const absl::StatusOr<uint32_t> block_size = BlockSizeAt(*command, service);
  if (!block_size.ok()) return command->Fail(block_size.status());
  const absl::StatusOr<std::vector<SequenceHash>> sequence = prompt.Sequence(*block_size);
  if (!sequence.ok()) return command->Fail(sequence.status());
  v1::FindCellsRequest request;
  SetDomain(*command, request.mutable_domain());
  for (const SequenceHash hash : schedule.Select(*sequence)) request.add_waypoint_hashes(Raw(hash));
  request.set_blocks(static_cast<uint32_t>(sequence->size()));
  request.set_schedule(schedule.Name());
  request.set_best(best);
  const absl::StatusOr<v1::FindCellsResponse> answer = service.FindCells(request);
  if (!answer.ok()) return command->Fail(answer.status());
  Table table(
      {"CELL", "ADDRESS", "AT LEAST>", "BELOW>", "OF>", "TRUST*", "AGE>", "RUNNING+WAITING>"});
  for (const v1::CellCoverage& cell : answer->cells()) {
    command->PrintJson({{"cell", cell.cell().name()},
                        {"replica", cell.cell().replica()},
                        {"address", cell.address()},
                        {"blocks_at_least", cell.blocks_at_least()},
                        {"blocks_below", cell.blocks_below()},
                        {"of", sequence->size()},
                        {"trust", TrustText(cell.trust())},
                        {"age_ms", cell.age_ms()}});
    table.Add({HolderText(cell.cell()), cell.address(), Grouped(cell.blocks_at_least()),
               Grouped(cell.blocks_below()), Grouped(sequence->size()), TrustText(cell.trust()),
               ShortMs(cell.age_ms()), LoadText(cell.load(), cell.has_load())});
  }
  if (!command->table()) return command->Done();
  table.Print(command->out(), command->colours());
  if (table.rows() == 0) command->out() << "no cell is known\n";
  return command->Done();
}

// ---- explain ----

// The body of the leaf's POST /explain. Local hashes are signed 64-bit numbers there.
std::string LeafQuestion(const Command& command, const AskedPrompt& prompt) {
  Json body = {{"model_name", command.model()},
               {"routing_group", command.tenant().empty() ? "default" : command.tenant()}};
  if (prompt.form == AskedForm::kTokens) {
    body["token_ids"] = prompt.numbers;
    if (!prompt.lora_name.empty()) body["lora_name"] = prompt.lora_name;
    if (!prompt.cache_salt.empty()) body["cache_salt"] = prompt.cache_salt;
  } else {
    body["block_hashes"] = Json::array();
    for (const uint64_t hash : prompt.numbers)
      body["block_hashes"].push_back(static_cast<int64_t>(hash));
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A table's cell of a JSON field; "-": it is missing or null.
std::string CellOf(const Json& json, const char* field) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) return "-";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

// A hash: a text, or a number in answers of earlier releases.
std::optional<uint64_t> HashOf(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  uint64_t hash = 0;
  if (json.is_string() && absl::SimpleAtoi(json.get<std::string>(), &hash)) return hash;
  return std::nullopt;
}

// Per worker the blocks by tier and where the first hole is; for hybrid models also a strip per
// cache class. Below, the one line that matters: where the prefix ends, and whether for want of
// main blocks or of side blocks (`held_max` is what full attention holds).
void PrintExplanation(const Json& answer, std::ostream& out) {
  Table table({"WORKER", "BLOCKS>", "DEVICE>", "HOST>", "DISK>", "EXTERNAL>", "FIRST HOLE>",
               "BEHIND IT>", "TRUST*", "AGE MS>"});
  Table classes(
      {"WORKER", "CLASS", "BLOCK>", "ACCEPTS>", "HELD>", "REUSABLE>", "ENDED BY", "MAIN BLOCKS"});
  uint64_t held_max = 0;
  for (const Json& rank : answer["ranks"]) {
    const Json& blocks = rank["blocks"];
    if (const auto held = blocks.find("held"); held != blocks.end() && held->is_number_unsigned())
      held_max = std::max(held_max, held->get<uint64_t>());
    std::string worker = CellOf(rank, "instance");
    if (const std::string number = CellOf(rank, "rank"); number != "0") worker += "/" + number;
    table.Add({worker, CellOf(blocks, "any"), CellOf(blocks, "device"), CellOf(blocks, "host"),
               CellOf(blocks, "disk"), CellOf(blocks, "external"), CellOf(rank, "first_hole"),
               CellOf(rank, "blocks_behind_hole"), CellOf(blocks, "trust"),
               CellOf(blocks, "age_ms")});
    const auto of_rank = rank.find("classes");
    if (of_rank == rank.end() || !of_rank->is_array()) continue;
    std::string held = CellOf(blocks, "held"), reusable = CellOf(blocks, "any");
    std::string ended_by = CellOf(rank, "ended_by");
    for (const Json& strip : *of_rank) {
      classes.Add({worker, CellOf(strip, "class"), CellOf(strip, "block_size"),
                   CellOf(strip, "accepts"), held, reusable, ended_by, CellOf(strip, "held")});
      worker = held = reusable = ended_by = "";  // once a worker
    }
  }
  table.Print(out);
  if (classes.rows() > 0) {
    out << '\n';
    classes.Print(out);
    out << "# the class has all blocks that end there, + some, . none, - it has no end there\n\n";
  }
  out << CellOf(answer, "blocks") << " blocks of " << CellOf(answer, "block_size")
      << " tokens, contract " << CellOf(answer, "contract") << '\n';
  const auto diverges = answer.find("diverges_at");
  if (diverges == answer.end() || diverges->is_null()) {
    out << "a holder has all of it\n";
    return;
  }
  // The main blocks go on, so a side class ended the prefix.
  if (diverges->is_number_unsigned() && diverges->get<uint64_t>() < held_max) {
    out << "no holder can reuse more than " << diverges->dump() << " blocks; full attention holds "
        << held_max << '\n';
    return;
  }
  out << "no holder has block " << diverges->dump();
  const Json& path = answer["path"];
  if (!path.empty() && path.back()["position"] == *diverges) {
    const std::optional<uint64_t> hash = HashOf(path.back()["sequence_hash"]);
    if (hash.has_value()) out << ", " << Hex(*hash);
  }
  out << (*diverges == 0 ? "\n" : " after those before it\n");
}

int ExplainLeaf(Command* command, const Address& leaf_http, const AskedPrompt& prompt) {
  const absl::StatusOr<std::string> body = HttpBody(
      "leaf", leaf_http, "POST", "/explain", LeafQuestion(*command, prompt), command->timeout());
  if (!body.ok()) return command->Fail(body.status());
  const Json answer = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  const bool is_one = answer.is_object() && answer.contains("ranks") &&
                      answer["ranks"].is_array() && answer.contains("path") &&
                      answer["path"].is_array();
  if (!is_one)
    return command->Fail(absl::FailedPreconditionError("leaf " + leaf_http.ToString() +
                                                       ": the answer is no explanation"));
  command->PrintJson(answer);
  if (command->table()) PrintExplanation(answer, command->out());
  return command->Done();
}

// The cells that were asked, the candidates with the parts of their costs, and the choice.
void PrintRoute(const v1::RouteResponse& route, std::ostream& out) {
  const v1::Receipt& receipt = route.receipt();
  Table cells({"CELL", "ADDRESS", "AT LEAST>", "BELOW>", "BEST FOUND>", "AGE>", "TOOK>", "ERROR"});
  for (const v1::CellAsked& cell : receipt.cells())
    cells.Add({cell.cell(), cell.address(), Grouped(cell.blocks_at_least()),
               Grouped(cell.blocks_below()), Grouped(cell.best_blocks()), ShortMs(cell.age_ms()),
               Grouped(cell.us()) + " us", cell.error()});
  cells.Print(out);
  if (cells.rows() > 0) out << '\n';
  Table table({"", "WORKER", "CELL", "BLOCKS>", "COST>", "PREFILL>", "QUEUE>", "DECODE>",
               "DISTANCE>", "TRUST*", "AGE>"});
  for (const v1::Candidate& candidate : receipt.candidates()) {
    const bool chosen = candidate.worker().name() == route.worker().name() &&
                        candidate.worker().rank() == route.worker().rank() &&
                        candidate.cell() == route.cell();
    table.Add({chosen ? "*" : "", HolderText(candidate.worker()), candidate.cell(),
               Grouped(candidate.overlap_blocks()), OneDecimal(candidate.cost()),
               OneDecimal(candidate.prefill_cost()), OneDecimal(candidate.queue_cost()),
               OneDecimal(candidate.decode_cost()), OneDecimal(candidate.distance_cost()),
               TrustText(candidate.trust()), ShortMs(candidate.age_ms())});
  }
  table.Print(out);
  out << Shown(HolderText(route.worker())) << " of " << Shown(route.cell()) << ", "
      << Grouped(route.overlap_blocks()) << " of " << Grouped(receipt.blocks()) << " blocks; "
      << Grouped(receipt.candidates_considered()) << " considered in "
      << Grouped(receipt.total_us()) << " us";
  if (receipt.fallback() != v1::FALLBACK_NONE) out << "; fallback: " << Shown(receipt.reason());
  out << '\n';
}

// A frontend takes tokens, or sequence hashes; local hashes are chained here, which needs no block
// size.
int ExplainFrontend(Command* command, const Address& frontend, const AskedPrompt& prompt) {
  v1::RouteRequest request;
  SetDomain(*command, request.mutable_domain());
  if (prompt.form == AskedForm::kTokens) {
    SetTokens(prompt, request.mutable_tokens());
  } else {
    const absl::StatusOr<std::vector<SequenceHash>> sequence = prompt.Sequence(0);
    if (!sequence.ok()) return command->Fail(sequence.status());
    for (const SequenceHash hash : *sequence) request.add_sequence_hashes(Raw(hash));
  }
  const absl::StatusOr<v1::RouteResponse> route = AskRoute(frontend, request, command->timeout());
  if (!route.ok()) return command->Fail(route.status());
  command->PrintJson(*route);
  if (command->table()) PrintRoute(*route, command->out());
  return command->Done();
}

}  // namespace

int RunQuery(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("query",
                  "Who has how many leading blocks of a prompt: workers of a leaf, or cells.", io);
  Address leaf = kLeaf;
  std::vector<Address> hierarchy;
  std::vector<std::string> tiers;
  std::string schedule_name = WaypointSchedule::Standard().Name();
  uint32_t best = 0;
  bool all = false;
  command.AddServices({ServiceRole::kLeaf, ServiceRole::kHierarchy, ServiceRole::kServe}, 1);
  command.AddWatch();
  command.flags().Add("leaf", &leaf, "address of the leaf");
  command.flags().Add("hierarchy", &hierarchy, "address of a node, to ask that for cells");
  command.AddDomain(/*required=*/true);
  AskedPromptFlags prompt_flags(&command.flags());
  command.flags().Add("tiers", &tiers, "device,host,disk,external: only blocks in these");
  command.flags().Add("best", &best, "only the best so many; 0: all");
  command.flags().Add("all", &all, "workers without overlap too");
  command.flags().Add("schedule", &schedule_name, "the node's waypoint schedule");
  if (const auto exit = command.Parse(arguments)) return *exit;
  absl::StatusOr<AskedPrompt> prompt = prompt_flags.Read(io.in);
  if (!prompt.ok()) return command.Usage(std::string(prompt.status().message()));
  const absl::StatusOr<uint32_t> tier_bits = TierBits(tiers);
  if (!tier_bits.ok()) return command.Usage(std::string(tier_bits.status().message()));
  const absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(schedule_name);
  if (!schedule.ok())
    return command.Usage("--schedule: " + std::string(schedule.status().message()));
  if (hierarchy.size() > 1) return command.Usage("--hierarchy: one node is asked");
  const bool of_cells = command.Names(ServiceRole::kHierarchy) || !hierarchy.empty();
  const absl::StatusOr<Address> at =
      of_cells ? command.Find(ServiceRole::kHierarchy, Plane::kGrpc,
                              hierarchy.empty() ? Address() : hierarchy[0])
               : command.Find(ServiceRole::kLeaf, Plane::kGrpc, leaf);
  if (!at.ok()) return command.Fail(at.status());
  if (absl::Status bad = MakeTokens(command.model(), command.tenant(), {prompt_flags.tokenizer()},
                                    command.timeout(), &*prompt);
      !bad.ok())
    return command.Fail(bad);
  if (!of_cells) {
    v1::FindOverlapsRequest request;
    request.set_tiers(*tier_bits);
    request.set_best(best);
    request.set_all_workers(all);
    return QueryLeaf(&command, *at, *prompt, std::move(request));
  }
  return QueryHierarchy(&command, *at, *prompt, *schedule, best);
}

int RunExplain(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "explain",
      "Why: block by block who has what at a leaf, or a frontend's choice and its costs.", io);
  Address leaf_http = kLeafHttp;
  std::vector<Address> frontend;
  command.AddServices({ServiceRole::kLeaf, ServiceRole::kFrontend, ServiceRole::kServe}, 1);
  command.AddWatch();
  command.flags().Add("leaf_http", &leaf_http, "address of the leaf");
  command.flags().Add("frontend", &frontend, "address of a frontend, to ask that for its choice");
  command.AddDomain(/*required=*/true);
  AskedPromptFlags prompt_flags(&command.flags());
  if (const auto exit = command.Parse(arguments)) return *exit;
  absl::StatusOr<AskedPrompt> prompt = prompt_flags.Read(io.in);
  if (!prompt.ok()) return command.Usage(std::string(prompt.status().message()));
  if (frontend.size() > 1) return command.Usage("--frontend: one frontend is asked");
  const bool choice = command.Names(ServiceRole::kFrontend) || command.Names(ServiceRole::kServe) ||
                      !frontend.empty();
  if (!choice && prompt->form == AskedForm::kHashes)
    return command.Usage("a leaf explains --tokens or --local_hashes");
  // Not used where a word names the service.
  const Address named = frontend.empty() ? Address() : frontend[0];
  const absl::StatusOr<Address> at =
      choice ? command.Find(ServiceRole::kFrontend, Plane::kGrpc, named)
             : command.Find(ServiceRole::kLeaf, Plane::kHttp, leaf_http);
  if (!at.ok()) return command.Fail(at.status());
  // Tokens of a text are made by the frontend that explains, unless --tokenizer says otherwise.
  std::optional<Address> asked;  // its tokenizer is the one that counts
  if (choice) asked = command.services().empty() ? named : command.services()[0].address;
  if (absl::Status bad = MakeTokens(command.model(), command.tenant(),
                                    {prompt_flags.tokenizer(), asked}, command.timeout(), &*prompt);
      !bad.ok())
    return command.Fail(bad);
  if (choice) return ExplainFrontend(&command, *at, *prompt);
  return ExplainLeaf(&command, *at, *prompt);
}

}  // namespace kvatlas
