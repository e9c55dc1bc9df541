#include "indexer/net/grpc_status.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(GrpcStatusTest, EveryCodeAndMessageSurvivesBothWays) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_EQ(wire.error_message(), "why");
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
}

TEST(GrpcStatusTest, ForeignCodesBecomeUnknown) {
  for (const int code : {17, 31, -1}) {  // all that gRPC's enumeration can hold
    const auto foreign = static_cast<grpc::StatusCode>(code);
    EXPECT_EQ(FromGrpcStatus(grpc::Status(foreign, "why")), absl::UnknownError("why"));
    EXPECT_EQ(ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "why")).error_code(),
              grpc::StatusCode::UNKNOWN);
  }
}

}  // namespace
}  // namespace kvatlas
