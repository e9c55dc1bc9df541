// Keys that encrypt ZeroMQ (CURVE, RFC 26 of ZeroMQ): a pair for the engine, which is the server,
// and one for each listener.
//
// A key is 32 bytes, written as 40 characters of Z85. The engine's secret key is in a file beside
// it; its public one is given where the engine is registered, and no other engine can answer there.
// `kvatlas pki curve FILE` makes a pair.
//
// *Format* of a file: the secret key; the public one follows from it.
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_SECURITY_CURVE_H_
#define KVATLAS_INDEXER_SECURITY_CURVE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {

struct CurveKeys {
  std::string public_key;
  std::string secret_key;
};

// UNIMPLEMENTED: libzmq was built without CURVE.
absl::StatusOr<CurveKeys> MakeCurveKeys();

// INVALID_ARGUMENT names the file and what is wrong with it: others may read it too, or it has no
// key.
absl::StatusOr<CurveKeys> ReadCurveKeys(const std::string& path);

// INVALID_ARGUMENT: not 40 characters of Z85.
absl::Status CheckCurveKey(std::string_view key);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_CURVE_H_
