// Finds the name that a mistyped one may have meant, for messages such as "unknown flag --parrents;
// did you mean --parents?".
//
// *Truth*: the candidate of the least distance (letters inserted, left out, replaced, or swapped
// with their neighbour), if that is at most a third of the name's length, rounded up, and at most
// four; or else the only candidate that begins with the name, or that the name begins with, where
// the shorter of the two has three letters.
// *Cost*: candidates times the product of the lengths. *Threads*: a pure function.

#ifndef KVATLAS_INDEXER_BASE_NEAREST_NAME_H_
#define KVATLAS_INDEXER_BASE_NEAREST_NAME_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

// Nothing: none is near.
std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates);

// "; did you mean PREFIXcandidate?", or nothing.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates,
                       std::string_view prefix = "");

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_NEAREST_NAME_H_
