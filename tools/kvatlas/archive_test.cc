#include "tools/kvatlas/archive.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace kvatlas {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ArchiveTest, TarReadsIt) {
  const std::string dir = std::getenv("TEST_TMPDIR");
  Archive archive(1'900'000'000);
  const std::string large(100'000, 'x');
  archive.Add("bundle/one.txt", "one\n");
  archive.Add("bundle/of/large.txt", large);
  archive.Add("bundle/empty", "");
  archive.Add("bundle/block", std::string(512, 'b'));
  const auto bytes = archive.TarGz();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  std::ofstream(dir + "/a.tar.gz", std::ios::binary) << *bytes;
  ASSERT_EQ(std::system(("tar -C " + dir + " -xzf " + dir + "/a.tar.gz").c_str()), 0);
  EXPECT_EQ(Read(dir + "/bundle/one.txt"), "one\n");
  EXPECT_EQ(Read(dir + "/bundle/of/large.txt"), large);
  EXPECT_EQ(Read(dir + "/bundle/empty"), "");
  EXPECT_EQ(Read(dir + "/bundle/block"), std::string(512, 'b'));
  EXPECT_EQ(*archive.TarGz(), *bytes);
}

}  // namespace
}  // namespace kvatlas
