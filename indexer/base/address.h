// The address at which a server listens, or to which a client connects.
//
// An `Address` is HOST:PORT as people type it: `127.0.0.1:7410`, `leaf-3.example:7410`,
// `[::1]:7410`. The host is never empty, so leaving it out never listens on every interface.
//
// Threads: a plain value.

#ifndef KVATLAS_INDEXER_BASE_ADDRESS_H_
#define KVATLAS_INDEXER_BASE_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvatlas {

struct Address {
  std::string host = "127.0.0.1";  // without brackets, also for IPv6
  uint16_t port = 0;               // 0: the listener takes a free one

  // INVALID_ARGUMENT, naming `text`, unless it is HOST:PORT with a port in 0..65535.
  static absl::StatusOr<Address> Parse(std::string_view text);

  // HOST:PORT, with brackets round an IPv6 host. `Parse` reads it back.
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_ADDRESS_H_
