// A domain is one (model, tenant): one index with one block size. Blocks are compared within a
// domain only; nothing ever matches across domains.

#ifndef KVATLAS_INDEXER_BASE_DOMAIN_H_
#define KVATLAS_INDEXER_BASE_DOMAIN_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

namespace kvatlas {

struct Domain {
  std::string model;
  std::string tenant;

  friend bool operator==(const Domain& a, const Domain& b) {
    return a.model == b.model && a.tenant == b.tenant;
  }
  friend bool operator<(const Domain& a, const Domain& b) {
    return std::tie(a.model, a.tenant) < std::tie(b.model, b.tenant);
  }
  template <typename H>
  friend H AbslHashValue(H h, const Domain& domain) {
    return H::combine(std::move(h), domain.model, domain.tenant);
  }
};

// "llama-70b" or "llama-70b|tenant-a".
inline std::string ToString(const Domain& domain) {
  return domain.tenant.empty() ? domain.model : domain.model + "|" + domain.tenant;
}

// Blocks have from 1 to this many tokens.
inline constexpr uint32_t kBlockSizeMax = 1 << 16;

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_DOMAIN_H_
