// Which addresses does a DNS name have now? A source of a directory that asks again and again.
//
// *Truth*: a failed or empty answer is reported as a failure; it does not mean that nothing is
// there.

#ifndef KVATLAS_INDEXER_DISCOVERY_DNS_SOURCE_H_
#define KVATLAS_INDEXER_DISCOVERY_DNS_SOURCE_H_

#include <memory>

#include "indexer/base/address.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/directory_source.h"

namespace kvatlas {

std::unique_ptr<DirectorySource> MakeDnsSource(const Address& name,
                                               const DirectoryOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_DNS_SOURCE_H_
