#include "indexer/process/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<ConfigEntry> Entries(std::string_view text, bool only_section = false) {
  const auto entries = ParseConfig(text, "f.toml", "leaf", only_section);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return entries.ok() ? *entries : std::vector<ConfigEntry>();
}

// The message: no TOML, or what is wrong with an entry.
std::string Wrong(std::string_view text) {
  const auto entries = ParseConfig(text, "f.toml", "leaf");
  if (!entries.ok()) return std::string(entries.status().message());
  for (const ConfigEntry& entry : *entries) {
    if (!entry.problem.empty())
      return "f.toml:" + std::to_string(entry.line) + ": " + entry.key + ": " + entry.problem;
  }
  ADD_FAILURE() << text;
  return "";
}

TEST(ConfigFileTest, EveryKindOfValueIsTextAsAFlagTakesIt) {
  EXPECT_THAT(Entries("a = 'x=y'\nb = 5_000\nc = 0.25\nd = true\ne = -7\nf = 0x10\ng = 1e30\n"),
              ElementsAre(ConfigEntry{"a", "x=y", false, 1}, ConfigEntry{"b", "5000", false, 2},
                          ConfigEntry{"c", "0.25", false, 3}, ConfigEntry{"d", "true", false, 4},
                          ConfigEntry{"e", "-7", false, 5}, ConfigEntry{"f", "16", false, 6},
                          ConfigEntry{"g", "1e+30", false, 7}));
}

TEST(ConfigFileTest, ListsAreArraysAndTables) {
  EXPECT_THAT(Entries("a = ['x', 1,\n true]\nb = []\nc = { zone = 'a', 'n m' = 2 }\n"),
              ElementsAre(ConfigEntry{"a", "x,1,true", true, 1}, ConfigEntry{"b", "", true, 3},
                          ConfigEntry{"c", "n m=2,zone=a", true, 4}));
  EXPECT_THAT(Entries("[labels]\nzone = 'a'\n"),
              ElementsAre(ConfigEntry{"labels", "zone=a", true, 1}));
}

TEST(ConfigFileTest, TheOwnSectionWinsAndOthersAreNotRead) {
  const std::string text =
      "cell = 'all'\nlog-level = 'info'\n[leaf]\ncell = 'own'\n[leaf.labels]\nzone = 'a'\n"
      "[frontend]\nwhatever = 1979-05-27\n";
  EXPECT_THAT(Entries(text), ElementsAre(ConfigEntry{"log_level", "info", false, 2},
                                         ConfigEntry{"cell", "own", false, 4},
                                         ConfigEntry{"labels", "zone=a", true, 5}));
  EXPECT_THAT(
      Entries(text, /*only_section=*/true),
      ElementsAre(ConfigEntry{"cell", "own", false, 4}, ConfigEntry{"labels", "zone=a", true, 5}));
}

// A flag of the frontend is named as a section is.
TEST(ConfigFileTest, AKeyNamedAsASectionIsAKeyWhereItsValueIsNoTable) {
  EXPECT_THAT(Entries("hierarchy = 'h:1'\n"),
              ElementsAre(ConfigEntry{"hierarchy", "h:1", false, 1}));
}

TEST(ConfigFileTest, MistakesNameTheirLine) {
  EXPECT_THAT(Wrong("a = 1\nb = \n"), StartsWith("f.toml:2: "));
  EXPECT_THAT(Wrong("a = 1\na = 2\n"), StartsWith("f.toml:2: "));
  EXPECT_THAT(Wrong("\na-b = 1\na_b = 2\n"), HasSubstr("is there twice"));
  EXPECT_THAT(Wrong("\na = 1979-05-27\n"), StartsWith("f.toml:2: a: dates"));
  EXPECT_THAT(Wrong("a = ['x',\n 'y,z']\n"), StartsWith("f.toml:2: a: \"y,z\" has a comma"));
  EXPECT_THAT(Wrong("a = ['']\n"), HasSubstr("empty element"));
  EXPECT_THAT(Wrong("a = [['x']]\n"), HasSubstr("f.toml:1: a: an element is a string"));
  EXPECT_THAT(Wrong("[lief]\n[lief.labels]\nzone = 'a'\n"), HasSubstr("no section has this name"));
  EXPECT_THAT(Wrong("[labels]\n'a=b' = 'c'\n"), HasSubstr("has a '='"));
  EXPECT_THAT(Wrong("\xff = 1"), StartsWith("f.toml:1: "));
  EXPECT_THAT(Wrong("a = " + std::string(100000, '[')), StartsWith("f.toml:1: "));
}

TEST(ConfigFileTest, EveryEntryThatIsWrongIsSaidToBe) {
  const auto entries = Entries("a = 1979-05-27\nb = 'good'\nc = [1979-05-27, '']\nd = ['x,y']\n");
  ASSERT_EQ(entries.size(), 4u);
  for (const ConfigEntry& entry : entries) EXPECT_EQ(entry.problem.empty(), entry.key == "b");
}

TEST(ConfigFileTest, AFileIsReadWhole) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/good.toml";
  std::ofstream(path) << "[leaf]\ncell = 'a'\n";
  const auto entries = ReadConfigFile(path, "leaf");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_THAT(*entries, ElementsAre(ConfigEntry{"cell", "a", false, 2}));
}

TEST(ConfigFileTest, WhatIsNoReadableFileIsNamed) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  EXPECT_THAT(std::string(ReadConfigFile(folder + "/none", "leaf").status().message()),
              HasSubstr("/none: No such file"));
  EXPECT_THAT(std::string(ReadConfigFile(folder, "leaf").status().message()),
              HasSubstr("no regular file"));
  const std::string fifo = folder + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadConfigFile(fifo, "leaf").status().message()),
              HasSubstr("no regular file"));
  const std::string large = folder + "/large";
  std::ofstream(large) << std::string(kConfigFileBytesMax + 1, '#');
  EXPECT_THAT(std::string(ReadConfigFile(large, "leaf").status().message()),
              HasSubstr("longer than 1 MiB"));
}

}  // namespace
}  // namespace kvatlas
