// Reaches a service for the operator's command: one question and its answer, over gRPC or HTTP,
// with a deadline.
//
// *Truth*: no question is asked twice. Errors begin with the service that they are about: "leaf
// 127.0.0.1:7410: …". UNAVAILABLE, DEADLINE_EXCEEDED: it cannot be reached, or not in time; others
// as the service said.
// *Threads*: any. *Bounds*: an answer over HTTP has at most `kHttpAnswerBytesMax`.

#ifndef KVATLAS_TOOLS_KVATLAS_SERVICES_H_
#define KVATLAS_TOOLS_KVATLAS_SERVICES_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

inline constexpr size_t kHttpAnswerBytesMax = size_t{4} << 30;

inline constexpr int kDumpTimeouts = 120;

// Presented with every question from now on, over gRPC and HTTP; empty: none.
void SetBearerToken(std::string token);

enum class ServiceRole { kLeaf, kHierarchy, kFrontend, kRelay, kServe };

// A leaf, or a hierarchy node: both tell of their holders alike.
class HolderService {
 public:
  // REQUIRES: a node of the hierarchy, or else a leaf, perhaps of `serve`.
  HolderService(ServiceRole role, Address address, Duration timeout);

  absl::StatusOr<v1::StatsResponse> Stats() const;
  // `visit` gets the pieces in order. May take `kDumpTimeouts` times as long as another question.
  absl::Status Dump(const v1::DumpRequest& request,
                    const std::function<void(const v1::DumpResponse&)>& visit) const;
  // REQUIRES: a leaf.
  absl::StatusOr<v1::FindOverlapsResponse> FindOverlaps(
      const v1::FindOverlapsRequest& request) const;
  // REQUIRES: a hierarchy node.
  absl::StatusOr<v1::FindCellsResponse> FindCells(const v1::FindCellsRequest& request) const;

  const std::string& name() const { return name_; }  // "leaf 127.0.0.1:7410"

 private:
  const bool is_leaf_;
  const Address address_;
  const Duration timeout_;
  const std::string name_;
};

// Asks a frontend for a route, and tells it at once that the request is over, so that it is not
// counted as running.
absl::StatusOr<v1::RouteResponse> AskRoute(const Address& frontend, const v1::RouteRequest& request,
                                           Duration timeout);

struct HttpReply {
  int status = 0;
  std::string body;
};

// `who` begins errors. Only failures to ask are errors: any status of the answer is an answer.
absl::StatusOr<HttpReply> HttpAsk(const std::string& who, const Address& to,
                                  const std::string& method, const std::string& target,
                                  const std::string& body, Duration timeout);

// An answer of 2xx as its body, any other as the error that it says.
absl::StatusOr<std::string> HttpBody(const std::string& who, const Address& to,
                                     const std::string& method, const std::string& target,
                                     const std::string& body, Duration timeout);

// For a value in a URL's query.
std::string UrlEncoded(const std::string& text);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SERVICES_H_
