#include "indexer/ui/ui_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/ui/ui_files.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class UiTest : public ::testing::Test {
 protected:
  UiTest()
      : http_({.listen = {"127.0.0.1", 0}, .program = "test", .keep_headers = true}, &metrics_) {
    UiPages pages{.charts = {{.id = "c", .title = "C", .series = {{.key = "one", .label = "one"}}}},
                  .sample = [] { return std::vector<double>{1}; },
                  .fleet =
                      [](const std::string& cell) {
                        return cell == "none" ? "" : "{\"cell\":\"" + cell + "\"}";
                      }};
    ui_ = std::make_unique<Ui>(std::move(pages), &http_);
    EXPECT_TRUE(http_.Start().ok());
  }
  ~UiTest() override { http_.Stop(); }

  std::string Ask(const std::string& target, const std::string& headers = "",
                  const std::string& method = "GET") {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address(http_.address().host), http_.address().port});
    asio::write(socket, asio::buffer(absl::StrCat(method, " ", target,
                                                  " HTTP/1.1\r\nhost: x\r\nconnection: close\r\n",
                                                  headers, "\r\n")));
    std::string all;
    boost::system::error_code error;
    asio::read(socket, asio::dynamic_buffer(all), error);
    return all;
  }
  static std::string BodyOf(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }
  static std::string InFolder(std::string_view file) {
    return absl::StrCat("/ui/", std::string(UiVersion()), "/", std::string(file));
  }

  Metrics metrics_;
  AdminHttp http_;
  std::unique_ptr<Ui> ui_;
};

TEST_F(UiTest, TheRootSendsToThePage) {
  for (const char* path : {"/", "/ui"}) {
    EXPECT_THAT(Ask(path), StartsWith("HTTP/1.1 307"));
    EXPECT_THAT(Ask(path), HasSubstr("location: /ui/\r\n"));
  }
}

TEST_F(UiTest, ThePageForbidsEverythingFromElsewhere) {
  const std::string page = Ask("/ui/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("content-type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("content-security-policy: default-src 'none'; script-src 'self';"));
  EXPECT_THAT(page, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(page, HasSubstr("x-content-type-options: nosniff\r\n"));
  EXPECT_THAT(page, Not(HasSubstr("{{version}}")));
}

// Every script and style that the page names, and every module that these import, is there with its
// type.
TEST_F(UiTest, EveryFileThatIsNamedIsServed) {
  const std::string page = BodyOf(Ask("/ui/"));
  const std::regex named("(?:src|href)=\"([^\"]+\\.(?:js|css|svg))\"");
  int files = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), named), end; it != end; ++it, ++files) {
    const std::string path = (*it)[1];
    SCOPED_TRACE(path);
    EXPECT_THAT(path, StartsWith(std::string(UiVersion()) + "/"));
    const std::string answer = Ask("/ui/" + path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
    const char* type = path.ends_with(".css")   ? "text/css"
                       : path.ends_with(".svg") ? "image/svg+xml"
                                                : "text/javascript";
    EXPECT_THAT(answer, HasSubstr(std::string("content-type: ") + type));
    EXPECT_THAT(answer, HasSubstr("cache-control: public, max-age=31536000, immutable"));
  }
  EXPECT_GE(files, 3);
  std::set<std::string> paths;
  for (const UiFile& file : UiFiles()) paths.insert(std::string(file.path));
  const std::regex imported("from \"\\./([^\"]+)\"");
  for (const UiFile& file : UiFiles()) {
    if (!file.path.ends_with(".js")) continue;
    const std::string body(file.body);
    for (std::sregex_iterator it(body.begin(), body.end(), imported), end; it != end; ++it)
      EXPECT_TRUE(paths.contains((*it)[1])) << file.path << " imports " << (*it)[1];
  }
  EXPECT_TRUE(paths.contains("vendor/uplot/LICENSE"));
}

TEST_F(UiTest, NoFileNamesAnotherHost) {
  const std::regex url("https?://[A-Za-z0-9.-]+");
  for (const UiFile& file : UiFiles()) {
    if (file.path.find("LICENSE") != std::string_view::npos) continue;
    const std::string body(file.body);
    for (std::sregex_iterator it(body.begin(), body.end(), url), end; it != end; ++it) {
      const std::string found = it->str();
      // Names of formats, and the home page that the chart library's licence line has: nothing asks
      // there.
      EXPECT_TRUE(found == "http://www.w3.org" || found == "https://github.com")
          << file.path << " names " << found;
    }
  }
}

TEST_F(UiTest, WhatTheBrowserHasIsNotSentAgain) {
  const std::string tag = absl::StrCat("\"", std::string(UiVersion()), "\"");
  EXPECT_THAT(Ask("/ui/"), HasSubstr("etag: " + tag + "\r\n"));
  const std::string again = Ask("/ui/", "if-none-match: " + tag + "\r\n");
  EXPECT_THAT(again, StartsWith("HTTP/1.1 304"));
  EXPECT_EQ(BodyOf(again), "");
  EXPECT_THAT(Ask("/ui/", "if-none-match: \"other\"\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(UiTest, AFolderOfAnotherVersionIsServedButNotKept) {
  const std::string answer = Ask("/ui/0123456789abcdef/style.css");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("cache-control: no-cache"));
}

TEST_F(UiTest, OtherPathsAreNotThere) {
  for (const char* path : {"/ui/style.css", "/ui/x/y.js", "/ui/x/../style.css", "/ui/x/index.html"})
    EXPECT_THAT(Ask(path), StartsWith("HTTP/1.1 404")) << path;
}

TEST_F(UiTest, DataIsNotKeptByBrowsers) {
  const std::string fleet = Ask("/ui/fleet.json?cell=a%20b");
  EXPECT_THAT(fleet, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(fleet, HasSubstr("cache-control: no-store"));
  EXPECT_EQ(Json::parse(BodyOf(fleet))["cell"], "a b");
  EXPECT_THAT(Ask("/ui/fleet.json?cell=none"), StartsWith("HTTP/1.1 404"));
  const std::string series = Ask("/ui/series.json");
  EXPECT_EQ(Json::parse(BodyOf(series))["charts"][0]["id"], "c");
  EXPECT_THAT(Ask("/ui/series.json?since=soon"), StartsWith("HTTP/1.1 400"));
}

TEST_F(UiTest, ExplainIsOffUnlessThereIsSomethingToExplain) {
  EXPECT_THAT(Ask("/ui/explain", "content-length: 0\r\n", "POST"), Not(HasSubstr("HTTP/1.1 200")));
}

}  // namespace
}  // namespace kvatlas
