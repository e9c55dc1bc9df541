#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/leaf/dynamo_dump.h"
#include "indexer/service/text_escape.h"

namespace kvatlas {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kEventBlocksMax = 4096;
constexpr int32_t kNone = -1;
constexpr std::array<std::string_view, kTiers> kTierNames = {"device", "host_pinned", "disk",
                                                             "external"};

// One name of one block, copied while its worker stood still.
struct Name {
  EngineAlias of;  // its views are not looked at
  std::string digest;
  uint32_t cache_namespace = 0;  // in `Names::namespaces`
  int32_t parent = kNone;        // the first name of its parent in the same rank, if there is one
  bool first = true;             // of its block in its rank
  bool on_chain = false;         // in the device tier with all before it
};

struct Names {
  std::vector<Name> names;  // by rank and position: parents before children
  std::vector<std::pair<std::string, std::string>> namespaces;
};

Names NamesOf(const EngineWorker& worker) {
  Names all;
  std::map<std::pair<std::string, std::string>, uint32_t> known;
  worker.ForEachAlias([&](const EngineAlias& alias) {
    if (alias.side) return;  // the format has no field for them
    Name name{.of = alias, .digest = std::string(alias.hash.bytes)};
    auto [it, is_new] =
        known.try_emplace({std::string(alias.lora_name), std::string(alias.cache_salt)},
                          static_cast<uint32_t>(known.size()));
    if (is_new) all.namespaces.push_back(it->first);
    name.cache_namespace = it->second;
    name.of.hash.bytes = name.of.lora_name = name.of.cache_salt = {};
    all.names.push_back(std::move(name));
  });
  std::stable_sort(all.names.begin(), all.names.end(), [](const Name& a, const Name& b) {
    return std::tie(a.of.rank, a.of.position) < std::tie(b.of.rank, b.of.position);
  });
  return all;
}

// Finds parents, and which blocks stand on an unbroken chain of the device tier.
void LinkParents(std::vector<Name>* names) {
  absl::flat_hash_map<std::pair<uint32_t, SequenceHash>, int32_t> first;
  first.reserve(names->size());
  for (size_t i = 0; i < names->size(); ++i) {
    Name& name = (*names)[i];
    const bool at_root = name.of.position == 0;
    if (!at_root) {
      const auto parent = first.find({name.of.rank, name.of.parent});
      if (parent != first.end()) name.parent = parent->second;
    }
    name.first = first.try_emplace({name.of.rank, name.of.block}, static_cast<int32_t>(i)).second;
    name.on_chain =
        name.first && name.of.copies[0] > 0 && Raw(name.of.local) != 0 &&
        (at_root || (name.parent != kNone && (*names)[static_cast<size_t>(name.parent)].on_chain));
  }
}

// As Dynamo names its workers.
bool IsNumber(const std::string& name) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
  return parsed.ec == std::errc() && std::to_string(number) == name;
}

class DumpWriter {
 public:
  explicit DumpWriter(const EngineDirectory* directory) : directory_(directory) {
    const std::vector<EngineEntry> entries = directory->Registrations();
    for (const Domain& domain : directory->Domains()) {
      const std::optional<uint32_t> block_size = directory->BlockSizeOf(domain);
      if (!block_size.has_value()) continue;
      steps_.push_back({.kind = Step::kOpen, .domain = domain, .block_size = *block_size});
      for (bool numbers : {true, false}) {
        if (!numbers) steps_.push_back({.kind = Step::kMiddle, .domain = {}, .instance = {}});
        for (const EngineEntry& entry : entries)
          if (entry.domain == domain && IsNumber(entry.instance) == numbers)
            steps_.push_back({.kind = numbers ? Step::kNumber : Step::kName,
                              .domain = {},
                              .instance = entry.instance});
      }
      steps_.push_back({.kind = Step::kClose, .domain = {}, .instance = {}});
    }
  }

  bool Next(std::string* piece) {
    std::swap(text_, *piece);
    if (at_ == 0) text_ += "{";
    const size_t before = text_.size();
    while (at_ < steps_.size() && text_.size() < before + kPieceBytes) Take(steps_[at_++]);
    const bool more = at_ < steps_.size();
    if (!more) text_ += "}";
    std::swap(text_, *piece);
    return more;
  }

 private:
  struct Step {
    // A domain; its workers with numbers; what Dynamo cannot read of them; the others; its end.
    enum { kOpen, kNumber, kMiddle, kName, kClose } kind;
    Domain domain;
    uint32_t block_size = 0;
    std::string instance = {};
  };

  void Take(const Step& step) {
    switch (step.kind) {
      case Step::kOpen:
        Comma(&first_domain_);
        OpenDomain(step.domain, step.block_size);
        break;
      case Step::kMiddle:
        text_ += "],\"kvatlas\":{\"events\":[" + rest_;
        rest_.clear();
        break;
      case Step::kClose:
        text_ += "]}}";
        break;
      default:
        Worker(step.instance, step.kind == Step::kNumber);
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

  void Worker(const std::string& instance, bool is_number) {
    const std::shared_ptr<const EngineWorker> worker = directory_->WorkerOf(instance);
    if (worker == nullptr) return;
    Names names = NamesOf(*worker);
    LinkParents(&names.names);
    names_ = &names;
    event_id_ = 0;
    worker_id_ = instance;
    if (is_number) {
      Chains();
      LowerTiers();
    } else {
      worker_id_ = "\"";
      AppendJsonEscaped(&worker_id_, instance);
      worker_id_ += '"';
    }
    Rest(is_number);
  }

  const Name& At(int32_t i) const { return names_->names[static_cast<size_t>(i)]; }

  // In a lower tier Dynamo follows the parent's name, wherever the parent is.
  static bool InLowerTiers(const Name& name) {
    return name.first && Raw(name.of.local) != 0 && (name.of.position == 0 || name.parent != kNone);
  }

  // Device chains from the root, each as long as it goes on without a branch.
  void Chains() {
    const std::vector<Name>& names = names_->names;
    std::vector<int32_t> child(names.size(), kNone), sibling(names.size(), kNone), open;
    for (size_t i = names.size(); i-- > 0;) {
      if (!names[i].on_chain) continue;
      const auto self = static_cast<int32_t>(i);
      if (names[i].of.position == 0) {
        open.push_back(self);
      } else {
        int32_t& head = child[static_cast<size_t>(names[i].parent)];
        sibling[i] = head;
        head = self;
      }
    }
    std::vector<int32_t> run;
    while (!open.empty()) {
      run.clear();
      for (int32_t at = open.back(); at != kNone; at = child[static_cast<size_t>(at)]) {
        if (run.empty()) open.pop_back();
        if (!run.empty() && !Joins(At(run.back()), At(at), run.size())) {
          open.push_back(at);
          break;
        }
        run.push_back(at);
        for (int32_t next = child[static_cast<size_t>(at)]; next != kNone;) {
          next = sibling[static_cast<size_t>(next)];
          if (next != kNone) open.push_back(next);
        }
      }
      Event(run, Tier::kDevice, /*explain=*/false);
    }
  }

  // Whether two neighbours are told in one event.
  static bool Joins(const Name& a, const Name& b, size_t blocks) {
    return blocks < kEventBlocksMax && a.cache_namespace == b.cache_namespace &&
           a.of.eagle == b.of.eagle;
  }

  void LowerTiers() {
    for (size_t i = 0; i < names_->names.size(); ++i) {
      const Name& name = names_->names[i];
      if (!InLowerTiers(name)) continue;
      const auto self = static_cast<int32_t>(i);
      for (int tier = 1; tier < kTiers; ++tier)
        if (name.of.copies[static_cast<size_t>(tier)] > 0) Event({&self, 1}, Tier(tier), false);
    }
  }

  // What the above did not tell: of numbered workers aside, until the domain's events are all told.
  void Rest(bool numbers) {
    if (numbers) std::swap(text_, rest_);
    for (size_t i = 0; i < names_->names.size(); ++i) {
      const Name& name = names_->names[i];
      const auto self = static_cast<int32_t>(i);
      for (int tier = 0; tier < kTiers; ++tier) {
        const bool told = numbers && (tier == 0 ? name.on_chain : InLowerTiers(name));
        if (!told && name.of.copies[static_cast<size_t>(tier)] > 0)
          Event({&self, 1}, Tier(tier), /*explain=*/true);
      }
    }
    if (numbers) std::swap(text_, rest_);
  }

  // One stored event of blocks that follow each other. `explain`: with what Dynamo has no word for.
  void Event(std::span<const int32_t> run, Tier tier, bool explain) {
    const Name& head = At(run.front());
    Comma(explain ? &first_rest_ : &first_event_);
    text_ += "{\"worker_id\":" + worker_id_ + ",\"storage_tier\":\"";
    text_ += kTierNames[static_cast<size_t>(tier)];
    text_ += "\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":";
    text_ += std::to_string(event_id_++);
    text_ += ",\"data\":{\"stored\":{\"parent_hash\":";
    const bool named = head.parent != kNone;
    text_ += named ? std::to_string(At(head.parent).of.hash.value) : "null";
    text_ += ",\"start_position\":";
    text_ += explain ? std::to_string(head.of.position) : "null";
    if (explain && head.of.position > 0)
      text_ += ",\"parent_sequence_hash\":" + std::to_string(Raw(head.of.parent));
    text_ += ",\"blocks\":[";
    bool first = true;
    for (int32_t i : run) {
      Comma(&first);
      Block(At(i), tier, explain);
    }
    text_ += "]}},\"dp_rank\":" + std::to_string(head.of.rank) + "}";
    const auto& [lora_name, cache_salt] = names_->namespaces[head.cache_namespace];
    if (!lora_name.empty()) Text(",\"lora_name\":", lora_name);
    if (!cache_salt.empty()) Text(",\"cache_salt\":", cache_salt);
    if (head.of.eagle) text_ += ",\"eagle\":true";
    text_ += "}";
  }

  void Block(const Name& name, Tier tier, bool explain) {
    text_ += "{\"block_hash\":" + std::to_string(name.of.hash.value) +
             ",\"tokens_hash\":" + std::to_string(Raw(name.of.local)) + ",\"mm_extra_info\":null";
    if (explain) text_ += ",\"sequence_hash\":" + std::to_string(Raw(name.of.block));
    const uint32_t copies = name.of.copies[static_cast<size_t>(tier)];
    if (name.of.group != 0) text_ += ",\"group\":" + std::to_string(name.of.group);
    if (copies > 1) text_ += ",\"copies\":" + std::to_string(copies);
    if (!name.digest.empty()) {
      text_ += ",\"digest\":\"";
      for (unsigned char byte : name.digest) {
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
  std::vector<Step> steps_;
  size_t at_ = 0;
  std::string text_;
  bool first_domain_ = true;
  std::string rest_;
  bool first_event_ = true;
  bool first_rest_ = true;
  uint64_t event_id_ = 0;
  std::string worker_id_;  // as JSON
  const Names* names_ = nullptr;
};

}  // namespace

TextSource DumpSource(const EngineDirectory* directory) {
  return [writer = std::make_shared<DumpWriter>(directory)](std::string* piece) {
    return writer->Next(piece);
  };
}

}  // namespace kvatlas
