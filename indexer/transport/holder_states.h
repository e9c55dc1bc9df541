// The state of this process's holders, for alerts: metrics with a series for each domain.
//
//   kvatlas_leaf_holders_by_trust{domain="llama",trust="stale"} 1
//
// *Truth*: a scrape's, of the holders known then. `_holders_masked`: their lease ran out, or their
// engine is not reached, so that no answer has them; they keep their trust. The two totals are of
// holders known now: one that is forgotten takes its part along.
// *Cost*: a look at each holder's statistics.

#ifndef KVATLAS_INDEXER_TRANSPORT_HOLDER_STATES_H_
#define KVATLAS_INDEXER_TRANSPORT_HOLDER_STATES_H_

#include <string>

#include "indexer/registry/holder_registry.h"

namespace kvatlas {

// `prefix`: "kvatlas_leaf" for instance. Appends
//   _holders_by_trust{domain,trust}     exact, degraded, stale
//   _holders_masked{domain}
//   _names_claimed_twice_total{domain}  hellos refused, since a younger process has the name
//   _repairs_timed_out_total{domain}    repairs that did not come in time, after which holdings were dropped
void AppendHolderStates(const HolderRegistry& registry, const std::string& prefix,
                        std::string* text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_HOLDER_STATES_H_
