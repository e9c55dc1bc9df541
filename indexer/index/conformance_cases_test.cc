// Runs the scripts of conformance_cases.cc over every kind that claims them, and over those that
// are known to answer otherwise. Beside each runs the reference: contents, changes, digests and
// counts have to be as it has them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <utility>

#include "indexer/index/conformance_cases.h"
#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

// ---- Scripts ----

using Words = std::vector<std::string_view>;

// The texts between any of `marks`, without empty ones.
Words Split(std::string_view text, std::string_view marks) {
  Words words;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(marks), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

template <typename Texts>
std::string Join(const Texts& texts) {
  std::string joined;
  for (const auto& text : texts) joined += (joined.empty() ? "" : " ") + std::string(text);
  return joined;
}

uint64_t Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  EXPECT_TRUE(error == std::errc() && end == text.data() + text.size()) << "no number: " << text;
  return number;
}

// The two sides of `mark`; all is left of it where there is none.
std::pair<std::string_view, std::string_view> Cut(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + mark.size())};
}

TierMask MaskOf(std::string_view text) {
  TierMask mask;
  for (std::string_view name : Split(text, "+")) {
    constexpr std::string_view kNames[] = {"device", "host", "disk", "external"};
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
    EXPECT_TRUE(found != std::end(kNames) || name == "none") << "no tier: " << name;
    if (found != std::end(kNames)) mask = mask | static_cast<Tier>(found - kNames);
  }
  return mask;
}

Contents ContentsOf(std::string_view text) {
  Contents contents;
  for (std::string_view part : Split(text, "+,")) {
    if (part == "-") continue;
    if (part.find('*') != std::string_view::npos) {
      const auto [content, count] = Cut(part, "*");
      contents.insert(contents.end(), Number(count), Number(content));
      continue;
    }
    const auto [first, last] = Cut(part, "..");
    const uint64_t from = Number(first);
    contents = contents + Count(from, last.empty() ? 1 : Number(last) - from + 1);
  }
  return contents;
}

// BLOCKS of a script.
struct Blocks {
  Contents contents;
  size_t from = 0;
  std::vector<size_t> positions;
  std::string_view tiers;

  TierMask mask() const { return tiers.empty() ? TierMask::All() : MaskOf(tiers); }
  Tier tier() const {
    for (int i = 0; i < kTiers; ++i) {
      if (!tiers.empty() && MaskOf(tiers).Has(static_cast<Tier>(i))) return static_cast<Tier>(i);
    }
    return Tier::kDevice;
  }
};

Blocks BlocksOf(std::string_view text) {
  Blocks blocks;
  std::string_view rest;
  std::tie(rest, blocks.tiers) = Cut(text, "/");
  const auto [before, scattered] = Cut(rest, "@");
  const auto [contents, range] = Cut(before, "[");
  blocks.contents = ContentsOf(contents);
  if (!scattered.empty()) {
    const auto [numbers, step] = Cut(scattered, ":");
    const Contents positions = ContentsOf(numbers);
    for (size_t i = 0; i < positions.size(); i += step.empty() ? 1 : Number(step))
      blocks.positions.push_back(positions[i]);
    return blocks;
  }
  const auto [from, to] = Cut(Cut(range, "]").first, ":");
  blocks.from = from.empty() ? 0 : Number(from);
  blocks.positions = Positions(blocks.from, to.empty() ? blocks.contents.size() : Number(to));
  return blocks;
}

// The answer that `kind` has to give: the one behind the bar where it is named, else the one before
// the first bar.
std::string ExpectedOf(std::string_view answers, std::string_view kind) {
  std::string expected;
  const Words variants = Split(answers, "|");
  for (std::string_view variant : variants) {
    Words words = Split(variant, " ");
    const bool is_named = std::count(words.begin(), words.end(), kind) > 0;
    if (!is_named && variant.data() != variants[0].data()) continue;
    std::erase_if(words, [](std::string_view word) { return FindIndexKind(word) != nullptr; });
    expected = Join(words);
  }
  return expected;
}

struct KindAndCase {
  IndexKind kind;
  ConformanceCase one;
};

void PrintTo(const KindAndCase& both, std::ostream* out) {
  *out << both.kind.name << ", " << both.one.script;
}

// Every case over every kind that claims it, and over those whose mistake in it is written down.
std::vector<KindAndCase> KindsAndCases() {
  std::vector<KindAndCase> all;
  for (const ConformanceCase& one : ConformanceCases()) {
    const Words words = Split(one.script, " ;");
    for (const IndexKind& kind : IndexKinds()) {
      const bool is_named = std::count(words.begin(), words.end(), kind.name) > 0;
      if (is_named || (one.claims & ~ClaimsOf(kind)) == 0) all.push_back({kind, one});
    }
  }
  return all;
}

class ConformanceCaseTest : public ::testing::TestWithParam<KindAndCase>, protected Tested {
 protected:
  ConformanceCaseTest()
      : Tested(GetParam().kind.name, {.blocks_max = GetParam().one.blocks_max}, kHolders),
        reference_("reference", {.blocks_max = GetParam().one.blocks_max}, kHolders),
        keeps_all_((ClaimsOf(GetParam().kind) & kOrphans) != 0) {}

  static constexpr uint32_t kHolders = 4;

  void RunStatement(std::string_view statement);
  void ExpectContents();

 private:
  void Event(HolderIndex holder, std::string_view verb, std::string_view blocks, bool refused);
  std::string Answer(std::string_view question);

  Tested reference_;
  // It has everything that the reference has: what it says besides overlaps can be compared.
  const bool keeps_all_;
  size_t heard_ = 0;
};

// Position, tiers before and after by holder and block, of the changes from number `from` on. A
// structure with a table a tier tells of each by itself.
std::map<std::pair<uint32_t, uint64_t>, std::tuple<Position, int, int>> NetOf(
    const std::vector<Change>& changes, size_t from) {
  std::map<std::pair<uint32_t, uint64_t>, std::tuple<Position, int, int>> net;
  for (; from < changes.size(); ++from) {
    const auto& [holder, block, position, before, after] = changes[from];
    const auto [place, is_new] = net.try_emplace({holder, block}, position, before, after);
    if (!is_new) std::get<2>(place->second) = after;
  }
  return net;
}

void ConformanceCaseTest::Event(HolderIndex holder, std::string_view verb, std::string_view text,
                                bool refused) {
  kvatlas::Event event;
  if (verb == "clears") {
    event = Cleared{.tiers = text.empty() ? TierMask::All() : MaskOf(text)};
  } else {
    const Blocks blocks = BlocksOf(text);
    event = RemovedOf(blocks.contents, blocks.positions, blocks.tier());
    if (verb == "stores")
      event = StoredOf(blocks.contents, blocks.from, blocks.from + blocks.positions.size(),
                       blocks.tier());
  }
  const size_t heard = sink_.changes.size(), truly = reference_.changes().size();
  const absl::StatusCode code = Apply(holder, event).code();
  const absl::StatusCode expected = reference_.Apply(holder, event).code();
  EXPECT_EQ(refused, expected == absl::StatusCode::kResourceExhausted);
  if (!keeps_all_) return;
  EXPECT_EQ(code, expected);
  EXPECT_EQ(NetOf(sink_.changes, heard), NetOf(reference_.changes(), truly));
}

std::string ConformanceCaseTest::Answer(std::string_view question) {
  const Words words = Split(question, " ");
  std::vector<std::string> answer;
  if (words[0] == "find") {
    const Blocks blocks = BlocksOf(words[1]);
    for (const auto& [holder, depth] : Find(blocks.contents, blocks.mask()))
      answer.push_back(std::to_string(holder) + ":" + std::to_string(depth));
  } else if (words[0] == "tiers") {
    const Blocks blocks = BlocksOf(words[1]);
    const std::vector<SequenceHash> chain = Chain(blocks.contents);
    const std::vector<LocalHash> locals = Locals(blocks.contents);
    std::vector<TierOverlap> found;
    index_->FindTierOverlaps({.blocks = chain, .tiers = blocks.mask(), .local_hashes = locals},
                             &found);
    for (const TierOverlap& each : found) {
      answer.push_back(std::to_string(Raw(each.holder)) + ":" + std::to_string(each.blocks) + ":");
      for (const uint32_t& depth : each.by_tier)
        answer.back() += (&depth == each.by_tier ? "" : ",") + std::to_string(depth);
    }
    std::sort(answer.begin(), answer.end());
  } else if (words[0] == "blocks") {
    return std::to_string(index_->Stats().blocks);
  } else if (words[0] == "holdings") {
    return std::to_string(index_->Stats().holdings);
  } else if (words[0] == "heard") {
    const size_t before = std::exchange(heard_, sink_.changes.size());
    return std::to_string(heard_ - before);
  } else {
    const HolderIndex holder{static_cast<uint32_t>(Number(words[0]))};
    EXPECT_EQ(words[1], "holds");
    return std::to_string(Holdings(holder));
  }
  return answer.empty() ? "none" : Join(answer);
}

void ConformanceCaseTest::RunStatement(std::string_view statement) {
  const auto [said, answers] = Cut(statement, "->");
  if (!answers.empty()) {
    EXPECT_EQ(Answer(said), ExpectedOf(answers, GetParam().kind.name));
    return;
  }
  const Words words = Split(said, " ");
  ASSERT_GE(words.size(), 2u);
  const HolderIndex holder{static_cast<uint32_t>(Number(words[0]))};
  const auto [verb, tiers] = Cut(words[1], "/");
  if (verb == "stores" || verb == "loses" || verb == "clears") {
    return Event(holder, verb, words.size() > 2 ? words[2] : tiers, words.back() == "refused");
  }
  for (Tested* each : {static_cast<Tested*>(this), &reference_}) {
    if (verb == "goes") {
      (*each)->RemoveHolder(holder);
    } else if (verb == "comes") {
      EXPECT_EQ(each->Add(), holder);
    } else {
      ASSERT_TRUE(verb == "is_masked" || verb == "is_unmasked") << verb;
      (*each)->SetMasked(holder, verb == "is_masked");
    }
  }
  if (verb == "goes") {
    // Its blocks are reported to no observer.
    std::erase_if(sink_.changes,
                  [&](const Change& change) { return std::get<0>(change) == Raw(holder); });
    heard_ = sink_.changes.size();
  }
}

// The changes add up to the holdings, the digest is of these, and all is as the reference has it.
void ConformanceCaseTest::ExpectContents() {
  std::map<std::pair<uint32_t, uint64_t>, int> told;
  for (const auto& [holder, block, position, before, after] : sink_.changes) {
    EXPECT_EQ(std::exchange(told[std::pair(holder, block)], after), before);
  }
  std::erase_if(told, [](const auto& each) { return each.second == 0; });
  std::map<std::pair<uint32_t, uint64_t>, int> held;
  for (uint32_t i = 0; i < kHolders; ++i) {
    const HolderIndex holder{i};
    std::vector<Holding> holdings = index_->HoldingsOf(holder),
                         truth = reference_->HoldingsOf(holder);
    EXPECT_EQ(index_->DigestOf(holder), DigestOf(holdings)) << "holder " << i;
    for (const Holding& each : holdings) held[{i, Raw(each.block)}] = each.tiers.bits();
    if (!keeps_all_) continue;
    for (auto* each : {&holdings, &truth}) {
      std::sort(each->begin(), each->end(),
                [](const Holding& a, const Holding& b) { return a.block < b.block; });
    }
    EXPECT_EQ(holdings, truth) << "holder " << i;
  }
  EXPECT_EQ(told, held);
  const IndexStats stats = index_->Stats(), truth = reference_->Stats();
  EXPECT_EQ(stats.holders, truth.holders);
  if (!keeps_all_) return;
  EXPECT_EQ(stats.blocks, truth.blocks);
  EXPECT_EQ(stats.holdings, truth.holdings);
  EXPECT_EQ(stats.refused_blocks, truth.refused_blocks);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ConformanceCaseTest, ::testing::ValuesIn(KindsAndCases()),
                         [](const auto& info) {
                           return std::string(info.param.kind.name) + "_" +
                                  std::string(info.param.one.name);
                         });

TEST_P(ConformanceCaseTest, Conforms) {
  EXPECT_EQ(index_->Name(), GetParam().kind.name);
  for (int time = 0; time < GetParam().one.times; ++time) {
    for (std::string_view statement : Split(GetParam().one.script, ";")) RunStatement(statement);
  }
  ExpectContents();
}

}  // namespace
}  // namespace kvatlas
