#include "indexer/net/redis_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;
using testing::Not;

class RedisUrlFileTest : public testing::Test {
 protected:
  RedisUrlFileTest()
      : path_(testing::TempDir() + "/redis_url_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  void Write(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  std::string MessageOf(const std::string& url) const {
    const absl::Status status = ParseRedisUrl(url).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << url;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
    return std::string(status.message());
  }

  const std::string path_;
};

TEST_F(RedisUrlFileTest, TheWholeUrlMayBeInAFile) {
  for (const mode_t mode : {0400, 0440, 0600, 0640}) {
    Write("  redis://bob:secret@h1:7000,h2/5\n\n", mode);
    for (const std::string& url : {"@" + path_, "redis://@" + path_}) {
      const auto options = ParseRedisUrl(url);
      ASSERT_TRUE(options.ok()) << options.status();
      EXPECT_EQ(options->password, "secret");
      EXPECT_EQ(options->user, "bob");
      EXPECT_EQ(options->hosts.size(), 2u);
      EXPECT_EQ(RedisUrlWithoutPassword(url), url);
    }
  }
}

TEST_F(RedisUrlFileTest, AFileThatOthersMayOpenIsRefused) {
  for (const mode_t mode : {0644, 0660, 0604, 0602, 0641, 04600}) {
    Write("redis://:secret@h", mode);
    EXPECT_THAT(MessageOf("@" + path_), HasSubstr("chmod 0640")) << std::oct << mode;
    EXPECT_THAT(MessageOf("@" + path_), HasSubstr(path_));
  }
}

TEST_F(RedisUrlFileTest, WhatIsNoUrlIsRefusedWithoutTellingIt) {
  Write("", 0600);
  EXPECT_THAT(MessageOf("@" + path_), HasSubstr("empty"));
  Write("\n \n", 0600);
  EXPECT_THAT(MessageOf("@" + path_), HasSubstr("empty"));
  Write("http://:secret@h", 0600);
  EXPECT_THAT(MessageOf("@" + path_), HasSubstr("redis://"));
  Write("redis://u:secret@h:x", 0600);
  MessageOf("@" + path_);
  Write("@" + path_, 0600);
  EXPECT_THAT(MessageOf("@" + path_), HasSubstr("instead of a URL"));
  Write("redis://:secret@" + std::string(5000, 'h'), 0600);
  EXPECT_THAT(MessageOf("@" + path_), HasSubstr("too long"));
  EXPECT_THAT(MessageOf("@" + path_ + ".not_there"), HasSubstr("No such file"));
  EXPECT_THAT(MessageOf("@/dev/null"), HasSubstr("not a regular file"));
  MessageOf("@");
}

TEST(RedisPasswordTest, IsFoundWhereverAUrlIs) {
  for (const char* text :
       {"redis://:secret@h", "--redis=redis://u:secret@h:1", "--parents=h:1,redis://:secret@h",
        "redis-sentinel://:secret@a,b?master=m", "redis://h:1,redis://:secret@h",
        "rediss://u:secret@h", "redis://:se/cret@h"})
    EXPECT_TRUE(HasRedisPassword(text)) << text;
  for (const char* text :
       {"", "redis://h:1", "redis://user@h:1", "redis://@/run/redis:url", "@/run/redis-url",
        "--url=http://u:p@h", "redis://h:1,http://u:p@h", "a@b:c", "://", "redis://"})
    EXPECT_FALSE(HasRedisPassword(text)) << text;
}

TEST(RedisPasswordTest, IsNotShown) {
  for (const char* text : {"redis://:secret@h", "--redis=redis://u:secret@h:1",
                           "--parents=h:1,redis://:secret@h", "--x=redis://h:1,redis://:secret@h",
                           "redis-sentinel://:secret@a,b?master=m", "redis://:sec@secret@h",
                           "w=http://u:secret@h,x=http://v:secret@h", "redis://u:a://secret@h",
                           "a.toml:3: redis = redis://u:secret@h: no", "x@redis://u:secret@h"})
    EXPECT_THAT(WithoutPasswords(text), Not(HasSubstr("secret"))) << text;
  for (const char* text : {"a:b@c is no address", "redis://h:6379,redis://@/run/redis-url", "",
                           "w=http://h:1,x=http://user@h:2"})
    EXPECT_EQ(WithoutPasswords(text), text);
  EXPECT_EQ(WithoutPasswords("w=http://u:pw@h:1,x=http://h:2"), "w=http://u:***@h:1,x=http://h:2");
}

}  // namespace
}  // namespace kvatlas
