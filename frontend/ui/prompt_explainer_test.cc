#include "frontend/ui/prompt_explainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "indexer/base/await.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// Leaves "NAME:1" by table, and a hierarchy with scripted coverage.
class Fleet : public PeerAsker, public CellFinder, public OverlapFinder, public PromptTokenizer {
 public:
  void Ask(StatsOf what, const std::string& address, Duration, Told callback) override {
    v1::StatsResponse stats;
    if (what == StatsOf::kNode) {
      for (int i = 0; i < cells; ++i) {
        v1::HolderStats* cell =
            (i == 0 ? stats.add_domains() : stats.mutable_domains(0))->add_holder_stats();
        cell->mutable_holder()->set_name("c" + std::to_string(i));
        cell->set_address("c" + std::to_string(i) + ":1");
      }
    }
    (void)address;
    callback(stats);
  }
  void Explain(const std::string& address, const v1::ExplainRequest& request, Duration,
               Explained callback) override {
    ++asked[address];
    last = request;
    const auto found = answers.find(address);
    if (found == answers.end()) return callback(absl::NotFoundError("no such domain"));
    callback(found->second);
  }
  void FindSessions(const std::string&, const v1::FindSessionsRequest&, Duration,
                    Sessions callback) override {
    callback(absl::UnimplementedError("not in this test"));
  }
  void FindCells(const std::string& address, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    // The first node is away, which shows once the second one was asked, or else is late.
    if (address == "top:1" && first_node_is_away) {
      late_ = std::thread([this, callback = std::move(callback)] {
        second_was_asked_meanwhile =
            Await([this] { return second_is_asked_.load(); }, std::chrono::seconds(5));
        callback(absl::UnavailableError("away"));
      });
      return;
    }
    second_is_asked_ = address == "top:2";
    CellsAnswer answer;
    answer.cells.push_back({.cell = "c77", .address = "c77:1"});
    callback(std::move(answer));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    callback(absl::UnavailableError("not in this test"));
  }
  void Tokenize(const std::string&, const Prompt& prompt, Duration,
                PromptTokenizer::Callback callback) override {
    PromptTokens tokens;
    for (const char letter : std::get<TextPrompt>(prompt).text)
      tokens.tokens.push_back(static_cast<TokenId>(letter));
    callback(std::move(tokens));
  }

  ~Fleet() override {
    if (late_.joinable()) late_.join();
  }

  int cells = 2;
  bool first_node_is_away = false;
  std::atomic<bool> second_was_asked_meanwhile = false;
  std::map<std::string, absl::StatusOr<v1::ExplainResponse>> answers;
  std::map<std::string, int> asked;
  v1::ExplainRequest last;

 private:
  std::atomic<bool> second_is_asked_ = false;
  std::thread late_;
};

v1::ExplainResponse Has(const std::string& worker, uint32_t blocks) {
  v1::ExplainResponse response;
  response.set_block_size(16);
  response.set_blocks(4);
  v1::ExplainedWorker* explained = response.add_workers();
  explained->mutable_worker()->set_name(worker);
  explained->set_blocks(blocks);
  explained->set_tiers(std::string(blocks, '\1') + std::string(4 - blocks, '\0'));
  return response;
}

class PromptExplainerTest : public ::testing::Test {
 protected:
  PromptExplainerTest()
      : frontend_({.hierarchies = {"top:1", "top:2"}}, &fleet_, &fleet_, &Clock::Real()),
        watch_({},
               {.nodes = [] { return std::vector<std::string>{"top:1"}; },
                .leaves = [] { return std::vector<std::pair<std::string, std::string>>(); }},
               &fleet_, &Clock::Real()) {}

  HttpResponse Ask(const std::string& body, bool tokenizer = true) {
    watch_.Round();
    const PromptExplainer explainer({.frontend = &frontend_,
                                     .watch = &watch_,
                                     .tokenizer = tokenizer ? &fleet_ : nullptr,
                                     .cells = &fleet_,
                                     .asker = &fleet_});
    HttpRequest request;
    request.body = body;
    return explainer.Answer(request);
  }

  Fleet fleet_;
  Frontend frontend_;
  FleetWatch watch_;
};

TEST_F(PromptExplainerTest, EveryCellIsAskedAndTheDeepestWorkerComesFirst) {
  fleet_.answers.insert_or_assign("c0:1", Has("w0", 1));
  fleet_.answers.insert_or_assign("c1:1", Has("w1", 3));
  const HttpResponse response = Ask(R"({"model":"m","tokens":[1,2,3]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["workers"][0]["worker"], "w1");
  EXPECT_EQ(json["workers"][0]["cell"], "c1");
  EXPECT_EQ(json["workers"][0]["tiers"], "ddd.");
  EXPECT_EQ(json["diverges_at"], 3);
  EXPECT_EQ(fleet_.last.tokens().ids_size(), 3);
}

TEST_F(PromptExplainerTest, TextIsMadeTokensOf) {
  fleet_.answers.insert_or_assign("c0:1", Has("w0", 1));
  EXPECT_EQ(Ask(R"({"model":"m","text":"hello"})").status, 200);
  EXPECT_EQ(fleet_.last.tokens().ids_size(), 5);
  const HttpResponse without = Ask(R"({"model":"m","text":"hello"})", /*tokenizer=*/false);
  EXPECT_EQ(without.status, 400);
  EXPECT_THAT(without.body, HasSubstr("give token ids"));
}

TEST_F(PromptExplainerTest, CellsThatFailAreNamed) {
  fleet_.answers.insert_or_assign("c0:1", Has("w0", 1));
  fleet_.answers.insert_or_assign("c1:1", absl::DeadlineExceededError("late"));
  const Json json = Json::parse(Ask(R"({"model":"m","tokens":[1]})").body);
  EXPECT_EQ(json["failed"], Json({"cell c1: late"}));
  fleet_.answers.clear();
  const HttpResponse none = Ask(R"({"model":"m","tokens":[1]})");
  EXPECT_EQ(none.status, 404);
  EXPECT_THAT(none.body, HasSubstr("no cell has workers of model m"));
}

TEST_F(PromptExplainerTest, APromptWithoutABlockIsThePromptsFault) {
  fleet_.answers.insert_or_assign("c0:1", absl::InvalidArgumentError("no full block"));
  const HttpResponse response = Ask(R"({"model":"m","tokens":[1]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("no full block"));
}

TEST_F(PromptExplainerTest, OfManyCellsThoseAreAskedThatTheHierarchyNames) {
  fleet_.cells = 200;
  fleet_.answers.insert_or_assign("c77:1", Has("w0", 2));
  const Json json = Json::parse(Ask(R"({"model":"m","tokens":[1,2,3]})").body);
  EXPECT_EQ(json["cells"], 200);
  EXPECT_EQ(json["cells_asked"], 1);
  EXPECT_EQ(fleet_.asked.size(), 1u);
}

TEST_F(PromptExplainerTest, NodesOfTheHierarchyAreAskedAtOnce) {
  fleet_.cells = 200;
  fleet_.first_node_is_away = true;
  fleet_.answers.insert_or_assign("c77:1", Has("w0", 2));
  const Json json = Json::parse(Ask(R"({"model":"m","tokens":[1,2,3]})").body);
  EXPECT_EQ(json["cells_asked"], 1);
  EXPECT_TRUE(fleet_.second_was_asked_meanwhile);
}

}  // namespace
}  // namespace kvatlas
