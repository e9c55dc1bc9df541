#include "frontend/engine_client/own_address.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(OwnAddressTest, AnyFormOfALocalAddressLeadsToAListener) {
  const Address loopback{"127.0.0.1", 8000}, all{"0.0.0.0", 8000}, all6{"::", 8000};
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0", "::", "::ffff:127.0.0.1", "127.1"})
    EXPECT_TRUE(LeadsTo({host, 8000}, loopback)) << host;
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1", "0.0.0.0"}) {
    EXPECT_TRUE(LeadsTo({host, 8000}, all)) << host;
    EXPECT_TRUE(LeadsTo({host, 8000}, all6)) << host;
  }
  EXPECT_TRUE(LeadsTo({"127.0.0.1", 8000}, {"localhost", 8000}));
}

TEST(OwnAddressTest, AnotherPortOrMachineDoesNot) {
  const Address loopback{"127.0.0.1", 8000}, all{"0.0.0.0", 8000};
  EXPECT_FALSE(LeadsTo({"127.0.0.1", 8001}, all));
  EXPECT_FALSE(LeadsTo({"127.0.0.2", 8000}, loopback));
  EXPECT_FALSE(LeadsTo({"192.0.2.7", 8000}, all));  // of documentation: no machine's
  EXPECT_FALSE(LeadsTo({"no-such-host.invalid", 8000}, all));
  EXPECT_FALSE(LeadsTo({"127.0.0.1", 0}, {"127.0.0.1", 0}));
}

}  // namespace
}  // namespace kvatlas
