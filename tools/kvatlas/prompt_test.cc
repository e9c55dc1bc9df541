#include "tools/kvatlas/prompt.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

TEST(NumbersTest, AreReadBetweenBlanksCommasAndBrackets) {
  EXPECT_EQ(*NumbersIn("[1, 2,3]\n\t4"), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(*NumbersIn("0xff 18446744073709551615 -1"),
            (std::vector<uint64_t>{255, std::numeric_limits<uint64_t>::max(),
                                   std::numeric_limits<uint64_t>::max()}));
  EXPECT_TRUE(NumbersIn("")->empty());
  for (const char* bad : {"x", "1.5", "0x", "-", "18446744073709551616", "-9223372036854775809"})
    EXPECT_TRUE(absl::IsInvalidArgument(NumbersIn(bad).status())) << bad;
}

absl::StatusOr<AskedPrompt> Read(std::vector<std::string> arguments,
                                 const std::string& input = "") {
  FlagSet flags("test", "A test.");
  AskedPromptFlags prompt(&flags);
  arguments.insert(arguments.begin(), "test");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  EXPECT_FALSE(flags.Parse(static_cast<int>(argv.size()), argv.data(), out, err).has_value())
      << err.str();
  std::istringstream in(input);
  return prompt.Read(in);
}

TEST(PromptTest, AllFormsGiveTheSameSequence) {
  std::vector<TokenId> tokens;
  std::string text;
  for (TokenId i = 0; i < 12; ++i) {
    tokens.push_back(i * 7);
    text += std::to_string(i * 7) + ",";
  }
  text.pop_back();
  const std::vector<LocalHash> locals = LocalHashes(tokens, {.block_size = 4}, BlockSeed({}));
  std::string local_text;
  for (const LocalHash local : locals)
    local_text += std::to_string(static_cast<int64_t>(Raw(local))) + " ";
  const std::vector<SequenceHash> sequence = SequenceHashes(locals);
  EXPECT_EQ(*Read({"--tokens=" + text})->Sequence(4), sequence);
  EXPECT_EQ(*Read({"--file=-", "--as=local_hashes"}, local_text)->Sequence(0), sequence);
  EXPECT_NE(*Read({"--tokens=" + text, "--cache_salt=s"})->Sequence(4), sequence);
  EXPECT_FALSE(Read({"--tokens=" + text})->Sequence(0).ok());
}

TEST(PromptTest, IsSaidInOneWay) {
  EXPECT_FALSE(Read({}).ok());
  EXPECT_FALSE(Read({"--tokens=1", "--hashes=2"}).ok());
  EXPECT_FALSE(Read({"--file=/no/such/file"}).ok());
  EXPECT_FALSE(Read({"--tokens=4294967296"}).ok());
  EXPECT_TRUE(Read({"--hashes=4294967296"}).ok());
}

}  // namespace
}  // namespace kvatlas
