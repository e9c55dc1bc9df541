// The flags of what one address may announce (`peer_quotas.h`), which leaf and hierarchy name each
// in its own way.

#ifndef KVATLAS_INDEXER_REGISTRY_PEER_FLAGS_H_
#define KVATLAS_INDEXER_REGISTRY_PEER_FLAGS_H_

#include <string>

#include "indexer/process/flags.h"
#include "indexer/registry/peer_quotas.h"

namespace kvatlas {

struct PeerFlagNames {
  std::string domains;
  std::string holders;
  std::string label_bytes;
};

// Refusals name the flag that sets the limit. `limits` outlives the parsing.
inline void AddPeerFlags(FlagSet& flags, PeerLimits* limits, const PeerFlagNames& names) {
  const auto add = [&](PeerLimit* limit, const std::string& name, const std::string& help) {
    limit->name = "--" + name;
    flags.Add(name, &limit->max, help + "; 0: no limit");
  };
  add(&limits->domains, names.domains,
      "new models that one address may announce; raise it where one relay or proxy has more");
  add(&limits->holders, names.holders,
      "streams that one address may keep here: of all workers or cells behind it, in all models");
  add(&limits->label_bytes, names.label_bytes,
      "bytes that the names, addresses and labels of these may take together");
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_PEER_FLAGS_H_
