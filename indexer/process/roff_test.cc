#include "indexer/process/roff.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace kvatlas {
namespace {

// The page as it is displayed, and groff's complaints.
std::string Shown(const RoffPage& page) {
  const std::string dir = std::getenv("TEST_TMPDIR");
  std::ofstream(dir + "/page") << page.Text();
  const std::string command =
      "groff -ww -man -Tutf8 -P-c -P-b -P-u -P-o " + dir + "/page > " + dir + "/shown 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream shown(dir + "/shown");
  return {std::istreambuf_iterator<char>(shown), std::istreambuf_iterator<char>()};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(RoffTest, TextIsTextWhateverIsInIt) {
  RoffPage page("kvatlas-test", 8);
  page.Name("Tests pages. And more.");
  page.Heading("Description");
  page.Paragraph(".TH is no request here, and neither is a \\fBbackslash\\fR; \"quotes\" stay");
  page.Paragraph("'so is this");
  page.Subheading("Some flags");
  page.Item("--flag", "N|M", "one…two – three ü");
  page.Example("kvatlas-test --flag=1", "does it");
  page.SeeAlso({"kvatlas(1)", "kvatlas-leaf(8)"});
  const std::string shown = Shown(page);
  EXPECT_TRUE(Has(shown, "KVATLAS-TEST(8)")) << shown;
  EXPECT_TRUE(Has(shown, "kvatlas-test - Tests pages\n")) << shown;
  EXPECT_TRUE(Has(shown, ".TH is no request here")) << shown;
  EXPECT_TRUE(Has(shown, "\\fBbackslash\\fR")) << shown;
  EXPECT_TRUE(Has(shown, "\"quotes\"")) << shown;
  EXPECT_TRUE(Has(shown, "'so is this")) << shown;
  EXPECT_TRUE(Has(shown, "--flag N|M")) << shown;
  EXPECT_TRUE(Has(shown, "one...two - three ü")) << shown;
  EXPECT_TRUE(Has(shown, "kvatlas-leaf(8)")) << shown;
  EXPECT_FALSE(Has(shown, "warning")) << shown;
  EXPECT_FALSE(Has(shown, "error")) << shown;
}

}  // namespace
}  // namespace kvatlas
