// Writes a `/dump` piece by piece. A domain is told in passes (`DumpWriter::Step`): workers with
// numbers in Dynamo's form, then, under the key "kvatlas", what that form could not say of them,
// then workers with other names.
// One worker's names are in memory at a time (`NamesOf`), beside the keys of what is left for the
// second pass (`untold_`).

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

// A piece ends with the event that exceeds this; an event has at most `kEventBlocksMax` blocks.
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kEventBlocksMax = 4096;
constexpr int32_t kNone = -1;
constexpr std::array<std::string_view, kTiers> kTierNames = {"device", "host_pinned", "disk",
                                                             "external"};

// One name of one block, copied while its worker stood still. A worker has millions, so texts are
// kept once and referred to by number, and the size is asserted.
struct Name {
  uint64_t hash = 0;
  SequenceHash block{0};
  SequenceHash before{0};  // `EngineAlias::parent`
  LocalHash local{0};
  std::array<uint32_t, kTiers> copies = {};
  uint32_t rank = 0;
  Position position = 0;
  uint32_t group = 0;
  uint32_t cache_namespace = 0;  // in `Names::namespaces`
  int32_t digest = kNone;        // in `Names::digests`
  int32_t parent = kNone;        // the first name of its parent in the same rank, if there is one
  uint32_t eagle = 0;
  bool first = true;      // of its block in its rank
  bool on_chain = false;  // in the device tier with all before it
};
static_assert(sizeof(Name) == 80);

struct Names {
  std::vector<Name> names;  // by rank, position and block: parents before children
  std::vector<std::pair<std::string, std::string>> namespaces;
  std::vector<std::string> digests;
};

// The sort key: names of one block in one rank are neighbours, and parents come before children.
auto PlaceOf(const Name& name) { return std::tuple(name.rank, name.position, Raw(name.block)); }

// Copies all names of a worker within its lock, then sorts them without. Side blocks are left out:
// Dynamo's form has no field for them.
Names NamesOf(const EngineWorker& worker) {
  Names all;
  std::map<std::pair<std::string, std::string>, uint32_t> known;
  // A vector that grows holds them twice.
  size_t count = 0;
  for (const EngineRankStats& rank : worker.Stats().ranks) count += rank.aliases;
  all.names.reserve(count + count / 64);
  worker.ForEachAlias([&](const EngineAlias& alias) {
    if (alias.side) return;  // the format has no field for them
    auto [it, is_new] =
        known.try_emplace({std::string(alias.lora_name), std::string(alias.cache_salt)},
                          static_cast<uint32_t>(known.size()));
    if (is_new) all.namespaces.push_back(it->first);
    Name name{.hash = alias.hash.value,
              .block = alias.block,
              .before = alias.parent,
              .local = alias.local,
              .copies = alias.copies,
              .rank = alias.rank,
              .position = alias.position,
              .group = alias.group,
              .cache_namespace = it->second,
              .eagle = alias.eagle};
    if (!alias.hash.bytes.empty()) {
      name.digest = static_cast<int32_t>(all.digests.size());
      all.digests.emplace_back(alias.hash.bytes);
    }
    all.names.push_back(name);
  });
  std::sort(all.names.begin(), all.names.end(), [](const Name& a, const Name& b) {
    return std::tuple(PlaceOf(a), a.group, a.hash) < std::tuple(PlaceOf(b), b.group, b.hash);
  });
  return all;
}

// Fills `parent`, `first` and `on_chain`, in one pass: names are sorted, so a parent's are
// complete. The parent is found by binary search for the first name at the position before with the
// hash of the parent's block; it may be absent (a hole).
// `on_chain`: Dynamo can load this block in the device tier, because all before it are there too
// and it has a local hash. Only the first name of a block counts: a second one would be another
// block to Dynamo.
void LinkParents(std::vector<Name>* names) {
  for (size_t i = 0; i < names->size(); ++i) {
    Name& name = (*names)[i];
    const bool at_root = name.position == 0;
    if (!at_root) {
      const auto place = std::tuple(name.rank, name.position - 1, Raw(name.before));
      const auto parent =
          std::lower_bound(names->begin(), names->begin() + static_cast<ptrdiff_t>(i), place,
                           [](const Name& at, const auto& wanted) { return PlaceOf(at) < wanted; });
      if (PlaceOf(*parent) == place) name.parent = static_cast<int32_t>(parent - names->begin());
    }
    name.first = i == 0 || PlaceOf((*names)[i - 1]) != PlaceOf(name);
    name.on_chain =
        name.first && name.copies[0] > 0 && Raw(name.local) != 0 &&
        (at_root || (name.parent != kNone && (*names)[static_cast<size_t>(name.parent)].on_chain));
  }
}

// Whether Dynamo's indexer can read this worker id: a 64-bit number in its shortest form.
bool IsNumber(const std::string& name) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
  return parsed.ec == std::errc() && std::to_string(number) == name;
}

class DumpWriter {
 public:
  // Plans all steps at once; workers that are registered later are not in this dump, and those that
  // left are skipped by `Open`.
  explicit DumpWriter(const EngineDirectory* directory) : directory_(directory) {
    const std::vector<EngineEntry> entries = directory->Registrations();
    for (const Domain& domain : directory->Domains()) {
      const std::optional<uint32_t> block_size = directory->BlockSizeOf(domain);
      if (!block_size.has_value()) continue;
      steps_.push_back({.kind = Step::kOpen, .domain = domain, .block_size = *block_size});
      for (const auto kind : {Step::kNumber, Step::kRest, Step::kName}) {
        if (kind == Step::kRest)
          steps_.push_back({.kind = Step::kMiddle, .domain = {}, .instance = {}});
        for (const EngineEntry& entry : entries)
          if (entry.domain == domain && IsNumber(entry.instance) == (kind != Step::kName))
            steps_.push_back({.kind = kind, .domain = {}, .instance = entry.instance});
      }
      steps_.push_back({.kind = Step::kClose, .domain = {}, .instance = {}});
    }
  }

  // Fills `piece` by steps and events until it is long enough. False: this was the last piece. The
  // caller's memory is used for the text (swap).
  bool Next(std::string* piece) {
    std::swap(text_, *piece);
    if (!begun_) text_ += "{";
    begun_ = true;
    const size_t before = text_.size();
    const auto more = [&] { return worker_ != nullptr || at_ < steps_.size(); };
    while (more() && text_.size() < before + kPieceBytes) {
      if (worker_ == nullptr) {
        Take(steps_[at_++]);
      } else {
        Tell();
      }
    }
    if (!more()) text_ += "}";
    std::swap(text_, *piece);
    return more();
  }

 private:
  struct Step {
    // A domain; its workers with numbers; what Dynamo cannot read: the rest of them, and the
    // others; its end.
    enum { kOpen, kNumber, kMiddle, kRest, kName, kClose } kind;
    Domain domain;
    uint32_t block_size = 0;
    std::string instance = {};
  };

  // Writes a step's brackets, or opens its worker.
  void Take(const Step& step) {
    switch (step.kind) {
      case Step::kOpen:
        Comma(&first_domain_);
        OpenDomain(step.domain, step.block_size);
        break;
      case Step::kMiddle:
        text_ += "],\"kvatlas\":{\"events\":[";
        break;
      case Step::kClose:
        text_ += "]}}";
        break;
      case Step::kNumber:
      case Step::kRest:
      case Step::kName:
        Open(step);
    }
  }

  void OpenDomain(const Domain& domain, uint32_t block_size) {
    const std::string group = GroupOf(domain);
    text_ += '"';
    AppendJsonEscaped(&text_, domain.model);
    text_ += ':';
    AppendJsonEscaped(&text_, group);
    text_ += "\":{\"block_size\":" + std::to_string(block_size);
    if (group.find(':') != std::string::npos) {
      Text(",\"model\":", domain.model);
      Text(",\"routing_group\":", group);
    }
    text_ += ",\"events\":[";
    first_event_ = first_rest_ = true;
  }

  // A name in one tier that Dynamo's form cannot say: what the first pass leaves for the second.
  // The name and not its place, since the worker is copied anew for the second pass.
  struct Untold {
    uint64_t hash = 0;
    uint32_t rank = 0;
    uint32_t group = 0;
    int tier = 0;
    friend auto operator<=>(const Untold&, const Untold&) = default;
  };

  // The worker that is being told, and how far.
  struct Telling {
    Names names;
    const Step* step = nullptr;
    std::string id;  // as JSON
    uint64_t event_id = 0;
    // Chains of the first pass: the trees, and the heads that are still to be told.
    std::vector<int32_t> child, sibling, open;
    size_t next = 0;  // name, behind the chains
  };

  // Copies the step's worker. The second pass (`kRest`) is skipped for workers that left nothing,
  // and looks the worker's names up again: what was removed in between is left out, and what came
  // is for the next dump.
  void Open(const Step& step) {
    const auto untold = untold_.find(step.instance);
    if (step.kind == Step::kRest && untold == untold_.end()) return;
    const std::shared_ptr<const EngineWorker> worker = directory_->WorkerOf(step.instance);
    if (worker == nullptr) return;
    worker_ = std::make_unique<Telling>();
    worker_->step = &step;
    worker_->names = NamesOf(*worker);
    LinkParents(&worker_->names.names);
    worker_->id = step.instance;
    if (step.kind == Step::kName) {
      worker_->id = "\"";
      AppendJsonEscaped(&worker_->id, step.instance);
      worker_->id += '"';
    }
    if (step.kind == Step::kNumber) PlantChains();
  }

  // Writes one more event of the open worker: a chain while there are any, then one name in all of
  // its tiers. When all names are told, the worker is closed: the first pass sorts what it left
  // (`WasUntold` searches it), the second one drops it.
  void Tell() {
    if (!worker_->open.empty()) return TellChain();
    const std::vector<Name>& names = worker_->names.names;
    if (worker_->next == names.size()) {
      const auto untold = untold_.find(worker_->step->instance);
      if (untold != untold_.end() && worker_->step->kind == Step::kNumber)
        std::sort(untold->second.begin(), untold->second.end());
      if (untold != untold_.end() && worker_->step->kind == Step::kRest) untold_.erase(untold);
      worker_ = nullptr;
      return;
    }
    const auto self = static_cast<int32_t>(worker_->next++);
    const Name& name = At(self);
    for (int tier = 0; tier < kTiers; ++tier) {
      if (name.copies[static_cast<size_t>(tier)] == 0) continue;
      const Untold key{name.hash, name.rank, name.group, tier};
      // First pass: the device tier was told by chains; a lower tier is told block by block if
      // Dynamo can follow its parent's name. All else is left for the second pass.
      switch (worker_->step->kind) {
        case Step::kNumber:
          if (tier == 0 ? name.on_chain : InLowerTiers(name)) {
            if (tier != 0) Event({&self, 1}, Tier(tier), /*explain=*/false);
          } else {
            untold_[worker_->step->instance].push_back(key);
          }
          break;
        case Step::kRest:
          if (WasUntold(key)) Event({&self, 1}, Tier(tier), /*explain=*/true);
          break;
        default:
          Event({&self, 1}, Tier(tier), /*explain=*/true);
      }
    }
  }

  bool WasUntold(const Untold& key) {
    const std::vector<Untold>& untold = untold_[worker_->step->instance];
    return std::binary_search(untold.begin(), untold.end(), key);
  }

  const Name& At(int32_t i) const { return worker_->names.names[static_cast<size_t>(i)]; }

  // Whether Dynamo can place the block in a lower tier: there it follows the parent's name,
  // whichever tier the parent is in.
  static bool InLowerTiers(const Name& name) {
    return name.first && Raw(name.local) != 0 && (name.position == 0 || name.parent != kNone);
  }

  // Trees of the device chains: `child` is a name's first child, `sibling` the next child of its
  // parent; `open` are the heads still to be told, the roots at first. Filled from the back, so
  // that children are in the order of names.
  void PlantChains() {
    const std::vector<Name>& names = worker_->names.names;
    worker_->child.assign(names.size(), kNone);
    worker_->sibling.assign(names.size(), kNone);
    for (size_t i = names.size(); i-- > 0;) {
      if (!names[i].on_chain) continue;
      const auto self = static_cast<int32_t>(i);
      if (names[i].position == 0) {
        worker_->open.push_back(self);
      } else {
        int32_t& head = worker_->child[static_cast<size_t>(names[i].parent)];
        worker_->sibling[i] = head;
        head = self;
      }
    }
  }

  // One event: from the head on top of `open` down along first children, as long as neighbours may
  // be in one event. Other children become heads. So a parent is told before its children, and the
  // depth of a tree costs no stack.
  void TellChain() {
    std::vector<int32_t>& open = worker_->open;
    std::vector<int32_t> run;
    for (int32_t at = open.back(); at != kNone; at = worker_->child[static_cast<size_t>(at)]) {
      if (run.empty()) open.pop_back();
      if (!run.empty() && !Joins(At(run.back()), At(at), run.size())) {
        open.push_back(at);
        break;
      }
      run.push_back(at);
      for (int32_t next = worker_->child[static_cast<size_t>(at)]; next != kNone;) {
        next = worker_->sibling[static_cast<size_t>(next)];
        if (next != kNone) open.push_back(next);
      }
    }
    Event(run, Tier::kDevice, /*explain=*/false);
  }

  // Whether two neighbours fit one event, which has one adapter, salt and look-ahead.
  static bool Joins(const Name& a, const Name& b, size_t blocks) {
    return blocks < kEventBlocksMax && a.cache_namespace == b.cache_namespace && a.eagle == b.eagle;
  }

  // One stored event of blocks that follow one another. `explain` adds what Dynamo has no words
  // for: position and parent's sequence hash of the head, and per block its sequence hash.
  void Event(std::span<const int32_t> run, Tier tier, bool explain) {
    const Name& head = At(run.front());
    Comma(explain ? &first_rest_ : &first_event_);
    text_ += "{\"worker_id\":" + worker_->id + ",\"storage_tier\":\"";
    text_ += kTierNames[static_cast<size_t>(tier)];
    text_ += "\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":";
    text_ += std::to_string(worker_->event_id++);
    text_ += ",\"data\":{\"stored\":{\"parent_hash\":";
    const bool named = head.parent != kNone;
    text_ += named ? std::to_string(At(head.parent).hash) : "null";
    text_ += ",\"start_position\":";
    text_ += explain ? std::to_string(head.position) : "null";
    if (explain && head.position > 0)
      text_ += ",\"parent_sequence_hash\":" + std::to_string(Raw(head.before));
    text_ += ",\"blocks\":[";
    bool first = true;
    for (int32_t i : run) {
      Comma(&first);
      Block(At(i), tier, explain);
    }
    text_ += "]}},\"dp_rank\":" + std::to_string(head.rank) + "}";
    const auto& [lora_name, cache_salt] = worker_->names.namespaces[head.cache_namespace];
    if (!lora_name.empty()) Text(",\"lora_name\":", lora_name);
    if (!cache_salt.empty()) Text(",\"cache_salt\":", cache_salt);
    if (head.eagle == 1) text_ += ",\"eagle\":true";
    if (head.eagle > 1) text_ += ",\"eagle\":" + std::to_string(head.eagle);
    text_ += "}";
  }

  // Digests are hexadecimal; copies and groups are written where they are not the usual ones.
  void Block(const Name& name, Tier tier, bool explain) {
    text_ += "{\"block_hash\":" + std::to_string(name.hash) +
             ",\"tokens_hash\":" + std::to_string(Raw(name.local)) + ",\"mm_extra_info\":null";
    if (explain) text_ += ",\"sequence_hash\":" + std::to_string(Raw(name.block));
    const uint32_t copies = name.copies[static_cast<size_t>(tier)];
    if (name.group != 0) text_ += ",\"group\":" + std::to_string(name.group);
    if (copies > 1) text_ += ",\"copies\":" + std::to_string(copies);
    if (name.digest != kNone) {
      text_ += ",\"digest\":\"";
      for (unsigned char byte : worker_->names.digests[static_cast<size_t>(name.digest)]) {
        text_ += "0123456789abcdef"[byte >> 4];
        text_ += "0123456789abcdef"[byte & 15];
      }
      text_ += '"';
    }
    text_ += '}';
  }

  void Text(std::string_view key, std::string_view text) {
    text_ += key;
    text_ += '"';
    AppendJsonEscaped(&text_, text);
    text_ += '"';
  }

  void Comma(bool* first) {
    if (!*first) text_ += ',';
    *first = false;
  }

  const EngineDirectory* const directory_;
  std::vector<Step> steps_;  // immutable once it is made
  size_t at_ = 0;
  bool begun_ = false;
  std::string text_;
  std::unique_ptr<Telling> worker_;  // null: between workers
  std::map<std::string, std::vector<Untold>>
      untold_;  // by numbered worker, in order once it is told
  bool first_domain_ = true;
  bool first_event_ = true;
  bool first_rest_ = true;
};

}  // namespace

TextSource DumpSource(const EngineDirectory* directory) {
  return [writer = std::make_shared<DumpWriter>(directory)](std::string* piece) {
    return writer->Next(piece);
  };
}

}  // namespace kvatlas
