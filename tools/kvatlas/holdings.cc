// Every source is read as pieces of a dump (`v1::DumpResponse`), whatever its own form is: gRPC
// sends them, a relay and a file have them as lines of JSON, a checkpoint is turned into them.
// `LoadSource` puts the pieces together, `Compare` and `Persisting` are set operations on the
// result.

#include "tools/kvatlas/holdings.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "indexer/base/address.h"
#include "indexer/base/cache_class_text.h"
#include "indexer/transport/wire.h"
#include "tools/kvatlas/checkpoint_holdings.h"
#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/services.h"

namespace kvatlas {
namespace {

constexpr std::pair<std::string_view, SourceKind> kKinds[] = {
    {"leaf", SourceKind::kLeaf},
    {"hierarchy", SourceKind::kHierarchy},
    {"relay", SourceKind::kRelay},
    {"file", SourceKind::kFile},
    {"checkpoint", SourceKind::kCheckpoint},
};

using Visit = std::function<void(const v1::DumpResponse&)>;

// Without a model the request names no domain, and gets all.
v1::DumpRequest RequestOf(const DumpFilter& filter) {
  v1::DumpRequest request;
  if (!filter.model.empty()) {
    request.mutable_domain()->set_model(filter.model);
    request.mutable_domain()->set_tenant(filter.tenant);
  }
  request.set_worker(filter.worker);
  return request;
}

// One line is one piece. DATA_LOSS names the line that is none. Unknown fields are ignored, so that
// dumps of later versions can be read.
absl::Status ReadLines(const std::string& name, std::istream& lines, const DumpFilter& filter,
                       const Visit& visit) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  std::string line;
  // A file with other domains only is NOT_FOUND, like a service that does not know the domain.
  bool domain_seen = filter.model.empty();
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    v1::DumpResponse piece;
    const auto parsed = google::protobuf::util::JsonStringToMessage(line, &piece, options);
    if (!parsed.ok() || !piece.has_domain() || !piece.has_worker())
      return absl::DataLossError(name + ": line " + std::to_string(number) +
                                 " is no piece of a dump");
    const v1::Domain& domain = piece.domain();
    domain_seen = domain_seen || filter.Wants(domain.model(), domain.tenant());
    if (filter.Wants(domain.model(), domain.tenant(), piece.worker().name())) visit(piece);
  }
  if (domain_seen) return absl::OkStatus();
  return absl::NotFoundError(name + ": domain " + DomainName({filter.model, filter.tenant}) +
                             " is not in it");
}

// The port that the source needs, found by `Located`.
absl::StatusOr<Address> AddressOf(const Source& source, ServiceRole role, Plane plane,
                                  Duration timeout) {
  absl::StatusOr<Address> address = Address::Parse(source.where);
  if (!address.ok()) return address;
  return Located({role, *std::move(address)}, plane, timeout);
}

// The relay filters itself, so the lines are taken as they are. Its whole dump is in memory once.
absl::Status ReadRelay(const Source& source, const DumpFilter& filter, Duration timeout,
                       const Visit& visit) {
  const absl::StatusOr<Address> address =
      AddressOf(source, ServiceRole::kRelay, Plane::kHttp, timeout);
  if (!address.ok()) return address.status();
  std::string target = "/dump?worker=" + UrlEncoded(filter.worker);
  if (!filter.model.empty())
    target += "&model=" + UrlEncoded(filter.model) + "&tenant=" + UrlEncoded(filter.tenant);
  const absl::StatusOr<std::string> body = HttpBody("relay", *address, "GET", target, "", timeout);
  if (!body.ok()) return body.status();
  std::istringstream lines(*body);
  return ReadLines("relay " + source.where, lines, {}, visit);
}

absl::Status ReadFile(const Source& source, const DumpFilter& filter, const Visit& visit) {
  std::ifstream file(source.where);
  if (!file) return absl::NotFoundError("file " + source.where + " cannot be read");
  return ReadLines("file " + source.where, file, filter, visit);
}

// Side blocks of unknown class are taken to be of the class that the other source says. A side
// block's name contains its class, so a name cannot be of two classes.
void LearnClasses(const HoldingsOf& other, HoldingsOf* of) {
  const auto unknown = of->sides.find("");
  if (unknown == of->sides.end()) return;
  std::map<uint64_t, const std::string*> classes;
  for (const auto& [side, tiers] : other.sides)
    for (const std::set<uint64_t>& names : tiers)
      for (const uint64_t name : names) classes.emplace(name, &side);
  const auto names = std::exchange(unknown->second, {});
  for (size_t tier = 0; tier < kTiers; ++tier) {
    for (const uint64_t name : names[tier]) {
      const auto known = classes.find(name);
      of->sides[known == classes.end() ? "" : *known->second][tier].insert(name);
    }
  }
}

// The blocks in `a` and not in `b`.
std::set<uint64_t> Without(const std::set<uint64_t>& a, const std::set<uint64_t>& b) {
  std::set<uint64_t> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(rest, rest.end()));
  return rest;
}

std::set<uint64_t> InBoth(const std::set<uint64_t>& a, const std::set<uint64_t>& b) {
  std::set<uint64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

}  // namespace

bool DumpFilter::Wants(const std::string& its_model, const std::string& its_tenant) const {
  return model.empty() || (its_model == model && its_tenant == tenant);
}

bool DumpFilter::Wants(const std::string& its_model, const std::string& its_tenant,
                       const std::string& its_worker) const {
  return Wants(its_model, its_tenant) && (worker.empty() || its_worker == worker);
}

// A path may hold anything, '=' too; an address is checked here.
absl::StatusOr<Source> Source::Parse(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string where(equals == std::string_view::npos ? "" : text.substr(equals + 1));
  for (const auto& [name, kind] : kKinds) {
    if (text.substr(0, equals) != name || where.empty()) continue;
    const bool is_address = kind != SourceKind::kFile && kind != SourceKind::kCheckpoint;
    if (is_address && !Address::Parse(where).ok()) break;
    return Source{.kind = kind, .where = where};
  }
  return absl::InvalidArgumentError(
      "\"" + std::string(text) +
      "\" is not leaf=HOST:PORT, hierarchy=HOST:PORT, relay=HOST:PORT, file=PATH or "
      "checkpoint=PATH");
}

std::string Source::ToString() const {
  for (const auto& [name, of] : kKinds)
    if (of == kind) return std::string(name) + "=" + where;
  return where;
}

// A leaf and a node have the same Dump over gRPC.
absl::Status ReadSource(const Source& source, const DumpFilter& filter, Duration timeout,
                        const Visit& visit) {
  switch (source.kind) {
    case SourceKind::kRelay:
      return ReadRelay(source, filter, timeout, visit);
    case SourceKind::kFile:
      return ReadFile(source, filter, visit);
    case SourceKind::kCheckpoint:
      return ReadCheckpointHoldings(source.where, filter, visit);
    case SourceKind::kLeaf:
    case SourceKind::kHierarchy:
      break;
  }
  const ServiceRole role =
      source.kind == SourceKind::kLeaf ? ServiceRole::kLeaf : ServiceRole::kHierarchy;
  const absl::StatusOr<Address> address = AddressOf(source, role, Plane::kGrpc, timeout);
  if (!address.ok()) return address.status();
  return HolderService(role, *address, timeout).Dump(RequestOf(filter), visit);
}

// The first piece that cannot be read decides the error, after all pieces have come.
absl::StatusOr<AllHoldings> LoadSource(const Source& source, const DumpFilter& filter,
                                       Duration timeout) {
  AllHoldings all;
  absl::Status wrong;
  absl::Status status = ReadSource(source, filter, timeout, [&](const v1::DumpResponse& piece) {
    HolderKey key;
    wrong.Update(FromProto(piece.domain(), &key.first));
    wrong.Update(FromProto(piece.worker(), &key.second));
    if (!wrong.ok()) return;
    HoldingsOf& of = all[key];
    // Pieces of one holder say the same; the last one counts.
    of.trust = TrustText(piece.trust());
    for (const v1::Stored& stored : piece.stored()) {
      Tier tier = Tier::kDevice;
      wrong.Update(FromProto(stored.tier(), &tier));
      auto& tiers = stored.side() != 0 ? of.sides[SideTextOf(piece, stored)] : of.blocks;
      tiers[static_cast<size_t>(tier)].insert(stored.blocks().begin(), stored.blocks().end());
    }
  });
  status.Update(wrong);
  if (!status.ok()) return status;
  return all;
}

// Holder by holder, tier by tier: main blocks first, then each class of side blocks that either
// side has. Copies of the two holders are needed, since `LearnClasses` changes them.
std::vector<Difference> Compare(const AllHoldings& left, const AllHoldings& right,
                                bool only_holders_of_left, bool only_holders_of_right) {
  const HoldingsOf nothing;
  std::set<HolderKey> holders;
  for (const auto& [holder, of] : left)
    if (!only_holders_of_right || right.contains(holder)) holders.insert(holder);
  for (const auto& [holder, of] : right)
    if (!only_holders_of_left || left.contains(holder)) holders.insert(holder);
  std::vector<Difference> differences;
  const auto compare = [&](const HolderKey& holder, const std::string* side, const auto& a,
                           const auto& b) {
    for (size_t tier = 0; tier < kTiers; ++tier) {
      Difference difference{.holder = holder,
                            .tier = static_cast<Tier>(tier),
                            .sides = side != nullptr,
                            .side = side == nullptr ? "" : *side,
                            .only_left = Without(a[tier], b[tier]),
                            .only_right = Without(b[tier], a[tier])};
      if (!difference.only_left.empty() || !difference.only_right.empty())
        differences.push_back(std::move(difference));
    }
  };
  for (const HolderKey& holder : holders) {
    const auto in_left = left.find(holder), in_right = right.find(holder);
    HoldingsOf a = in_left == left.end() ? nothing : in_left->second;
    HoldingsOf b = in_right == right.end() ? nothing : in_right->second;
    compare(holder, nullptr, a.blocks, b.blocks);
    LearnClasses(b, &a);
    LearnClasses(a, &b);
    std::set<std::string> sides;
    for (const HoldingsOf* of : {&a, &b})
      for (const auto& [side, tiers] : of->sides) sides.insert(side);
    for (const std::string& side : sides) compare(holder, &side, a.sides[side], b.sides[side]);
  }
  return differences;
}

// O(before * now), both of which are small: equal sources end the looks.
std::vector<Difference> Persisting(const std::vector<Difference>& before,
                                   const std::vector<Difference>& now) {
  std::vector<Difference> persisting;
  for (const Difference& old : before) {
    for (const Difference& young : now) {
      if (old.holder != young.holder || old.tier != young.tier || old.sides != young.sides ||
          old.side != young.side)
        continue;
      Difference both{.holder = old.holder,
                      .tier = old.tier,
                      .sides = old.sides,
                      .side = old.side,
                      .only_left = InBoth(old.only_left, young.only_left),
                      .only_right = InBoth(old.only_right, young.only_right)};
      if (!both.only_left.empty() || !both.only_right.empty())
        persisting.push_back(std::move(both));
    }
  }
  return persisting;
}

std::string HolderText(const HolderId& holder) {
  std::string text = holder.name;
  if (holder.rank != 0) text += "/" + std::to_string(holder.rank);
  if (!holder.replica.empty()) text += "@" + holder.replica;
  return text;
}

std::string HolderText(const v1::Holder& holder) {
  return HolderText(HolderId{holder.name(), holder.rank(), holder.replica()});
}

std::string DomainName(const Domain& domain) {
  return domain.tenant.empty() ? domain.model : domain.model + "/" + domain.tenant;
}

std::string DomainName(const v1::Domain& domain) {
  return DomainName(Domain{domain.model(), domain.tenant()});
}

std::string SideText(const CacheClass& side, uint32_t main_block_size) {
  if (side.block_size == main_block_size) return ToString(side);
  return ToString(side) + "/" + std::to_string(side.block_size);
}

// "": the piece has no layout, as those of earlier versions, or the run is of the main class.
std::string SideTextOf(const v1::DumpResponse& piece, const v1::Stored& run) {
  CacheLayout layout;
  if (!piece.has_layout() || !FromProto(piece.layout(), &layout, "layout").ok() ||
      run.side() == 0 || run.side() > layout.sides.size())
    return "";
  return SideText(layout.sides[run.side() - 1], layout.has_main ? layout.main.block_size : 0);
}

const char* TierText(Tier tier) {
  constexpr const char* kNames[kTiers] = {"device", "host", "disk", "external"};
  return kNames[static_cast<size_t>(tier)];
}

const char* TrustText(v1::Trust trust) {
  switch (trust) {
    case v1::TRUST_EXACT:
      return "exact";
    case v1::TRUST_DEGRADED:
      return "degraded";
    case v1::TRUST_STALE:
      return "stale";
    default:
      return "";
  }
}

}  // namespace kvatlas
