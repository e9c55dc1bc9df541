#include "frontend/gateway/session_header.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

TEST(SessionHeaderTest, WhatAgentsSendIsASession) {
  for (const char* name : {"x-kvatlas-session", "X-Session-ID", "X-Claude-Code-Session-Id",
                           "session_id", "x-smg-routing-key"})
    EXPECT_EQ(SessionOfHeaders(Headers{{"accept", "*/*"}, {name, "abc"}}), "abc") << name;
  EXPECT_EQ(SessionOfHeaders(Headers{{"x-request-id", "abc"}}), "");
}

TEST(SessionHeaderTest, OursComesFirstAndAnEmptyOneIsNone) {
  EXPECT_EQ(SessionOfHeaders(Headers{{"session_id", "a"}, {"x-kvatlas-session", "b"}}), "b");
  EXPECT_EQ(SessionOfHeaders(Headers{{"session_id", "a"}, {"x-kvatlas-session", ""}}), "a");
}

TEST(SessionHeaderTest, AForeignOneThatIsTooLongIsNoneAndOursIsLeftToBeRefused) {
  const std::string longer(kSessionIdBytesMax + 1, 'x');
  EXPECT_EQ(SessionOfHeaders(Headers{{"x-session-id", longer}, {"session-id", "c"}}), "c");
  EXPECT_EQ(SessionOfHeaders(Headers{{"x-kvatlas-session", longer}}), longer);
}

}  // namespace
}  // namespace kvatlas
